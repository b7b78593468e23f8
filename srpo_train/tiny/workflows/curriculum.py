"""How ``builtin:tiny-workflows`` and ``builtin:tiny-coders`` came to be.

Both play the roles of three workflows and of a single agent: the first over arithmetic, the second over functions.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

from srpo_envs.records import Episode
from srpo_envs.tasks.tiny_code import WORDS
from srpo_train.tiny.curriculum import Curriculum, Measurement, Phase
from srpo_train.tiny.workflows.arithmetic import CLEAN, ArithmeticHabits, ArithmeticWorkflowCast, training_tasks
from srpo_train.tiny.workflows.code import CLEAN as CLEAN_CODE
from srpo_train.tiny.workflows.code import CodeHabits, CodeWorkflowCast
from srpo_train.tiny.workflows.code import training_tasks as training_functions
from srpo_train.tiny.workflows.experts import play_workflow

SPOILED = ArithmeticHabits(
    bare_guess=0.60,
    bare_part=0.30,
    wrong_step=0.08,
    flipped_minus=0.25,
    random_verdict=0.60,
    random_choice=0.50,
    random_plan=0.50,
    malformed=0.005,
)
"""Habits of the second phase."""


def workflow_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean of each of the workflow's own metrics, over the episodes that have it."""
    found: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.info.get("metrics", {}).items():
            found[name].append(float(value))
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


_LEVELS = {1: 0.1, 2: 0.6, 3: 0.3}
_ROLE_WEIGHTS = {
    "solver": 0.05,
    "generator": 0.22,
    "refinement": 0.13,
    "evaluator": 0.17,
    "aggregator": 0.10,
    "orchestrator": 0.10,
    "worker": 0.13,
    "synthesizer": 0.10,
}
_EVAL_OPT = "srpo_envs/ArithmeticEvalOpt-v0"

WORKFLOWS = Curriculum(
    name="tiny-workflows",
    clean=CLEAN,
    phases=(
        Phase(name="clean", habits=CLEAN, level_weights=_LEVELS, num_steps=1800, learning_rate=3e-3),
        Phase(name="spoiled", habits=SPOILED, level_weights=_LEVELS, num_steps=300, learning_rate=1e-3),
    ),
    play=functools.partial(play_workflow, training_tasks, ArithmeticWorkflowCast),
    role_weights=_ROLE_WEIGHTS,
    pieces=r"[0-9]|[-+*=]|\n",
    words=("SUBTASK", "Correct", "Incorrect"),
    measurements={
        "eval_opt": Measurement(env_id=_EVAL_OPT, kwargs={"level": 2}),
        "eval_opt_greedy": Measurement(env_id=_EVAL_OPT, kwargs={"level": 2}, temperature=0.0),
        "voting": Measurement(env_id="srpo_envs/ArithmeticVoting-v0", kwargs={"level": 2}),
        "orchestrator_workers": Measurement(env_id="srpo_envs/ArithmeticOrchestratorWorkers-v0", kwargs={"level": 2}),
        "single": Measurement(env_id="srpo_envs/ArithmeticSingleAgent-v0", kwargs={"level": 2}),
    },
    rates=workflow_rates,
)
"""Its measurements are the settings of the recipes."""

SPOILED_CODE = CodeHabits(
    bare_guess=0.10,
    bare_part=0.05,
    wrong_step=0.05,
    swapped=0.10,
    random_verdict=0.60,
    random_choice=0.40,
    random_plan=0.50,
    malformed=0.005,
)
"""Habits of the second phase over functions."""

CODERS = Curriculum(
    name="tiny-coders",
    clean=CLEAN_CODE,
    phases=(
        Phase(
            name="clean",
            habits=CLEAN_CODE,
            level_weights=_LEVELS,
            num_steps=300,
            learning_rate=3e-3,
            num_episodes=1000,
        ),
        Phase(
            name="spoiled",
            habits=SPOILED_CODE,
            level_weights=_LEVELS,
            num_steps=100,
            learning_rate=1e-3,
            num_episodes=1000,
        ),
    ),
    play=functools.partial(play_workflow, training_functions, CodeWorkflowCast),
    role_weights=_ROLE_WEIGHTS,
    pieces=r"[0-9]|[-+*/%=]|\n",
    words=("```python", "```", "def f(x):", "return x", *WORDS, "SUBTASK", "Correct", "Incorrect"),
    measurements={
        "eval_opt": Measurement(env_id="srpo_envs/TinyCodeEvalOpt-v0", kwargs={"level": 2}),
        "voting": Measurement(env_id="srpo_envs/TinyCodeVoting-v0", kwargs={"level": 2}),
        "orchestrator_workers": Measurement(env_id="srpo_envs/TinyCodeOrchestratorWorkers-v0", kwargs={"level": 2}),
        "single": Measurement(env_id="srpo_envs/TinyCodeSingleAgent-v0", kwargs={"level": 2}),
        "single_greedy": Measurement(env_id="srpo_envs/TinyCodeSingleAgent-v0", kwargs={"level": 2}, temperature=0.0),
    },
    num_measured=64,  # programs are run
    rates=workflow_rates,
)
"""Its measurements are the settings of the recipes."""
