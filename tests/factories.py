r"""Small makers of records, tasks and worlds for all tests.

Records made by hand (`make_member`, `make_event`, `make_episode`) suit tests of whatever consumes them; `play` drives a
real environment for tests of whatever makes them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.parsing import Malformed, Parsed, parse_boxed_answer
from srpo_envs.records import ActiveSet, Episode, Event, Member, MemberOutput, MemberRecord
from srpo_envs.schedule import Reply, Role, Schedule
from srpo_envs.tasks.base import Task

APPROVE = "<verify>approve</verify>"
REJECT = "<verify>reject</verify>"


def boxed(answer: object) -> str:
    r"""Return ``\boxed{answer}``."""
    return f"\\boxed{{{answer}}}"


# --- records ------------------------------------------------------------------------------------------------------


def make_member(member_index: int = 0, *, length: int = 3, role: str = "solver", **fields: Any) -> MemberRecord:
    """Return a member with `length` sampled tokens of log-probability -0.5 each."""
    defaults = {
        "agent": f"{role}_{member_index}",
        "prompt": "question",
        "text": boxed(member_index),
        "parsed": str(member_index),
        "policy_id": "policy",
        "prompt_token_ids": (1, 2),
        "token_ids": tuple(range(10, 10 + length)),
        "behavior_logprobs": (-0.5,) * length,
        "token_mask": (1,) * length,
    }
    return MemberRecord(member_index=member_index, role=role, **(defaults | fields))


def make_event(
    cardinality: int = 3,
    lengths: Sequence[int] | None = None,
    *,
    number: int = 0,
    episode_id: str = "ep",
    event_type: str = "solver",
    **fields: Any,
) -> Event:
    """Return a complete event of K members; `lengths` are their token counts."""
    lengths = [3] * cardinality if lengths is None else lengths
    defaults = {
        "event_id": f"{episode_id}/e{number}",
        "state_id": f"state-{episode_id}-{number}",
        "task_id": "task",
        "group_id": "task",
        "turn": 0,
        "state_label": "question only",
        "members": tuple(make_member(index, length=length, role=event_type) for index, length in enumerate(lengths)),
        "reward": 0.0,
        "penalty": 0.0,
        "team_return": 1.0,
    }
    return Event(episode_id=episode_id, event_type=event_type, cardinality=cardinality, **(defaults | fields))


def make_episode(
    cardinalities: Sequence[int] = (3, 1, 1), *, episode_id: str = "ep", reward: float = 1.0, **fields: Any
) -> Episode:
    """Return a terminated episode of drafts, verdicts and a final answer, with the given K per event."""
    types = ["solver", *["verifier"] * (len(cardinalities) - 2), "aggregator"][-len(cardinalities) :]
    events = [
        make_event(k, number=number, episode_id=episode_id, event_type=event_type, team_return=reward)
        for number, (k, event_type) in enumerate(zip(cardinalities, types, strict=True))
    ]
    events[-1] = dataclasses.replace(events[-1], reward=reward, terminated=True)
    defaults = {
        "env_id": "Handmade",
        "env_kwargs": {},
        "seed": 0,
        "task": {"task_id": "task", "question": "question", "gold": "1", "info": {}},
        "task_id": "task",
        "group_id": "task",
        "events": tuple(events),
        "reward": reward,
        "terminated": True,
    }
    return Episode(episode_id=episode_id, **(defaults | fields))


# --- worlds -------------------------------------------------------------------------------------------------------


class NumberTasks:
    """Tasks whose question names its answer: task i asks for the number i. Needs no grader."""

    name = "numbers"
    parse_answer = staticmethod(parse_boxed_answer)

    def __init__(self, num_tasks: int = 1000) -> None:
        self.num_tasks = num_tasks
        self.graded: list[tuple[str, Any]] = []  # every (task_id, answer) the grader really saw

    def task(self, index: int) -> Task:
        return Task(f"numbers/{index}", f"Say {index}.", str(index), {"digits": [int(digit) for digit in str(index)]})

    def prompt(self, role: str) -> str:
        own = {
            "router": "$question\n$context\nRoute 1 to $num_solvers.",
            "orchestrator": "$question\n$context\nSplit in $max_subtasks.",
            "worker": "$context\nBe worker.",
        }
        return own.get(role, f"$question\n$context\nBe {role}.")

    def stop(self, role: str) -> tuple[str, ...]:
        return ()

    def max_new_tokens(self, role: str) -> int:
        return 16

    def grade(self, task: Task, answer: Any) -> float:
        self.graded.append((task.task_id, answer))
        return float(answer == task.gold)

    def render_context(self, replies: Sequence[Reply]) -> str:
        texts = ["; ".join(reply.parsed) if reply.role == "orchestrator" else reply.text for reply in replies]
        return "\n".join(f"{reply.agent}: {text}" for reply, text in zip(replies, texts, strict=True))


def parse_query(text: str) -> Parsed | Malformed:
    """Read anything but the empty text as a query."""
    return Parsed(text) if text.strip() else Malformed("empty query")


class Lookup(SetEnv):
    """A workflow with a tool: searchers ask at once, an answerer sees what was found."""

    def __init__(
        self, tasks: NumberTasks, search: Callable[[str], Any], *, num_searchers: int = 2, **limits: Any
    ) -> None:
        self.search = search
        self.num_searchers = num_searchers
        roles = (
            Role("searcher", prompt="$question", parse=parse_query, seats=num_searchers),
            Role("answerer", prompt="$question\n$evidence", parse=parse_boxed_answer, invalid_penalty=0.25),
        )
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        queries = yield self.ask("searcher", count=self.num_searchers, state="no evidence")
        found = [self.call_tool("search", self.search, query=query.parsed) for query in queries if query.is_valid]
        (final,) = yield self.ask("answerer", evidence="\n".join(map(str, found)), state="evidence")
        return self.outcome(final)


class Panel(SetEnv):
    """A workflow whose first transition consumes outputs of two roles together."""

    def __init__(self, tasks: NumberTasks, **limits: Any) -> None:
        roles = (
            Role("solver", prompt="$question", parse=parse_boxed_answer, seats=2),
            Role("critic", prompt="$question Beware.", parse=parse_query),
        )
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        replies = yield self.ask("solver", count=2, state="question only") + self.ask("critic")
        return self.outcome(replies[1])


Answers = Mapping[str, str | Sequence[str]] | Callable[[ActiveSet, Member], str]


def answer(active: ActiveSet, answers: Answers, number: int = 0) -> list[MemberOutput]:
    """Return outputs for a set: by a function of the member, or by event type (one text for all, or one per event)."""
    texts = []
    for member in active.members:
        if callable(answers):
            texts.append(answers(active, member))
        else:
            chosen = answers[active.event_type]
            texts.append(chosen if isinstance(chosen, str) else chosen[min(number, len(chosen) - 1)])
    return active.outputs(texts)


def play(env: SetEnv, answers: Answers, *, seed: int | None = None, **options: Any) -> Episode:
    """Play one episode to its end; a sequence of texts is used event by event of its type, the last one repeated."""
    active: ActiveSet | None = env.reset(seed=seed, options=options or None)
    met: dict[str, int] = {}
    while active is not None:
        number = met.get(active.event_type, 0)
        met[active.event_type] = number + 1
        active = env.step(answer(active, answers, number)).next
    return env.episode


def with_tokens(outputs: Sequence[MemberOutput], *, version: int = 0, seed: int = 0) -> list[MemberOutput]:
    """Return the outputs with made-up tokens and log-probabilities, as an engine would fill them."""
    rng = random.Random(seed)
    filled = []
    for output in outputs:
        tokens = tuple(rng.randrange(100) for _ in range(rng.randint(1, 6)))
        filled.append(
            dataclasses.replace(
                output,
                policy_id="policy",
                policy_version=version,
                prompt_token_ids=(1, 2, 3),
                token_ids=tokens,
                behavior_logprobs=tuple(-rng.random() for _ in tokens),
                token_mask=(1,) * len(tokens),
                timings={"generate_s": rng.random()},
            )
        )
    return filled
