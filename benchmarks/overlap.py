"""Overlap measured against overlap predicted: do step times come out as `srpo_train.simulation` says?

    python benchmarks/overlap.py                       # some five minutes, nearly all of them asleep
    python benchmarks/overlap.py --real                # trains the tiny policy as well; for two idle cores

First table: the trainer's own sources of rollouts and collector drive an engine that takes real time without a model
(`SimulatedEngine`: continuous batching of up to 64 rows, log-normal lengths), and an "update" that sleeps. So what is
measured is all of the scheduling (threads, pushes, waiting) and none of the arithmetic. The prediction is given the
lengths that were drawn, the time of a decoding step as the run in turn measured it, and nothing else of the other runs.

Second table (``--real``): the tiny policy learns arithmetic, in turn and one step off. The prediction has the speeds
that were fitted to the run in turn (`srpo simulate --run`), and assumes that sampling and update do not disturb each
other, which needs a core for each.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from srpo_envs.records import Episode
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector, EpisodeJob, Rollout
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.simulated import LogNormalLengths, SimulatedEngine, Usage
from srpo_train.overlap.batches import BatchesAhead
from srpo_train.overlap.groups import GroupsAhead
from srpo_train.overlap.source import InTurn, RolloutSource, Weights
from srpo_train.simulation.calibration import measured_speeds
from srpo_train.simulation.cluster import simulate
from srpo_train.simulation.scenario import Mode, Scenario, load_scenario
from srpo_train.simulation.workload import RecordedWorkload, SimulatedEpisode, SimulatedEvent

STEP_S, STEP_S_PER_ROW, MAX_ROWS = 6e-3, 2e-5, 64
MEDIAN_TOKENS, SIGMA = 24, 0.6
PROMPTS, GROUP_SIZE = 8, 4
NUM_PARTS = 2
WARMUP, STEPS = 2, 6
SAMPLING = Sampling()
TEAM = {"*": "team"}
RECIPE = Path(__file__).parents[1] / "recipes" / "tiny-arithmetic.toml"

MODES = (
    Mode(name="in turn, rounds", in_rounds=True),
    Mode(name="in turn", straddle="episodes"),
    Mode(name="lag 1, rounds", max_lag=1, in_rounds=True),
    Mode(name="lag 1", max_lag=1, straddle="episodes"),
    Mode(name="lag 2", max_lag=2, straddle="episodes"),
    Mode(name="lag 4", max_lag=4, straddle="episodes"),
    Mode(name="lag 2, early start", max_lag=2, straddle="episodes", early_start=True),
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run came to."""

    step_s: float
    episodes: tuple[Episode, ...]
    usage: Usage


def answer(request: GenerationRequest) -> str:
    """Return a verdict that rejects every third time, or a result."""
    if request.prompt.endswith("Verify."):
        return f"<verify>{'approve' if request.seed % 3 else 'reject'}</verify>"
    return f"\\boxed{{{request.seed % 10}}}"


def jobs_of(position: int) -> list[EpisodeJob]:
    group = f"step{position // PROMPTS + 1}/p{position % PROMPTS}"
    return [
        EpisodeJob(episode_id=f"{group}/g{member}", group_id=group, task_index=position, env_seed=position)
        for member in range(GROUP_SIZE)
    ]


def jobs_of_step(step: int) -> list[EpisodeJob]:
    return [job for place in range(PROMPTS) for job in jobs_of((step - 1) * PROMPTS + place)]


class Trainer:
    """Takes steps from a source and sleeps through their updates."""

    def __init__(self, mode: Mode, update_s: float) -> None:
        self.mode = mode
        self.update_s = update_s
        self.version = 0
        lengths = LogNormalLengths(median=MEDIAN_TOKENS, sigma=SIGMA)
        self.engine = SimulatedEngine(
            "team", answer, lengths, max_batch_size=MAX_ROWS, step_s=STEP_S, step_s_per_row=STEP_S_PER_ROW
        )
        self.collector = Collector(
            lambda: SolverVerifier(Arithmetic(), num_solvers=3, max_new_tokens=4000),
            {"team": self.engine},
            TEAM,
            mode="rounds" if mode.in_rounds else "asynchronous",
            num_workers=16,
        )
        self.source = self._source()

    def run(self) -> Measured:
        """Train, and measure the steps after the first few."""
        episodes: list[Episode] = []
        marks: list[float] = []
        try:
            for _ in range(WARMUP + STEPS):
                num_parts = NUM_PARTS if self.mode.early_start else 1
                for rollout in self.source.take():
                    episodes += rollout.episodes
                    time.sleep(self.update_s / num_parts)
                self.version += 1
                self.source.step_done(is_updated=True)
                marks.append(time.perf_counter())
        finally:
            self.source.close()
            self.collector.close()
        step_s = (marks[-1] - marks[WARMUP - 1]) / STEPS
        return Measured(step_s=step_s, episodes=tuple(episodes), usage=self.engine.usage)

    def _source(self) -> RolloutSource:
        more = 1 + self.mode.max_lag  # steps that are never taken, so that the last measured one is like the others
        common: dict[str, Any] = {
            "step": 0,
            "num_steps": WARMUP + STEPS + more,
            "max_lag": self.mode.max_lag,
        }
        if not self.mode.max_lag:
            return InTurn(self._collect, dict, jobs_of_step, step=0)
        if self.mode.in_rounds:
            return BatchesAhead(self._collect, self._snapshot, lambda weights: {}, jobs_of_step, **common)
        return GroupsAhead(
            lambda ends: self.collector.open_stream(ends, SAMPLING),
            self._snapshot,
            lambda weights: {},
            jobs_of,
            per_step=PROMPTS,
            num_parts=NUM_PARTS if self.mode.early_start else 1,
            **common,
        )

    def _snapshot(self) -> Weights:
        return Weights(version=self.version, by_policy={})

    def _collect(self, jobs: Sequence[EpisodeJob], check: Callable[[], None] = lambda: None) -> Rollout:
        return self.collector.collect(jobs, SAMPLING, lambda *_: check())


def as_workload(episodes: Sequence[Episode]) -> RecordedWorkload:
    def event_of(event: Any) -> SimulatedEvent:
        lengths = tuple(len(member.token_ids) for member in event.members)
        return SimulatedEvent(num_prompt_tokens=(0,) * len(lengths), num_tokens=lengths, env_s=0.0)

    shapes: list[SimulatedEpisode] = [tuple(event_of(event) for event in episode.events) for episode in episodes]
    return RecordedWorkload(shapes)


def scenario_of(usage: Usage, update_s: float) -> Scenario:
    """The engine as the run in turn found it: its sleeps last a little longer than they were asked to."""
    rows = usage.num_tokens / usage.num_steps
    step_s = usage.busy_s / usage.num_steps - STEP_S_PER_ROW * rows
    return load_scenario(
        None,
        [
            "gpus=2",
            f"prompts_per_step={PROMPTS}",
            f"group_size={GROUP_SIZE}",
            "num_steps=40",
            f"num_minibatches={NUM_PARTS}",
            f"engine.step_s={step_s}",
            f"engine.step_s_per_row={STEP_S_PER_ROW}",
            "engine.prefill_s_per_token=0.0",
            f"engine.max_rows={MAX_ROWS}",
            "update.gpu_s_per_token=0.0",
            f"update.step_s={update_s / NUM_PARTS}",
            "push.transfer_s=0.0",
            "push.swap_s=0.0",
        ],
    )


def check_scheduling(update_s: Sequence[float]) -> None:
    """Measure and predict every mode."""
    table = Table("update s", "mode", "measured s / step", "predicted", "error", "faster than in turn", "predicted")
    errors = []
    for seconds in update_s:
        base = Trainer(MODES[1], seconds).run()
        scenario, workload = scenario_of(base.usage, seconds), as_workload(base.episodes)
        expected_base = simulate(scenario, MODES[1], 1, workload).step_s
        for mode in MODES:
            measured = base if mode is MODES[1] else Trainer(mode, seconds).run()
            expected = simulate(scenario, mode, 1, workload).step_s
            errors.append(expected / measured.step_s - 1)
            table.add_row(
                f"{seconds:g}",
                mode.name,
                f"{measured.step_s:.2f}",
                f"{expected:.2f}",
                f"{errors[-1]:+.0%}",
                f"{base.step_s / measured.step_s:.2f}x",
                f"{expected_base / expected:.2f}x",
            )
    Console(width=120).print(table)
    print(f"mean error {statistics.mean(map(abs, errors)):.1%}, largest {max(map(abs, errors)):.1%}")


def check_training(num_steps: int) -> None:
    """Train the tiny policy in turn and one step off; predict the second from the first."""
    from srpo_train.config import load_recipe
    from srpo_train.loop import train
    from srpo_train.metrics import read_metrics

    common = ["eval.every=0", "log.tensorboard=false", "log.save_events=all", "train.checkpoint_every=100000"]
    common += ["log.role_gradients_every=0", "objective.correction=event", f"train.num_steps={num_steps}"]
    table = Table("mode", "measured s / step", "predicted", "error")
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for lag in (0, 1):
            overrides = [*common, f"rollout.max_lag={lag}", f"name=lag{lag}", f"output_dir={folder}"]
            runs[lag] = train(load_recipe(RECIPE, overrides))
        speeds = measured_speeds(runs[0])
        recipe = load_recipe(RECIPE)
        scenario = load_scenario(
            None,
            [
                "gpus=2",
                f"prompts_per_step={recipe.rollout.prompts_per_step}",
                f"group_size={recipe.rollout.group_size}",
                "num_steps=20",
                f"engine.step_s={speeds.step_s}",
                f"engine.step_s_per_row={speeds.step_s_per_row}",
                "engine.prefill_s_per_token=0.0",
                "engine.max_rows=512",
                f"update.gpu_s_per_token={speeds.update_s_per_token}",
                "update.step_s=0.0",
                "push.transfer_s=0.0",
                "push.swap_s=0.0",
            ],
        )
        workload = RecordedWorkload.of_run(runs[0])
        for lag, run in runs.items():
            seconds = [line["time/step_s"] for line in read_metrics(run) if line["step"] > 2]
            measured = statistics.mean(seconds)
            expected = simulate(scenario, Mode(name="rounds", max_lag=lag, in_rounds=True), 1, workload).step_s
            name = "in turn, rounds" if lag == 0 else "lag 1, rounds"
            table.add_row(name, f"{measured:.2f}", f"{expected:.2f}", f"{expected / measured - 1:+.0%}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=float, nargs="+", default=[1.5], help="seconds of an update")
    parser.add_argument("--real", action="store_true", help="train the tiny policy as well")
    parser.add_argument("--steps", type=int, default=12, help="training steps of the tiny policy")
    options = parser.parse_args()
    logging.getLogger("srpo_train").setLevel(logging.ERROR)
    check_scheduling(options.update)
    if options.real:
        check_training(options.steps)


if __name__ == "__main__":
    main()
