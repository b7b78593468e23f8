"""Who answers during a run: the engines of its policies with the right weights in them, and the collectors that ask."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srpo_envs.errors import NoEpisodeError
from srpo_train.collect import Collector, EpisodeJob, Rollout
from srpo_train.collect.environments import World
from srpo_train.collect.stream import Stream
from srpo_train.collect.tally import Ends
from srpo_train.config import Recipe
from srpo_train.distributed.collecting import RankCollector
from srpo_train.distributed.ranks import Ranks
from srpo_train.engines.background import as_streaming
from srpo_train.engines.base import Engine, Sampling
from srpo_train.engines.copied import CopiedEngine
from srpo_train.engines.publishing import PublishingEngine, push_metrics, weights_of
from srpo_train.evaluation import evaluate
from srpo_train.overlap.source import Weights
from srpo_train.places import Places
from srpo_train.policies.team import Team
from srpo_train.throughput.recorder import RECORDER

if TYPE_CHECKING:
    from torch import Tensor

    from srpo_train.distributed.sharding import ShardedModel

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Samplers:
    """The engines of a run, and what is asked of them.

    Args:
        recipe: The run.
        team: Its policies, whose weights the engines sample from.
        shards: Those of them that are spread over the ranks.
        ranks: The run's processes, which all make the same calls.
        places: Where engines and environments are.
        checkpoint: Where the policies' weights were read, if not where the recipe says.
    """

    def __init__(
        self,
        recipe: Recipe,
        team: Team,
        shards: Sequence[ShardedModel],
        ranks: Ranks,
        places: Places,
        checkpoint: Path | None = None,
    ) -> None:
        self._recipe = recipe
        self._team = team
        self._shards = shards
        self._ranks = ranks
        self._places = places
        self._is_elsewhere = places.is_sampling_elsewhere
        self._engines: dict[str, Engine] = {}
        with self._published_policies():
            if ranks.is_main or not self._is_elsewhere:
                self._engines = self._make_engines(checkpoint)
        self._publishing = {name: item for name, item in self._engines.items() if isinstance(item, PublishingEngine)}
        if recipe.rollout.mode == "asynchronous":
            self._engines = {policy_id: as_streaming(engine) for policy_id, engine in self._engines.items()}
        self._samplings = {name: sampling_of(recipe.sampling_of(name), is_trained_on=True) for name in recipe.policies}
        self._keep_per_group = recipe.rollout.group_size if recipe.rollout.oversample else None
        self._own_collector = self._make_collector(places.worlds(recipe.env))
        self._own_eval_collector = self._make_collector(places.worlds(recipe.eval_env))
        num_collecting = 1 if self._is_elsewhere else ranks.size
        # What samples ahead does so on a thread of one rank, where the others cannot be met.
        self._collector = (
            self._own_collector
            if recipe.rollout.max_lag
            else RankCollector(self._own_collector, ranks, num_collecting=num_collecting)
        )
        self._eval_collector = RankCollector(self._own_eval_collector, ranks, num_collecting=num_collecting)

    def close(self) -> None:
        """Release environments, threads and engines; safe to call more than once."""
        for collector in (self._own_collector, self._own_eval_collector):
            if collector:
                collector.close()
        for engine in self._engines.values():
            engine.close()

    # --- weights --------------------------------------------------------------------------------------------------

    def publish(self) -> dict[str, float]:
        """Bring engines with a copy of the weights up to date, before anything is sampled again.

        Returns:
            What it took, as metrics; nothing where no engine of this process has a copy.
        """
        with RECORDER.phase("publish"), self._published_policies():
            published = [policy for policy in self._team.trained if policy.policy_id in self._publishing]
            return self._give((policy.policy_id, policy.version, weights_of(policy)) for policy in published)

    def snapshot(self) -> Weights:
        """Copy the trained weights into ordinary memory, for engines that are to have them later.

        A rank without engines helps to put them together, and keeps none.
        """
        trained = self._team.trained
        with self._published_policies():
            copied = trained if self._engines else ()
            return Weights(
                version=max(policy.version for policy in trained),
                by_policy={policy.policy_id: (policy.version, _copied(weights_of(policy))) for policy in copied},
            )

    def push(self, weights: Weights) -> dict[str, float]:
        """Give copied weights to the engines, at rest, from any thread; return what it took, as metrics."""
        return self._give((name, version, tensors.items()) for name, (version, tensors) in weights.by_policy.items())

    def _give(self, weights: Iterable[tuple[str, int, Iterable[tuple[str, Tensor]]]]) -> dict[str, float]:
        reports = []
        for policy_id, version, tensors in weights:
            if policy_id in self._publishing:
                with RECORDER.span("take weights", "publish", track=f"engine {policy_id}"):
                    reports.append(self._publishing[policy_id].publish(version, tensors))
        return push_metrics(reports)

    def release_memory(self) -> None:
        """Give accelerator memory back for an update, where engines can."""
        for engine in self._publishing.values():
            engine.release_memory()

    @contextlib.contextmanager
    def _sampling_policies(self) -> Iterator[None]:
        """Let engines that sample from the trainer's own models do so in the body, whoever holds the parts of them."""
        with contextlib.ExitStack() as stack:
            for shards in () if self._is_elsewhere else self._shards:
                stack.enter_context(shards.assembled())
            yield

    @contextlib.contextmanager
    def _published_policies(self) -> Iterator[None]:
        """Let engines that hold a copy of the weights be given them in the body, whoever holds the parts of them."""
        with contextlib.ExitStack() as stack:
            for shards in self._shards if self._is_elsewhere else ():
                stack.enter_context(shards.streamed())
            yield

    # --- asking ---------------------------------------------------------------------------------------------------

    def collect(self, jobs: Sequence[EpisodeJob], check: Callable[[], None] = lambda: None) -> Rollout:
        """Collect a step, again and again while nothing comes through: a search server may be on its way back.

        Args:
            jobs: Its episodes.
            check: Called now and then; what it raises ends the collection.

        Raises:
            NoEpisodeError: it never was.
        """
        assert self._collector is not None
        collect = functools.partial(
            self._collector.collect, jobs, self._samplings, lambda *_: check(), keep_per_group=self._keep_per_group
        )
        pause_s = _FIRST_PAUSE_S
        with RECORDER.span("collect", "collect", episodes=len(jobs)), self._sampling_policies():
            for _ in range(self._recipe.rollout.lost_step_retries):
                try:
                    return collect()
                except NoEpisodeError as error:
                    logger.warning("the step is lost and tried again in %.0f s: %s", pause_s, error)
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return collect()

    def open_stream(self, ends: Ends) -> Stream:
        """Open a collection without an end; in a run of one process."""
        assert self._own_collector is not None
        return self._own_collector.open_stream(ends, self._samplings, keep_per_group=self._keep_per_group)

    def evaluate(self) -> dict[str, float]:
        """Answer the held-out questions and return ``eval/...`` metrics."""
        settings = self._recipe.eval
        with RECORDER.phase("evaluate"), self._sampling_policies():
            result = evaluate(
                self._eval_collector,
                num_tasks=settings.num_tasks,
                samples_per_task=settings.samples_per_task,
                sampling=sampling_of(settings),
                seed=self._recipe.seed,
            )
        return result.metrics

    def _make_engines(self, checkpoint: Path | None) -> dict[str, Engine]:
        """The engines of the recipe; those in this process have own models where they sample during updates."""
        recipe = self._recipe
        if not recipe.rollout.max_lag or self._is_elsewhere or recipe.engine.kind != "transformers":
            return self._places.engines(self._team)
        copies = Team.load(recipe.policy_specs(checkpoint), self._team.roles)
        for copy in copies:
            copy.version = self._team[copy.policy_id].version
        return {copy.policy_id: CopiedEngine(copy, max_batch_tokens=recipe.engine.max_batch_tokens) for copy in copies}

    def _make_collector(self, make_env: Callable[[], World]) -> Collector | None:
        """A collector on every rank that has engines."""
        settings = self._recipe.rollout
        if not self._engines:
            return None
        return Collector(
            make_env,
            self._engines,
            self._team.roles,
            seed=self._recipe.seed,
            mode=settings.mode,
            max_concurrent=settings.max_concurrent,
            num_workers=settings.num_workers,
            step_retries=settings.step_retries,
            step_timeout_s=settings.step_timeout_s,
            straggler_grace_s=settings.straggler_grace_s,
            request_timeout_s=settings.request_timeout_s,
            episode_timeout_s=settings.episode_timeout_s,
        )


def _copied(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}


def sampling_of(settings: Any, *, is_trained_on: bool = False) -> Sampling:
    """Return how tokens are drawn, from a section of a recipe that says so; training also needs what was left."""
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        with_kept=is_trained_on and settings.top_k > 0,
    )
