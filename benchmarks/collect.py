"""Rounds against asynchronous collection on a simulated engine: wall time, idle engine, rows in a decoding step.

Run it with ``python benchmarks/collect.py``; it takes about two minutes, nearly all of them asleep. There is no model:
`SimulatedEngine` batches continuously, up to 64 rows, and sleeps through each decoding step. Time is scaled down by
20 and responses by 5: a step of 1.25 ms plus 5 us a row stands for 25 ms plus 0.1 ms a row, a median response of 60
tokens for 300. Lengths are log-normal (sigma 1: one response in a hundred is ten times the median), and so are the
latencies of the search tool (median 20 ms for 400 ms, sigma 0.8). All contestants draw the same lengths and latencies,
because both belong to the seed of a request or an episode; the script checks that their records are equal.

Workloads: ``team`` is three drafts, a verdict, revisions, an answer, and no tool; ``search`` is two turns of two
searchers, each followed by two searches, and an answer.

Contestants: ``rounds``; ``asynchronous``; and ``asynchronous`` with an engine that has only `generate`, behind
`BackgroundEngine`. ``idle`` is the share of the wall time in which the engine decodes nothing. An engine that decodes
one long response for a whole round is not idle but wasted, which ``rows`` shows: the mean number of rows in a step.

The last table is the price of over-sampling: what is kept is shorter than what was asked for.
"""

from __future__ import annotations

import argparse
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.records import Episode
from srpo_envs.schedule import Role, Schedule
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.tasks.base import Task
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector, EpisodeJob, Mode
from srpo_train.engines.background import BackgroundEngine
from srpo_train.engines.base import Engine, GenerationRequest, Sampling
from srpo_train.engines.simulated import LogNormalLengths, SimulatedEngine

MEDIAN_TOKENS = 60
STEP_S, STEP_S_PER_ROW, MAX_ROWS = 1.25e-3, 5e-6, 64
MEDIAN_SEARCH_S = 0.02
EPISODES_PER_SEAT = 2
"""Episodes to collect for each that may run at once: the second begins where a first one has ended."""


class SearchTeam(SetEnv):
    """Two searchers look something up, twice; an answerer reads what they found."""

    def __init__(self, tasks: Arithmetic) -> None:
        roles = (
            Role("searcher", prompt="$question$found Search.", parse=parse_boxed_answer, seats=2, max_new_tokens=4000),
            Role("answerer", prompt="$question$found Answer.", parse=parse_boxed_answer, max_new_tokens=4000),
        )
        super().__init__(tasks, roles)

    def schedule(self, task: Task) -> Schedule:
        """Search, search again with what was found, answer."""
        found = ""
        for _ in range(2):
            queries = yield self.ask("searcher", count=2, found=found)
            for query in queries:
                latency_s = MEDIAN_SEARCH_S * float(np.exp(0.8 * self.rng.standard_normal()))
                found += self.call_tool("search", self._search, query=query.text, latency_s=latency_s)
        (final,) = yield self.ask("answerer", found=found)
        return self.outcome(final)

    @staticmethod
    def _search(query: str, latency_s: float) -> str:
        time.sleep(latency_s)
        return " hit"


def answer(request: GenerationRequest) -> str:
    """Return a verdict that rejects every second time, or a result."""
    if request.prompt.endswith("Verify."):
        return f"<verify>{'approve' if request.seed % 2 else 'reject'}</verify>"
    return f"\\boxed{{{request.seed % 10}}}"


WORKLOADS: dict[str, Callable[[], SetEnv]] = {
    "team": functools.partial(SolverVerifier, Arithmetic(), num_solvers=3, max_new_tokens=4000),
    "search": functools.partial(SearchTeam, Arithmetic()),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one contestant did."""

    episodes: tuple[Episode, ...]
    wall_s: float
    idle: float
    rows: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens of finished episodes a second."""
        return sum(episode.num_tokens for episode in self.episodes) / self.wall_s


def run(
    workload: str,
    mode: Mode,
    *,
    num_groups: int,
    group_size: int,
    max_concurrent: int,
    is_blocking: bool = False,
    oversample: int = 0,
) -> Result:
    """Collect once and measure."""
    lengths = LogNormalLengths(median=MEDIAN_TOKENS, sigma=1.0)
    simulated = SimulatedEngine(
        "team", answer, lengths, max_batch_size=MAX_ROWS, step_s=STEP_S, step_s_per_row=STEP_S_PER_ROW
    )
    engine: Engine = BackgroundEngine(simulated) if is_blocking else simulated
    collector = Collector(
        WORKLOADS[workload], {"team": engine}, {"*": "team"}, mode=mode, max_concurrent=max_concurrent, num_workers=64
    )
    jobs = [
        EpisodeJob(
            episode_id=f"p{group}/g{member}", group_id=f"p{group}", task_index=group, env_seed=97 * group + member
        )
        for group in range(num_groups)
        for member in range(group_size + oversample)
    ]
    begun = time.perf_counter()
    rollout = collector.collect(jobs, Sampling(), keep_per_group=group_size if oversample else None)
    wall_s = time.perf_counter() - begun
    collector.close()
    engine.close()
    usage = simulated.usage
    return Result(
        episodes=rollout.episodes,
        wall_s=wall_s,
        idle=1 - usage.busy_s / wall_s,
        rows=usage.num_tokens / usage.num_steps,
    )


def compare_modes(concurrencies: list[int]) -> None:
    print(f"{'workload':10}{'at once':>8}  {'contestant':28}{'wall s':>8}{'idle':>7}{'rows':>7}{'tokens/s':>10}{'':>8}")
    for workload in WORKLOADS:
        for concurrency in concurrencies:
            case = {"num_groups": EPISODES_PER_SEAT * concurrency, "group_size": 1, "max_concurrent": concurrency}
            results = {
                "rounds": run(workload, "rounds", **case),
                "asynchronous": run(workload, "asynchronous", **case),
                "asynchronous, only generate": run(workload, "asynchronous", is_blocking=True, **case),
            }
            base = results["rounds"]
            for name, result in results.items():
                assert result.episodes == base.episodes, f"{name} gave other records than rounds"
                print(
                    f"{workload:10}{concurrency:8}  {name:28}{result.wall_s:8.2f}{result.idle:7.0%}{result.rows:7.1f}"
                    f"{result.tokens_per_s:10,.0f}{base.wall_s / result.wall_s:7.2f}x"
                )


def show_oversampling(num_groups: int, group_size: int) -> None:
    print(f"\nteam, {num_groups} groups of {group_size}, asynchronous, all at once")
    print(f"{'begun beyond':>14}{'wall s':>8}{'tokens an episode':>19}{'of it all':>11}")
    whole = None
    for oversample in (0, 1, 2, 4):
        result = run(
            "team",
            "asynchronous",
            num_groups=num_groups,
            group_size=group_size,
            max_concurrent=num_groups * (group_size + oversample),
            oversample=oversample,
        )
        tokens = sum(episode.num_tokens for episode in result.episodes) / len(result.episodes)
        whole = whole or tokens
        print(f"{oversample:14}{result.wall_s:8.2f}{tokens:19.0f}{tokens / whole:11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrent", type=int, nargs="+", default=[8, 32, 128], help="episodes that run at once")
    options = parser.parse_args()
    logging.getLogger("srpo_train").setLevel(logging.ERROR)
    compare_modes(options.concurrent)
    show_oversampling(num_groups=8, group_size=8)


if __name__ == "__main__":
    main()
