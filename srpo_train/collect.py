"""The collector: drives many set-valued environments at once and batches their prompts by policy.

Generation runs in rounds. A round takes every pending event, samples all members of all of them in one batch per
policy, and hands the complete sets to worker threads, where the environments move. The next round starts when all of
them have moved, which keeps the batches, and so the floating-point results, the same in every run; an environment that
needs longer than the grace period joins a later round, and one that fails or hangs is dropped and counted. Nothing here
knows any particular environment.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from srpo_envs.core import SetEnv
from srpo_envs.errors import (
    ConfigError,
    EngineError,
    EnvMisuseError,
    JavaRuntimeError,
    MemberMismatchError,
    MissingExtraError,
    MissingPackageError,
    NoEpisodeError,
    SearchIndexError,
    SurroundingsError,
    UnknownIdError,
    near_miss,
)
from srpo_envs.records import ActiveSet, Episode, Member, MemberOutput
from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling, sampling_of
from srpo_train.roles import policy_id_of
from srpo_train.workers import StepWorkers

logger = logging.getLogger(__name__)

# A retriever or sandbox that restarts needs a moment; the pauses count against the step's time limit.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

_MISUSE = (
    ConfigError,
    EnvMisuseError,
    JavaRuntimeError,
    MemberMismatchError,
    MissingExtraError,
    MissingPackageError,
    SearchIndexError,
    UnknownIdError,
)
"""An environment driven wrongly, or one that lacks what it needs: every episode would meet it, so none is dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeJob:
    """One episode to collect."""

    episode_id: str
    """Unique within the run; also decides the sampling seeds of all its responses."""
    group_id: str
    """Rollouts of one prompt share it."""
    task_index: int
    """Which task of the environment."""
    env_seed: int
    """Seed of the environment's own randomness; a group shares it, so that its members face the same world."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedEpisode:
    """An episode that was dropped, with the reason."""

    job: EpisodeJob
    """What was asked for."""
    reason: str
    """What went wrong, in one line."""
    num_events: int
    """Events that had been completed."""
    is_unanswerable: bool = False
    """The team brought itself where no policy can answer, such as a prompt beyond the context; not bad surroundings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """What one collection brought back."""

    episodes: tuple[Episode, ...]
    """Finished episodes in job order."""
    failed: tuple[FailedEpisode, ...]
    """Dropped episodes in job order."""
    num_stragglers: int
    """Environment steps that missed their round."""
    generate_s: float
    """Seconds in engines."""
    env_s: float
    """Seconds spent waiting for environments."""


@dataclass(slots=True)
class _Slot:
    """One running episode."""

    order: int
    job: EpisodeJob
    env: SetEnv
    pending: ActiveSet | None = None
    started: float = math.inf  # when a worker took the step up; waiting for a worker does not count against the limit
    is_late: bool = False


@dataclass(slots=True)
class _Progress:
    """Bookkeeping of one call to `collect`."""

    waiting: deque[tuple[int, EpisodeJob]]
    moving: dict[int, _Slot] = field(default_factory=dict)
    ready: list[_Slot] = field(default_factory=list)
    finished: dict[str, Episode] = field(default_factory=dict)
    failed: dict[str, FailedEpisode] = field(default_factory=dict)
    num_stragglers: int = 0
    generate_s: float = 0.0
    env_s: float = 0.0


class Collector:
    """Collects episodes with one engine per policy.

    Args:
        make_env: Makes one environment; called once per concurrent episode, the environments are then reused.
        engines: Engine of each policy id.
        roles: Policy id of each role; ``*`` stands for every role not named.
        seed: Decides, with each request's id, every sampled token.
        max_concurrent: Episodes that may run at once.
        num_workers: Environment steps that may run at once.
        step_retries: Further tries of a failed environment step or response before its episode is dropped.
        straggler_grace_s: How long a round waits for slow environments before it generates without them.
        step_timeout_s: How long one environment step may take before its episode is dropped.
    """

    def __init__(
        self,
        make_env: Callable[[], SetEnv],
        engines: Mapping[str, Engine],
        roles: Mapping[str, str],
        *,
        seed: int = 0,
        max_concurrent: int = 512,
        num_workers: int = 8,
        step_retries: int = 2,
        straggler_grace_s: float = 10.0,
        step_timeout_s: float = 60.0,
    ) -> None:
        self._make_env = make_env
        self._engines = dict(engines)
        self._roles = dict(roles)
        self._seed = seed
        self._max_concurrent = max_concurrent
        self._step_retries = step_retries
        self._straggler_grace_s = straggler_grace_s
        self._step_timeout_s = step_timeout_s
        self._idle_envs: list[SetEnv] = []
        self._workers = StepWorkers(num_workers)

    def collect(
        self,
        jobs: Sequence[EpisodeJob],
        sampling: Sampling | Mapping[str, Sampling],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Rollout:
        """Run every job to its end and return the episodes in job order.

        Args:
            jobs: Episodes to collect, with distinct ids.
            sampling: How tokens are drawn, by all policies or by each.
            on_progress: Called with (episodes done, episodes in all) after every round.

        Raises:
            EngineError: an engine failed as a whole, after its retries.
            NoEpisodeError: not one episode came through; carries the first reason.
            SrpoError: the environments are driven wrongly or cannot work, such as one whose index does not exist.
        """
        if len({job.episode_id for job in jobs}) != len(jobs):
            raise ValueError("jobs: two jobs share an episode_id; ids must be unique within a collection")
        progress = _Progress(waiting=deque(enumerate(jobs)))
        while progress.waiting or progress.moving or progress.ready:
            self._start_waiting(progress)
            self._gather(progress)
            self._generate_round(progress, sampling)
            if on_progress:
                on_progress(len(progress.finished) + len(progress.failed), len(jobs))
        return self._conclude(jobs, progress)

    def close(self) -> None:
        """Release environments and worker threads; safe to call more than once."""
        for env in self._idle_envs:
            env.close()
        self._idle_envs.clear()
        self._workers.close()

    # --- environments ---------------------------------------------------------------------------------------------

    def _start_waiting(self, progress: _Progress) -> None:
        while progress.waiting and len(progress.moving) + len(progress.ready) < self._max_concurrent:
            order, job = progress.waiting.popleft()
            env = self._idle_envs.pop() if self._idle_envs else self._make_env()
            self._move(_Slot(order, job, env), _reset_call(env, job), progress)

    def _move(self, slot: _Slot, call: Callable[[], ActiveSet | None], progress: _Progress) -> None:
        """Run one environment call on a worker, trying again while its surroundings fail."""
        slot.started, slot.is_late = math.inf, False

        def run() -> ActiveSet | None:
            slot.started = time.monotonic()
            return _with_retries(call, self._step_retries)

        progress.moving[self._workers.submit(run)] = slot

    def _gather(self, progress: _Progress) -> None:
        """Wait until every environment has moved, or the grace period is over and there is something to generate."""
        begun = time.monotonic()
        while progress.moving:
            waited = time.monotonic() - begun
            if progress.ready and waited >= self._straggler_grace_s:
                break
            # What has already arrived needs no deadline, which costs a look at every running episode.
            finished = self._workers.wait(0.0) or self._workers.wait(self._next_deadline(progress, begun))
            if finished is None:
                self._drop_hung(progress)
            elif (slot := progress.moving.pop(finished.key, None)) is not None:
                self._arrive(slot, finished.value, finished.error, progress)
        for slot in progress.moving.values():
            progress.num_stragglers += not slot.is_late
            slot.is_late = True
        # A round's batch is ordered by job, not by arrival, so that its numbers do not depend on thread timing.
        progress.ready.sort(key=lambda slot: slot.order)
        progress.env_s += time.monotonic() - begun

    def _next_deadline(self, progress: _Progress, begun: float) -> float:
        """Seconds until a slow environment must be given up, or until the grace period ends."""
        now = time.monotonic()
        oldest = min(min(slot.started for slot in progress.moving.values()), now)
        hung_in = oldest + self._step_timeout_s - now
        return min(hung_in, begun + self._straggler_grace_s - now) if progress.ready else hung_in

    def _arrive(self, slot: _Slot, active: ActiveSet | None, error: BaseException | None, progress: _Progress) -> None:
        if error is not None:
            if not isinstance(error, Exception) or isinstance(error, _MISUSE):
                raise error
            self._fail(slot, f"{type(error).__name__}: {error}", progress, error)
        elif active is None:
            progress.finished[slot.job.episode_id] = slot.env.episode
            self._idle_envs.append(slot.env)
        else:
            slot.pending = active
            progress.ready.append(slot)

    def _drop_hung(self, progress: _Progress) -> None:
        now = time.monotonic()
        for key, slot in list(progress.moving.items()):
            if now - slot.started >= self._step_timeout_s:
                del progress.moving[key]
                self._workers.replace_one()
                # The hung thread still holds this environment, so it is never used again.
                self._fail(slot, f"environment step took over {self._step_timeout_s:g} s", progress)

    def _fail(
        self,
        slot: _Slot,
        reason: str,
        progress: _Progress,
        error: BaseException | None = None,
        *,
        is_unanswerable: bool = False,
    ) -> None:
        # The reason says all about failed surroundings; anything else may be a fault of the environment's own code.
        trace = None if isinstance(error, SurroundingsError) else error
        logger.warning("episode %s dropped: %s", slot.job.episode_id, reason, exc_info=trace)
        num_events = 0 if slot.pending is None else int(slot.pending.event_id.rpartition("/e")[2])
        progress.failed[slot.job.episode_id] = FailedEpisode(
            job=slot.job, reason=reason, num_events=num_events, is_unanswerable=is_unanswerable
        )

    # --- generation -----------------------------------------------------------------------------------------------

    def _generate_round(self, progress: _Progress, sampling: Sampling | Mapping[str, Sampling]) -> None:
        """Sample every member of every pending event, one batch per policy, and send complete sets on their way."""
        slots, progress.ready = progress.ready, []
        by_policy: dict[str, list[GenerationRequest]] = {}
        for slot in slots:
            assert slot.pending is not None
            for member in slot.pending.members:
                by_policy.setdefault(self._policy_of(member.role), []).append(self._request(slot.pending, member))
        begun = time.monotonic()
        answers: dict[str, tuple[str, Generation]] = {}
        for policy_id, requests in by_policy.items():
            for answer in self._generate(policy_id, requests, sampling_of(sampling, policy_id)):
                answers[answer.request_id] = (policy_id, answer)
        progress.generate_s += time.monotonic() - begun
        for slot in slots:
            self._send(slot, answers, progress)

    def _generate(self, policy_id: str, requests: list[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Sample one batch; responses that the engine gave up are asked for again, with their own seed."""
        answers = {answer.request_id: answer for answer in self._engines[policy_id].generate(requests, sampling)}
        for _ in range(self._step_retries):
            aborted = [request for request in requests if _is_worth_a_retry(answers[request.request_id])]
            if not aborted:
                break
            answers.update((a.request_id, a) for a in self._engines[policy_id].generate(aborted, sampling))
        return [answers[request.request_id] for request in requests]

    def _send(self, slot: _Slot, answers: Mapping[str, tuple[str, Generation]], progress: _Progress) -> None:
        active = slot.pending
        assert active is not None
        outputs = [_output(active, member, *answers[_request_id(active, member)]) for member in active.members]
        if aborted := [output.member_index for output in outputs if output.finish_reason == "abort"]:
            first = answers[_request_id(active, active.members[aborted[0]])][1]
            reason = f"event {active.event_id!r}: the engine gave up member_index {aborted} ({first.abort_reason})"
            self._fail(slot, reason, progress, is_unanswerable=first.is_hopeless)
            self._idle_envs.append(slot.env)
            return
        env = slot.env
        self._move(slot, lambda: env.step(outputs).next, progress)

    def _request(self, active: ActiveSet, member: Member) -> GenerationRequest:
        request_id = _request_id(active, member)
        return GenerationRequest(
            request_id=request_id,
            prompt=member.prompt,
            max_new_tokens=member.max_new_tokens,
            seed=derive_seed(self._seed, request_id),
            stop=member.stop,
        )

    def _policy_of(self, role: str) -> str:
        policy_id = policy_id_of(self._roles, role)
        if policy_id not in self._engines:
            raise ConfigError(f"roles: role {role!r} names policy {policy_id!r}{near_miss(policy_id, self._engines)}")
        return policy_id

    def _conclude(self, jobs: Sequence[EpisodeJob], progress: _Progress) -> Rollout:
        if jobs and not progress.finished:
            first = progress.failed[jobs[0].episode_id]
            raise NoEpisodeError(f"all {len(jobs)} episodes failed; the first: {first.reason}")
        return Rollout(
            episodes=tuple(progress.finished[job.episode_id] for job in jobs if job.episode_id in progress.finished),
            failed=tuple(progress.failed[job.episode_id] for job in jobs if job.episode_id in progress.failed),
            num_stragglers=progress.num_stragglers,
            generate_s=progress.generate_s,
            env_s=progress.env_s,
        )


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from anything with a stable text; the same parts give the same seed on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _reset_call(env: SetEnv, job: EpisodeJob) -> Callable[[], ActiveSet]:
    options = {"task_index": job.task_index, "episode_id": job.episode_id, "group_id": job.group_id}
    return lambda: env.reset(seed=job.env_seed, options=options)


def _is_worth_a_retry(answer: Generation) -> bool:
    return answer.finish_reason == "abort" and not answer.is_hopeless


def _with_retries(call: Callable[[], ActiveSet | None], retries: int) -> ActiveSet | None:
    """A failed transition leaves the environment at the same pending event, so the same call may be made again."""
    for attempt in range(retries):
        try:
            return call()
        except SurroundingsError as error:
            pause_s = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            logger.info("environment step failed, trying again in %g s: %s", pause_s, error)
            time.sleep(pause_s)
    return call()


def _request_id(active: ActiveSet, member: Member) -> str:
    return f"{active.event_id}/{member.index}"


def _output(active: ActiveSet, member: Member, policy_id: str, answer: Generation) -> MemberOutput:
    if len(answer.logprobs) != len(answer.token_ids):
        raise EngineError(
            f"request {answer.request_id!r}: the engine of policy {policy_id!r} gave {len(answer.token_ids)} tokens "
            f"but {len(answer.logprobs)} log-probabilities"
        )
    return MemberOutput(
        event_id=active.event_id,
        member_index=member.index,
        text=answer.text,
        policy_id=policy_id,
        policy_version=answer.policy_version,
        prompt_token_ids=answer.prompt_token_ids,
        token_ids=answer.token_ids,
        behavior_logprobs=answer.logprobs,
        token_mask=(1,) * len(answer.token_ids),
        finish_reason=answer.finish_reason,
        timings=answer.timings,
    )
