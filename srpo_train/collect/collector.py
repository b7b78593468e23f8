"""`Collector`: environments, engines and settings; each call of `collect` is one `Collection`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, get_args

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.collect.asynchronous import Asynchronous
from srpo_train.collect.collection import Collection
from srpo_train.collect.environments import EnvPool, World
from srpo_train.collect.jobs import EpisodeJob, OnEnd, Rollout
from srpo_train.collect.requests import Requester
from srpo_train.collect.rounds import Rounds
from srpo_train.collect.stream import Stream
from srpo_train.collect.tally import Ends, Tally
from srpo_train.engines.base import Engine, Sampling, StreamingEngine

Mode = Literal["rounds", "asynchronous"]
"""Order of work."""


class Collects(Protocol):
    """Whatever brings back the episodes of jobs, as `Collector.collect` does."""

    def collect(
        self,
        jobs: Sequence[EpisodeJob],
        sampling: Sampling | Mapping[str, Sampling],
        on_progress: Callable[[int, int], None] | None = None,
        *,
        keep_per_group: int | None = None,
    ) -> Rollout:
        """Run every job to its end and return the episodes in job order."""
        ...


class Collector:
    """Collects episodes with one engine per policy.

    Args:
        make_env: Makes one environment; called once per concurrent episode, the environments are then reused.
        engines: Engine of each policy id; `StreamingEngine`s for the asynchronous mode.
        roles: Policy id of each role; ``*`` stands for every role not named.
        seed: Decides, with each request's id, every sampled token.
        mode: Order of work.
        max_concurrent: Episodes that may run at once.
        num_workers: Environment steps that may run at once.
        step_retries: Further tries of a failed environment step or response before its episode is dropped.
        step_timeout_s: How long one environment step may take before its episode is dropped.
        straggler_grace_s: How long a round waits for slow environments before it generates without them; ``rounds``
            only.
        request_timeout_s: How long one try of a response may take before its episode is dropped, the wait in the
            engine's queue included; ``asynchronous`` only.
        episode_timeout_s: How long an episode may take before it is dropped; ``asynchronous`` only.

    Raises:
        ConfigError: an unknown mode, or an engine that cannot work in it.
    """

    def __init__(
        self,
        make_env: Callable[[], World],
        engines: Mapping[str, Engine],
        roles: Mapping[str, str],
        *,
        seed: int = 0,
        mode: Mode = "rounds",
        max_concurrent: int = 512,
        num_workers: int = 8,
        step_retries: int = 2,
        step_timeout_s: float = 60.0,
        straggler_grace_s: float = 10.0,
        request_timeout_s: float = math.inf,
        episode_timeout_s: float = math.inf,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"collector: unknown mode {mode!r}{near_miss(mode, get_args(Mode))}")
        self._engines = dict(engines)
        self._streaming = _streaming(engines) if mode == "asynchronous" else None
        self._requester = Requester(roles, self._engines, seed)
        self._max_concurrent = max_concurrent
        self._step_retries = step_retries
        self._step_timeout_s = step_timeout_s
        self._straggler_grace_s = straggler_grace_s
        self._request_timeout_s = request_timeout_s
        self._episode_timeout_s = episode_timeout_s
        self._envs = EnvPool(make_env, num_workers, step_retries)

    def collect(
        self,
        jobs: Sequence[EpisodeJob],
        sampling: Sampling | Mapping[str, Sampling],
        on_progress: Callable[[int, int], None] | None = None,
        *,
        keep_per_group: int | None = None,
        on_end: OnEnd | None = None,
    ) -> Rollout:
        """Run every job to its end and return the episodes in job order.

        Args:
            jobs: Episodes to collect, with distinct ids.
            sampling: How tokens are drawn, by all policies or by each.
            on_progress: Called with (episodes done, episodes in all) as they end.
            keep_per_group: Keep the first so many episodes of each group that finish and give up the others;
                ``asynchronous`` only. What is kept is shorter than what was asked for, see ``docs/engines.md``.
            on_end: Called with each episode as it finishes or is dropped, in this thread.

        Raises:
            ConfigError: groups are to be cut short in rounds, or a role has no policy.
            EngineError: an engine failed as a whole, after its retries.
            NoEpisodeError: not one episode came through; carries the first reason.
            SrpoError: the environments are driven wrongly or cannot work, such as one whose index does not exist.
            ValueError: two jobs share an id.
        """
        if keep_per_group is not None and self._streaming is None:
            raise ConfigError("collector: over-sampled groups need mode 'asynchronous'; rounds keep every episode")
        tally = Tally(jobs, on_end)
        collection = self._collection(tally, keep_per_group)
        collection.add(jobs)
        try:
            self._driver(collection, sampling).run(
                lambda: on_progress(tally.num_done, len(jobs)) if on_progress else None
            )
        except BaseException:
            collection.abandon()
            raise
        return tally.rollout(
            num_stragglers=collection.num_stragglers,
            generate_s=collection.generate_s,
            env_s=collection.env_s,
            num_retries=collection.num_retries,
        )

    def open_stream(
        self, ends: Ends, sampling: Sampling | Mapping[str, Sampling], *, keep_per_group: int | None = None
    ) -> Stream:
        """Return a collection without an end, which jobs join while others run; ``asynchronous`` only.

        Args:
            ends: Told of each episode as it ends.
            sampling: How tokens are drawn, by all policies or by each.
            keep_per_group: As in `collect`.

        Raises:
            ConfigError: the collector works in rounds.
        """
        if self._streaming is None:
            raise ConfigError("collector: an open stream needs mode 'asynchronous'; rounds have an end")
        collection = self._collection(ends, keep_per_group)
        return Stream(collection, self._asynchronous(self._streaming, collection, sampling))

    def close(self) -> None:
        """Release environments and worker threads; safe to call more than once."""
        self._envs.close()

    def _driver(self, collection: Collection, sampling: Sampling | Mapping[str, Sampling]) -> Rounds | Asynchronous:
        if self._streaming is None:
            return Rounds(
                collection,
                self._engines,
                self._requester,
                sampling,
                retries=self._step_retries,
                grace_s=self._straggler_grace_s,
            )
        return self._asynchronous(self._streaming, collection, sampling)

    def _asynchronous(
        self,
        engines: Mapping[str, StreamingEngine],
        collection: Collection,
        sampling: Sampling | Mapping[str, Sampling],
    ) -> Asynchronous:
        return Asynchronous(
            collection,
            engines,
            self._requester,
            sampling,
            retries=self._step_retries,
            request_timeout_s=self._request_timeout_s,
            episode_timeout_s=self._episode_timeout_s,
        )

    def _collection(self, ends: Ends, keep_per_group: int | None) -> Collection:
        return Collection(
            self._envs,
            self._requester,
            ends,
            max_concurrent=self._max_concurrent,
            step_timeout_s=self._step_timeout_s,
            keep_per_group=keep_per_group,
        )


def _reporter(tally: Tally, num_jobs: int, on_progress: Callable[[int, int], None] | None) -> Callable[[], None]:
    """Return what tells of progress whenever there is some."""
    num_told = -1

    def report() -> None:
        nonlocal num_told
        if on_progress and tally.num_done > num_told:
            num_told = tally.num_done
            on_progress(num_told, num_jobs)

    return report


def _streaming(engines: Mapping[str, Engine]) -> dict[str, StreamingEngine]:
    streaming = {name: engine for name, engine in engines.items() if isinstance(engine, StreamingEngine)}
    if missing := sorted(set(engines) - set(streaming)):
        raise ConfigError(
            f"collector: the engines of {missing} have only `generate`; use mode 'rounds', or wrap them in "
            "srpo_train.engines.background.BackgroundEngine"
        )
    return streaming
