"""Measured rates of a policy on held-out questions: what it earns, how often each role keeps to its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from srpo_envs.core import SetEnv
from srpo_envs.records import Episode
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.evaluation import evaluate
from srpo_train.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way of playing the policy."""

    make_env: Callable[[Arithmetic], SetEnv]
    """The workflow, over given tasks."""
    temperature: float = 1.0
    """0 takes the likeliest tokens."""
    level: int = 2
    """Of the questions."""


def _team(tasks: Arithmetic) -> SetEnv:
    return SolverVerifier(tasks, variant="mixed", num_solvers=3, max_rounds=2)


def _routed_team(tasks: Arithmetic) -> SetEnv:
    return SolverVerifier(tasks, variant="routed", num_solvers=3, max_rounds=2)


MEASUREMENTS: Mapping[str, Measurement] = {
    "team": Measurement(_team),
    "team_greedy": Measurement(_team, temperature=0.0),
    "team_level_3": Measurement(_team, level=3),
    "team_routed": Measurement(_routed_team),
    "single": Measurement(SingleAgent),
}
"""What the recipe reports; ``team`` is the setting of the demo."""


def measure_policy(policy: Policy, num_tasks: int, seed: int) -> dict[str, dict[str, float]]:
    """Play held-out questions and return rates by measurement.

    Args:
        policy: Plays every role.
        num_tasks: Questions of each measurement, one episode each.
        seed: Decides the sampled tokens.

    Returns:
        For each name of `MEASUREMENTS`: ``reward`` (mean team reward), ``tokens`` (mean per episode), ``valid/<role>``
        (share of responses that keep to the format) and ``right/solver`` (share of drafts with the right answer). A
        role that never acted, such as a solver no valid route ever chose, has no rates.
    """
    return {name: _measure(policy, how, num_tasks, seed) for name, how in MEASUREMENTS.items()}


def _measure(policy: Policy, how: Measurement, num_tasks: int, seed: int) -> dict[str, float]:
    tasks = Arithmetic(level=how.level, split="test", size=num_tasks)
    engines = {policy.policy_id: TransformersEngine(policy)}
    collector = Collector(lambda: how.make_env(tasks), engines, {"*": policy.policy_id}, seed=seed)
    try:
        result = evaluate(
            collector,
            num_tasks=num_tasks,
            samples_per_task=1,
            sampling=Sampling(temperature=how.temperature),
            seed=seed,
        )
    finally:
        collector.close()
    rates = {
        "reward": result.metrics["eval/reward_mean"],
        "tokens": result.metrics["eval/num_tokens"] / result.metrics["eval/num_episodes"],
    }
    if drafts := _drafts(result.episodes):
        rates["right/solver"] = sum(drafts) / len(drafts)
    prefix = "eval/valid_rate/"
    rates |= {f"valid/{key[len(prefix) :]}": value for key, value in result.metrics.items() if key.startswith(prefix)}
    return {key: round(value, 4) for key, value in rates.items()}


def _drafts(episodes: tuple[Episode, ...]) -> list[bool]:
    """Whether each draft, first or revised, names the gold answer."""
    return [
        member.parsed == episode.task["gold"]
        for episode in episodes
        for event in episode.events
        for member in event.members
        if member.role == "solver"
    ]
