"""A whole training step of the tiny policy, with the share of each part: this project against TRL's ``GRPOTrainer``.

    python benchmarks/train_step.py            # the peer needs: pip install trl==1.16.0

Equal for both: weights, chat template, questions and their order (``ArithmeticSingleAgent-v0``), 8 responses to each
question, temperature and token limit, optimiser steps per batch (with as many rows each), a clipped sequence-level
ratio without a divergence penalty, gradient clipping, the grader, float32 and the number of threads. TRL runs with its
gradient checkpointing off (its default costs a second forward pass) and without reports or checkpoints; this project
writes its metrics and no checkpoint. The learning rate is tiny, so that both sample from practically one policy and
responses are equally long; tokens are counted up to and including the end of each response, never padding.

A step lasts from the beginning of one rollout to the beginning of the next, so nothing is left out. *Generation* is
sampling with what turns prompts to tokens and back, *environment* is the worlds with their grading (for TRL the reward
function and the bookkeeping around it), *update* is all the rest: old log-probabilities, losses, optimiser, metrics.

Cases: responses that end where the policy ends them; responses that all run to the limit, for which the token that
ends a response is replaced by one the policy never samples; and the three-solver team of ``tiny-arithmetic.toml``,
which TRL cannot run. Each contestant is a process of its own, and processes take turns. Times are medians over steps,
of processor time, which other work on the machine disturbs least, and of wall time.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OURS, TRL = "srpo", "trl"
SINGLE_AGENT, TEAM = "srpo_envs/ArithmeticSingleAgent-v0", "srpo_envs/ArithmeticSolverVerifier-v0"
NEVER_SAMPLED = "<|system|>"
LEVEL, GROUP_SIZE, MAX_NEW_TOKENS = 2, 8, 40
WARM_UP = 2  # steps that are not counted: the first ones allocate
COLUMNS = ("case", "trainer", "CPU ms", "wall ms", "tokens", "tokens/CPU s", "generation", "environment", "update")


class Clock:
    """Processor and wall seconds of each part of each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, tuple[float, float]]] = []
        self.tokens: list[int] = []
        self._begun: tuple[float, float] | None = None
        self._parts: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def next_step(self) -> None:
        """End the step that is running, if any, and begin another."""
        now = read_clocks()
        if self._begun is not None:
            self.steps.append({**self._parts, "step": passed(self._begun, now)})
        self._begun = now
        self._parts.clear()

    def time(self, owner: type, method: str, part: str) -> None:
        """Count the time inside a method of a class towards a part."""
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = read_clocks()
            try:
                return inner(*args, **kwargs)
            finally:
                spent, sofar = passed(begun, read_clocks()), self._parts[part]
                self._parts[part] = (sofar[0] + spent[0], sofar[1] + spent[1])

        setattr(owner, method, timed)

    def begin_step_at(self, owner: type, method: str) -> None:
        """Let a step begin whenever a method is called."""
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def marked(*args: Any, **kwargs: Any) -> Any:
            self.next_step()
            return inner(*args, **kwargs)

        setattr(owner, method, marked)


def read_clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def passed(begun: tuple[float, float], now: tuple[float, float]) -> tuple[float, float]:
    return now[0] - begun[0], now[1] - begun[1]


# --- contestants --------------------------------------------------------------------------------------------------


def run_srpo(case: dict, clock: Clock, folder: str) -> None:
    from srpo_train.collect import Collector
    from srpo_train.config import parse_recipe
    from srpo_train.engines.transformers import TransformersEngine
    from srpo_train.loop import Trainer

    def count_tokens(collect: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            rollout = collect(*args, **kwargs)
            clock.tokens.append(sum(episode.num_tokens for episode in rollout.episodes))
            return rollout

        return counted

    clock.time(TransformersEngine, "generate", "generation")
    clock.time(Collector, "collect", "rollout")
    Collector.collect = count_tokens(Collector.collect)
    clock.begin_step_at(Collector, "collect")
    team_size = {"num_solvers": 3} if case["env"] == TEAM else {}
    recipe = parse_recipe(
        {
            "name": "bench",
            "output_dir": folder,
            "env": {"id": case["env"], "kwargs": {"level": LEVEL, **team_size}},
            "policies": {"team": {"model": case["model"], "device": "cpu"}},
            "rollout": {"prompts_per_step": case["questions"], "group_size": GROUP_SIZE},
            "optim": {"lr": case["lr"], "num_minibatches": case["updates"]},
            "train": {"num_steps": case["steps"] + 1, "checkpoint_every": 10**6, "num_threads": case["threads"]},
            "log": {"tensorboard": False, "save_events": "none"},
        }
    )
    with Trainer(recipe, Path(folder)) as trainer:
        trainer.run()


def run_trl(case: dict, clock: Clock, folder: str) -> None:
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    import srpo_envs
    from srpo_envs.parsing import Parsed
    from srpo_train.task_order import TaskOrder

    env = srpo_envs.make(case["env"], level=LEVEL)
    tasks, order = env.tasks, TaskOrder(env.tasks.num_tasks, seed=0)

    def question(position: int) -> dict[str, Any]:
        index = order.task_at(position)
        (member,) = env.reset(options={"task_index": index}).members
        return {"prompt": [{"role": "user", "content": member.prompt}], "task_index": index}

    def grade(completions: list, completion_ids: list, task_index: list, **_: Any) -> list[float]:
        clock.tokens.append(sum(map(len, completion_ids)))
        answers = [tasks.parse_answer(message["content"]) for (message,) in completions]
        return [
            tasks.grade(tasks.task(index), answer.value) if isinstance(answer, Parsed) else 0.0
            for index, answer in zip(task_index, answers, strict=True)
        ]

    clock.time(GRPOTrainer, "_generate", "generation")
    clock.time(GRPOTrainer, "_calculate_rewards", "environment")
    clock.begin_step_at(GRPOTrainer, "_generate_and_score_completions")
    config = GRPOConfig(
        output_dir=folder,
        max_steps=(case["steps"] + 1) * case["updates"],
        per_device_train_batch_size=case["questions"] * GROUP_SIZE // case["updates"],
        steps_per_generation=case["updates"],
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_NEW_TOKENS,
        temperature=1.0,
        beta=0.0,
        importance_sampling_level="sequence",
        loss_type="grpo",
        learning_rate=case["lr"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=case["updates"],
    )
    rows = datasets.Dataset.from_list([question(i) for i in range((case["steps"] + 1) * case["questions"])])
    GRPOTrainer(model=case["model"], reward_funcs=grade, args=config, train_dataset=rows).train()


def run_case(case: dict) -> dict:
    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(case["threads"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        {OURS: run_srpo, TRL: run_trl}[case["trainer"]](case, clock, folder)
    for step in clock.steps:
        if "rollout" in step:
            step["environment"] = passed(step["generation"], step.pop("rollout"))
    return {"steps": clock.steps[WARM_UP:], "tokens": clock.tokens[WARM_UP : len(clock.steps)]}


# --- measuring ----------------------------------------------------------------------------------------------------


def write_policy(source: str, folder: Path, *, is_endless: bool) -> str:
    """Save the policy for both contestants; an endless one never samples the token that ends a response."""
    from srpo_train.policies import Policy

    policy = Policy.load("bench", source, device="cpu")
    if is_endless:
        policy.tokenizer.eos_token = NEVER_SAMPLED
        ending = policy.tokenizer.convert_tokens_to_ids(NEVER_SAMPLED)
        policy.model.config.eos_token_id = policy.model.generation_config.eos_token_id = ending
    policy.save(folder)
    return str(folder)


def measure(case: dict) -> dict:
    """Run one case in a fresh process."""
    environment = os.environ | {"OMP_NUM_THREADS": str(case["threads"]), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case['trainer']} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def summarize(runs: list[dict]) -> dict[str, float]:
    """Medians over all steps of all rounds; shares are of the summed processor time."""
    steps = [step for run in runs for step in run["steps"]]
    cpu_s = sum(step["step"][0] for step in steps)
    tokens = [count for run in runs for count in run["tokens"]]
    shares = {part: sum(step[part][0] for step in steps) / cpu_s for part in ("generation", "environment")}
    return {
        "CPU ms": 1e3 * statistics.median(step["step"][0] for step in steps),
        "wall ms": 1e3 * statistics.median(step["step"][1] for step in steps),
        "tokens": statistics.fmean(tokens),
        "tokens/CPU s": sum(tokens) / cpu_s,
        **shares,
        "update": 1.0 - sum(shares.values()),
    }


def print_row(case: str, trainer: str, row: dict[str, float], peer: dict[str, float] | None) -> None:
    cells = [f"{row[name]:,.0f}" for name in COLUMNS[2:6]]
    cells += [f"{row['CPU ms'] * row[part]:,.0f} ms ({row[part]:.0%})" for part in COLUMNS[6:]]
    ahead = "" if peer is None else f"{row['tokens/CPU s'] / peer['tokens/CPU s']:.2f}"
    print("| " + " | ".join([case, trainer, *cells, ahead]) + " |", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:tiny-team", help="a checkpoint of srpo make-tiny-policy")
    parser.add_argument("--steps", type=int, default=12, help=f"per process; the first {WARM_UP} are not counted")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contestant, which take turns")
    parser.add_argument("--questions", type=int, default=16, help="questions a step, each answered 8 times")
    parser.add_argument("--updates", type=int, default=2, help="optimiser steps a batch")
    parser.add_argument("--lr", type=float, default=1e-7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.case:
        print(json.dumps(run_case(json.loads(args.case))))
        return
    if importlib.util.find_spec("trl") is None:
        print("left out: TRL, which is not installed (pip install trl==1.16.0)\n")
        args.without_peer = True
    print(
        f"{args.questions} questions x {GROUP_SIZE} responses of at most {MAX_NEW_TOKENS} tokens a step, "
        f"{args.updates} optimiser step(s), {args.threads} thread(s), {args.rounds} x {args.steps - WARM_UP} steps\n"
    )
    print("| " + " | ".join([*COLUMNS, "tokens/CPU s against TRL"]) + " |")
    print("|---|---|" + "---:|" * (len(COLUMNS) - 1))
    with tempfile.TemporaryDirectory() as folder:
        natural = write_policy(args.model, Path(folder) / "natural", is_endless=False)
        endless = write_policy(args.model, Path(folder) / "endless", is_endless=True)
        cases = (("single agent", SINGLE_AGENT, natural), ("all at the limit", SINGLE_AGENT, endless))
        for name, env, model in (*cases, ("three-solver team", TEAM, natural)):
            trainers = [OURS] if env == TEAM or args.without_peer else [OURS, TRL]
            case = {**vars(args), "env": env, "model": model}
            runs = {trainer: [] for trainer in trainers}
            for _ in range(args.rounds):
                for trainer in trainers:
                    runs[trainer].append(measure(case | {"trainer": trainer}))
            rows = {trainer: summarize(runs[trainer]) for trainer in trainers}
            for trainer, row in rows.items():
                print_row(name, trainer, row, rows.get(TRL) if trainer == OURS else None)


if __name__ == "__main__":
    main()
