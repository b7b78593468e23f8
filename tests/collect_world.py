"""A team, tasks that make trouble, and an engine that answers in any order, for the tests of collecting."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_train.collect import EpisodeJob
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.scripted import ScriptedEngine

SAMPLING = Sampling()


def role_of(request: GenerationRequest) -> str:
    """Whose template a prompt was written from."""
    marks = {"Route": "router", "Solve": "solver", "Verify": "verifier", "Answer": "aggregator"}
    return marks[request.prompt.splitlines()[-1].partition(" ")[0].rstrip(".")]


def answer(request: GenerationRequest) -> str:
    """A team that answers 4 at once: every first verdict approves."""
    return "<verify>approve</verify>" if role_of(request) == "verifier" else r"\boxed{4}"


def scripted(policy_id: str, script: Callable[[GenerationRequest], str | None] = answer, **settings) -> ScriptedEngine:
    # One byte is one token here; the arithmetic limits count the embedded policy's tokens.
    return ScriptedEngine(policy_id, script, respects_limits=False, **settings)


class Troubled(Arithmetic):
    """Arithmetic whose grading of chosen tasks sleeps, hangs or fails."""

    def __init__(self, trouble: Mapping[int, Callable[[], object]], **kwargs) -> None:
        super().__init__(**kwargs)
        self.trouble = trouble

    def grade(self, task, answer):
        self.trouble.get(int(task.task_id.rpartition("/")[2]), lambda: None)()
        return super().grade(task, answer)


def make_jobs(count: int, groups: int = 1) -> list[EpisodeJob]:
    """Return `groups` episodes of each of `count` tasks."""
    return [
        EpisodeJob(episode_id=f"t{task}/g{member}", group_id=f"t{task}", task_index=task, env_seed=task)
        for task in range(count)
        for member in range(groups)
    ]


class ShuffledEngine:
    """Finishes what is under way in an order of its own: every poll a random part, possibly nothing.

    Keeps the contract of `StreamingEngine` and checks the caller's side of it.

    Args:
        policy_id: The policy to answer for.
        script: As that of `ScriptedEngine`.
        rng: Decides the order.
        is_held: Requests that do not finish; they can only be cancelled.
    """

    def __init__(
        self,
        policy_id: str,
        script: Callable[[GenerationRequest], str | None],
        rng: random.Random,
        is_held: Callable[[GenerationRequest], bool] = lambda request: False,
    ) -> None:
        self._scripted = scripted(policy_id, script)
        self._rng = rng
        self._is_held = is_held
        self.policy_id = policy_id
        self.under_way: dict[str, GenerationRequest] = {}
        self.batches: list[list[str]] = []
        self.cancelled: list[str] = []
        self.late: list[Generation] = []
        self.num_polls: Counter[bool] = Counter()

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        return self._scripted.generate(requests, sampling)

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        names = [request.request_id for request in requests]
        assert len(set(names)) == len(names)
        assert not self.under_way.keys() & set(names), "an id is under way twice"
        self.batches.append(names)
        self.under_way.update(zip(names, requests, strict=True))

    def poll(self, timeout_s: float) -> list[Generation]:
        assert timeout_s >= 0
        self.num_polls[bool(self.under_way)] += 1
        late, self.late = self.late, []
        free = [request for request in self.under_way.values() if not self._is_held(request)]
        chosen = self._rng.sample(free, self._rng.randint(0, len(free)))
        for request in chosen:
            del self.under_way[request.request_id]
        return late + self._scripted.generate(chosen, SAMPLING)

    def cancel(self, request_ids: Collection[str]) -> None:
        """Some come back as aborted, some not at all."""
        for name in request_ids:
            request = self.under_way.pop(name, None)
            if request is not None:
                self.cancelled.append(name)
                if self._rng.random() < 0.5:
                    (late,) = scripted(self.policy_id, lambda request: None).generate([request], SAMPLING)
                    self.late.append(late)

    def close(self) -> None:
        pass
