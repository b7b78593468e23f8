"""Resumable evaluation of several benchmarks into a directory, every sample kept.

::

    plan = EvalPlan(source="me", method="mine", model="mine", samples=16, worlds={"math500": World.open(...)})
    results = run_evaluation(plan, Path("evals/mine"), {"policy": engine}, {"*": "policy"})

A sample's random numbers follow from seed, task and number of the sample alone, so an evaluation that was killed and
continued draws what one that was not would have drawn. What a sample left behind:

- a finished episode: in `samples.jsonl`, right or wrong;
- the team brought itself where no policy can answer (a prompt beyond the context, an agent that raises): wrong, with
  its reason in `failed.jsonl`;
- broken surroundings (an endpoint, a grader): lost, with its reason in `failed.jsonl`; counted apart, in no score, and
  tried again when the evaluation is continued.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from srpo_envs.errors import NoEpisodeError, RecordError
from srpo_envs.records import Episode
from srpo_train.collect import Collector, EpisodeJob, FailedEpisode, Mode, derive_seed
from srpo_train.engines.base import Engine
from srpo_train.evaluation.plan import EvalPlan, World, claimed_eval_dir
from srpo_train.evaluation.results import (
    RESULTS_FILE,
    BenchmarkResult,
    Results,
    SeedResult,
    read_results,
    write_results,
)
from srpo_train.evaluation.samples import FailedSample, SampleFiles, failed_sample
from srpo_train.evaluation.tally import Tally

BATCH_SIZE = 512
"""Samples that are collected by one call and held in memory meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far an evaluation is."""

    benchmark: str
    """What is being evaluated."""
    seed: int
    """Under which seed."""
    num_done: int
    """Samples of it that have an end."""
    num_samples: int
    """Samples of it in all."""
    share_correct: float | None
    """Share of correct samples so far; None before the first."""


OnProgress = Callable[[Progress], None]


def run_evaluation(
    plan: EvalPlan,
    directory: Path,
    engines: Mapping[str, Engine],
    roles: Mapping[str, str],
    *,
    mode: Mode = "rounds",
    max_concurrent: int = BATCH_SIZE,
    batch_size: int = BATCH_SIZE,
    on_progress: OnProgress | None = None,
) -> Results:
    """Draw every sample of a plan that the directory does not hold yet, and score all of them.

    Args:
        plan: What to evaluate.
        directory: Where samples and results are kept; one that holds an interrupted evaluation of this plan is
            continued, and seeds and benchmarks are added to those there.
        engines: Engine of each policy id.
        roles: Policy id of each role.
        mode: Order of work of the collector.
        max_concurrent: Samples under way at once.
        batch_size: Samples that are collected by one call; decides the memory, not the samples.
        on_progress: Called as samples end.

    Returns:
        What `results.json` of the directory holds: this plan, and what was evaluated there before.

    Raises:
        ConfigError: the directory holds another evaluation, or a role has no policy.
        EngineError: an engine failed as a whole; what was drawn is kept.
        NoEpisodeError: not one of a whole batch of new samples came through; what was drawn is kept.
        RecordError: a file of the directory is damaged.
    """
    with claimed_eval_dir(directory, plan) as whole:
        results = _results_so_far(directory, whole)
        for name, world in plan.worlds.items():
            collector = Collector(world.make_env, engines, roles, mode=mode, max_concurrent=max_concurrent)
            try:
                for seed in plan.seeds:
                    pair = _Pair(name, world, seed, plan, on_progress)
                    if pair.is_complete(results):
                        continue
                    pair.restore(directory)
                    try:
                        pair.draw(collector, batch_size)
                    finally:
                        results = _with(results, pair)
                        write_results(directory, results)
            finally:
                collector.close()
        return results


class _Pair:
    """One benchmark under one seed."""

    def __init__(self, name: str, world: World, seed: int, plan: EvalPlan, on_progress: OnProgress | None) -> None:
        self.name = name
        self.world = world
        self.seed = seed
        self._sampling = plan.sampling
        self._on_progress = on_progress
        self._task_ids = world.task_ids
        self._jobs = [self._job(*numbers) for numbers in itertools.product(range(world.num_tasks), range(plan.samples))]
        self._tally = Tally()
        self._settled: set[str] = set()
        self._lost: set[str] = set()

    def is_complete(self, results: Results) -> bool:
        """Whether results hold every sample already."""
        found = results.benchmarks[self.name].seeds.get(self.seed) if self.name in results.benchmarks else None
        return found is not None and found.num_samples == len(self._jobs)

    def restore(self, directory: Path) -> None:
        """Count what is there, and learn which samples have an end and which were lost.

        Raises:
            RecordError: a file is damaged, or holds a sample twice or one of another evaluation.
        """
        self._files = SampleFiles(directory / self.name / f"seed-{self.seed}")
        expected = {job.episode_id for job in self._jobs}
        for episode in self._files.episodes():
            self._settle(episode.episode_id, expected)
            self._tally.add(episode)
        wrong, lost = self._files.take_failed()
        for sample in wrong:
            self._settle(sample.episode_id, expected)
            self._tally.add_wrong(sample.task_id, sample.reason)
        self._lost = {sample.episode_id for sample in lost}

    def _settle(self, episode_id: str, expected: Set[str]) -> None:
        """Note that a sample has an end, so that each counts once and no other does."""
        if episode_id not in expected or episode_id in self._settled:
            what = "is there twice" if episode_id in self._settled else "is not of this evaluation"
            raise RecordError(f"{self._files.folder}: sample {episode_id!r} {what}; its files were edited, remove it")
        self._settled.add(episode_id)

    def draw(self, collector: Collector, batch_size: int) -> None:
        """Draw what is missing.

        Raises:
            NoEpisodeError: not one of a batch of new samples came through.
        """
        self._report()
        # What was lost before comes last: it may be lost again, and should hold nothing else up.
        jobs = [job for job in self._jobs if job.episode_id not in self._settled]
        jobs.sort(key=lambda job: job.episode_id in self._lost)
        for batch in _batches(jobs, batch_size):
            num_lost = self._tally.num_failed
            try:
                collector.collect(batch, self._sampling, on_end=self._take)
            except NoEpisodeError:
                is_news = any(job.episode_id not in self._lost for job in batch)
                if is_news and self._tally.num_failed > num_lost:  # else all are wrong, or were lost before
                    raise

    def result(self) -> SeedResult:
        """Return what was counted so far."""
        return self._tally.result(self._task_ids)

    def _job(self, task_index: int, sample: int) -> EpisodeJob:
        task_id = self._task_ids[task_index]
        group_id = f"{self.name}/seed-{self.seed}/{task_id}"
        return EpisodeJob(
            episode_id=f"{group_id}/k{sample}",
            group_id=group_id,
            task_index=task_index,
            env_seed=derive_seed("eval", self.seed, task_id),
        )

    def _take(self, ended: Episode | FailedEpisode) -> None:
        """Keep a sample, then count it."""
        if isinstance(ended, Episode):
            self._files.add(ended)
            self._tally.add(ended)
        else:
            self._take_failed(failed_sample(ended, self._task_ids[ended.job.task_index]))
        self._report()

    def _take_failed(self, sample: FailedSample) -> None:
        self._files.add_failed(sample)
        if sample.is_wrong:
            self._tally.add_wrong(sample.task_id, sample.reason)
        else:
            self._tally.add_lost(sample.reason)

    def _report(self) -> None:
        """Say how far it is."""
        if self._on_progress:
            self._on_progress(
                Progress(
                    benchmark=self.name,
                    seed=self.seed,
                    num_done=self._tally.num_samples + self._tally.num_failed,
                    num_samples=len(self._jobs),
                    share_correct=self._tally.share_correct,
                )
            )


def _batches(jobs: Sequence[EpisodeJob], size: int) -> Iterator[Sequence[EpisodeJob]]:
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


def _results_so_far(directory: Path, plan: EvalPlan) -> Results:
    """Results of what the directory holds, described as the plan of the whole directory does."""
    first = next(iter(plan.worlds.values()))
    found = read_results(directory).benchmarks if (directory / RESULTS_FILE).is_file() else {}
    return Results(
        method=plan.method,
        model=plan.model,
        source=plan.source,
        samples=plan.samples,
        budget=first.env_kwargs.get("budget"),
        benchmarks={name: found[name] for name in plan.worlds if name in found},
    )


def _with(results: Results, pair: _Pair) -> Results:
    world = pair.world
    known = results.benchmarks[pair.name].seeds if pair.name in results.benchmarks else {}
    benchmark = BenchmarkResult(
        env_id=world.env_id,
        num_tasks=world.num_tasks,
        set_size=world.set_size,
        expected_tasks=world.expected_tasks,
        digest=world.digest,
        seeds=dict(sorted({**known, pair.seed: pair.result()}.items())),
    )
    return replace(results, benchmarks={**results.benchmarks, pair.name: benchmark})
