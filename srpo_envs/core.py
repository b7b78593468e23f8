r"""`SetEnv`: a workflow written as a generator, driven one active set at a time.

A workflow is a class with roles and one readable ``schedule``. Each ``yield`` announces an active set; what comes back
is the list of that set's replies, already parsed; the value returned is the outcome::

    class Debate(SetEnv):
        def __init__(self, tasks, **kwargs):
            super().__init__(tasks, roles=(
                Role("debater", prompt="$question\nArgue, then \\boxed{answer}.", parse=parse_boxed_answer, seats=2),
                Role("judge", prompt="$question\n$drafts\nDecide: \\boxed{answer}.", parse=parse_boxed_answer),
            ), **kwargs)

        def schedule(self, task):
            drafts = yield self.ask("debater", count=2)              # one event, K = 2
            (final,) = yield self.ask("judge", drafts=drafts)        # one event, K = 1
            return self.outcome(final)                               # graded: the team reward

A state is never pickled. An episode is event-sourced: task, seed, recorded replies and recorded tool results replay to
the same events, ids and rewards, so audit, branching and recovery after a failed tool are all replays.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from srpo_envs.budget import Budget, CountTokens, Usage, charged
from srpo_envs.errors import (
    BudgetExhaustedError,
    ConfigError,
    EnvMisuseError,
    ReplayError,
    ScheduleError,
    near_miss,
)
from srpo_envs.prompting import PromptTemplate
from srpo_envs.recording import (
    CallLog,
    digest,
    first_difference,
    initial_state_id,
    match_outputs,
    member_record,
    next_state_id,
    output_of,
    read_reply,
    seat_members,
    with_returns,
)
from srpo_envs.records import ActiveSet, Episode, Event, MemberOutput, StepResult, ToolCall, frozen_json
from srpo_envs.schedule import Ask, Outcome, Reply, Role, Schedule, checked_info, index_roles
from srpo_envs.tasks.base import Task, TaskFamily

_SEED_BOUND = 2**53  # JSON readers that hold numbers as 64-bit floats keep such a seed exact
_RESET_OPTIONS = ("task", "task_index", "episode_id", "group_id")


class _EpisodeState:
    """What `SetEnv` holds of the running episode."""

    __slots__ = (
        "call_log",
        "episode_id",
        "events",
        "group_id",
        "outcome",
        "pending",
        "pending_ask",
        "rng",
        "running",
        "scores",
        "seed",
        "setup_calls",
        "state_id",
        "task",
        "task_record",
        "turn",
        "used",
    )

    def __init__(self, task: Task, seed: int, episode_id: str, group_id: str) -> None:
        self.task = task
        self.task_record: dict[str, Any] = {}  # the task as JSON values, once it is known to have them
        self.seed = seed
        self.episode_id = episode_id
        self.group_id = group_id
        self.events: list[Event] = []
        self.call_log = CallLog()
        self.setup_calls: tuple[ToolCall, ...] = ()
        self.outcome: Outcome | None = None
        self.pending: ActiveSet | None = None
        self.pending_ask: Ask | None = None
        self.running: Schedule | None = None
        self.scores: dict[str, float] = {}  # of the answers graded so far
        self.rng: np.random.Generator | None = None
        self.state_id = ""
        self.turn = 0
        self.used = Usage()  # of what a budget may limit; its turns are counted by `turn`


class SetEnv:
    """A world whose action is a set of outputs; subclasses give roles and a `schedule`.

    Args:
        tasks: The task family questions come from.
        roles: The jobs of this workflow.
        max_events: Events after which an unfinished episode is truncated with team reward 0.
        invalid_penalty: Overrides every role's penalty, or those named in a mapping ``{role: penalty}``.
        max_new_tokens: Overrides response limits in the same way.
        budget: Most that one episode may spend, see `srpo_envs.budget`; nothing is limited when omitted.

    Raises:
        ConfigError: the budget has an unknown limit, or one that is not a whole number.
        ScheduleError: two roles share a name, a role's name is not lower-case letters, or an override names no role.
        ValueError: a limit below 1 or a penalty below 0.
    """

    env_id: str = ""
    """Registered id, filled by `srpo_envs.make`."""
    env_kwargs: Mapping[str, Any] = MappingProxyType({})
    """Arguments of `srpo_envs.make`, so that a stored episode can rebuild its environment."""

    def __init__(
        self,
        tasks: TaskFamily,
        roles: Sequence[Role],
        *,
        max_events: int = 64,
        invalid_penalty: float | Mapping[str, float] | None = None,
        max_new_tokens: int | Mapping[str, int] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
    ) -> None:
        if max_events < 1:
            raise ValueError(f"max_events must be at least 1, got {max_events}")
        self.tasks = tasks
        self.max_events = max_events
        self.budget = Budget.of(budget)
        self.count_tokens: CountTokens | None = None
        """Counts the tokens of outputs that are texts alone, for a budget of team tokens; assign it."""
        self.roles = index_roles(roles, invalid_penalty, max_new_tokens)
        self._templates = {name: PromptTemplate(role.prompt) for name, role in self.roles.items()}
        self._seeds = np.random.default_rng()
        self._state: _EpisodeState | None = None

    # --- what a workflow writes -----------------------------------------------------------------------------------

    def schedule(self, task: Task) -> Schedule:
        """The whole orchestration of one episode; override it. See the module's example."""
        raise NotImplementedError(f"{type(self).__name__} must define schedule(self, task)")

    def ask(
        self,
        role: str,
        count: int = 1,
        *,
        seats: Sequence[int] | None = None,
        event_type: str | None = None,
        state: str = "",
        **context: str | Reply | Sequence[Reply],
    ) -> Ask:
        """Announce an active set of one role.

        Args:
            role: Who is asked.
            count: K; seats 0 to K-1 answer.
            seats: The seats that answer, instead of the first `count`.
            event_type: Kind of decision for comparison groups; the role's name when omitted.
            state: The pre-action state in a few words, for the audit table.
            context: Values for the prompt's placeholders: texts, or replies, which the task family writes. A prompt may
                also name its member's own ``$seat``, counted from 1.

        Raises:
            ScheduleError: an unknown role or seat, an empty set, or a placeholder without a value.
        """
        if role not in self.roles:
            raise ScheduleError(f"{type(self).__name__} has no role {role!r}{near_miss(role, self.roles)}")
        spec = self.roles[role]
        chosen = tuple(range(count)) if seats is None else tuple(seats)
        if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= seat < spec.seats for seat in chosen):
            raise ScheduleError(
                f"role {role!r}: expected distinct seats in 0..{spec.seats - 1}, got {list(chosen)}; "
                f"raise Role.seats or ask fewer"
            )
        values = self._prompt_values(context)
        prompts = self._prompts(self._templates[role], values, chosen)
        return Ask(event_type or role, tuple(zip([spec] * len(chosen), chosen, prompts, strict=True)), state)

    def outcome(self, final: Reply, **info: Any) -> Outcome:
        """Grade the final reply and return the episode's outcome; a malformed reply earns 0."""
        reward = self.score(final)
        return Outcome(reward, {"answer": final.parsed, "correct": reward >= 1.0, **info})

    def truncate(self, **info: Any) -> Outcome:
        """Return the outcome of a schedule that ran into its own limit: team reward 0, truncated."""
        return Outcome(0.0, {"answer": None, "correct": False, **info}, is_truncated=True)

    def score(self, reply: Reply) -> float:
        """Return the grade of a reply that holds an answer, for an outcome or for a metric; 0 for a malformed one."""
        return self.grade(reply.parsed) if reply.is_valid else 0.0

    def grade(self, answer: Any) -> float:
        """Score an answer against the task's gold; recorded, so a replay needs no grader.

        Equal answers of an episode are graded once.

        Raises:
            ScheduleError: the task family gave a score outside [0, 1].
        """
        state = self._require_state()
        answer = frozen_json(answer)
        key = digest(answer)
        if key not in state.scores:
            score = float(state.call_log.run("grade", answer, lambda: self.tasks.grade(state.task, answer), "grade"))
            if not 0.0 <= score <= 1.0:
                raise ScheduleError(
                    f"task {state.task.task_id!r}: {self.tasks.name!r} graded {score!r}; expected 0 to 1"
                )
            state.scores[key] = score
        return state.scores[key]

    def call_tool(self, name: str, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Run a tool inside the schedule and record arguments and result on the event; on replay return the record.

        Args:
            name: The tool's name in the record.
            function: Called with `arguments`; must return JSON values, and raise `ToolError` when it fails. Let that
                error pass: a schedule that swallows it makes an episode nobody can replay.
            arguments: JSON values.

        Raises:
            RecordError: an argument or the result is not made of JSON values.
            BudgetExhaustedError: the episode has made all tool calls of its budget; the tool is not called.
        """
        self.require_tool_calls(1)
        state = self._require_state()
        result = state.call_log.run(name, frozen_json(arguments), lambda: function(**arguments), "tool")
        state.used = state.used.plus(Usage(tool_calls=1))
        return result

    def require_tool_calls(self, number: int) -> None:
        """Check that the budget has room for so many tool calls, for calls that are made together or not at all.

        Raises:
            BudgetExhaustedError: it has not.
        """
        self.remaining_budget.require(tool_calls=number)

    def begin_turn(self) -> int:
        """Start the next turn (one routing decision and what follows) and return its index.

        Raises:
            BudgetExhaustedError: the budget allows no further turn.
        """
        state = self._require_state()
        if state.events or state.pending:
            self.remaining_budget.require(turns=1)
            state.turn += 1
        return state.turn

    @property
    def turn(self) -> int:
        """Index of the current turn, from 0."""
        return self._require_state().turn

    @property
    def remaining_budget(self) -> Budget:
        """What the episode may still spend; its ``turns`` are those that may still begin after the current one."""
        state = self._require_state()
        return self.budget.minus(dataclasses.replace(state.used, turns=state.turn + 1))

    @property
    def rng(self) -> np.random.Generator:
        """This episode's own randomness, for use inside `schedule`; restarts with every replay."""
        state = self._require_state()
        if state.rng is None:
            state.rng = np.random.default_rng([state.seed, 1])
        return state.rng

    def context(self, *committed: Reply | Sequence[Reply] | None) -> str:
        """Write committed replies as the team-context part of a prompt; the task family decides the words."""
        replies: list[Reply] = []
        for item in committed:
            if isinstance(item, Reply):
                replies.append(item)
            elif item is not None:
                replies.extend(item)
        return self.tasks.render_context(replies)

    # --- what a caller drives -------------------------------------------------------------------------------------

    @property
    def possible_agents(self) -> list[str]:
        """Every agent that may ever act, in role order."""
        return [f"{role.name}_{seat}" for role in self.roles.values() for seat in range(role.seats)]

    @property
    def pending(self) -> ActiveSet | None:
        """The active set the environment waits for; None before reset and after the end."""
        return self._state.pending if self._state else None

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ActiveSet:
        """Start an episode and return its first active set.

        Args:
            seed: Restarts this environment's own stream of tasks and seeds; without it the stream goes on, so
                repeated resets give new tasks. Global random state is neither read nor changed.
            options: ``task_index`` or ``task`` to choose the question, ``episode_id`` and ``group_id`` to name the
                episode; unknown keys are refused.

        Raises:
            ConfigError: the budget has no room for the first active set.
            EnvMisuseError: an unknown option, or an index the task family does not have.
            SurroundingsError: a tool the schedule calls before its first ask failed.
        """
        chosen = dict(options or {})
        for option in chosen:
            if option not in _RESET_OPTIONS:
                raise EnvMisuseError(f"reset: unknown option {option!r}{near_miss(str(option), _RESET_OPTIONS)}")
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        episode_seed = int(self._seeds.integers(_SEED_BOUND))
        task = self._choose_task(chosen.get("task"), chosen.get("task_index"), episode_seed)
        default_id = digest(self._name, task.task_id, episode_seed)[:16]
        return self.start(
            task,
            episode_seed,
            episode_id=str(chosen.get("episode_id") or default_id),
            group_id=str(chosen.get("group_id") or task.task_id),
        )

    def start(self, task: Task, seed: int, *, episode_id: str, group_id: str) -> ActiveSet:
        """Start an episode with everything given; `reset` and replay both end here."""
        self.close()
        self._state = _EpisodeState(task, seed, episode_id, group_id)
        return self._begin()

    def step(self, outputs: Iterable[MemberOutput]) -> StepResult:
        """Consume the whole pending set and move the world once.

        Args:
            outputs: One output per announced member, in any order.

        Raises:
            EnvMisuseError: nothing is pending.
            StaleEventError: an output answers another event.
            MemberMismatchError: a member is missing, unknown or answered twice.
            TokenCountError: there is a budget of team tokens, and an output does not say how many it has.
            BudgetOverrunError: there is one, and an output has more tokens than its member was allowed.
            SurroundingsError: a tool or the grader failed.

        Whatever the schedule raises, the environment is afterwards back at the same pending event, so the same step may
        be tried again; calls of the failed transition are then made anew.
        """
        state = self._require_state()
        if state.pending is None or state.pending_ask is None:
            raise EnvMisuseError(f"episode {state.episode_id!r} is over; call reset() first")
        ordered = match_outputs(state.pending, outputs)
        if self.budget.team_tokens is not None:
            ordered = charged(state.pending, ordered, self.count_tokens)
        return self._consume(state.pending, state.pending_ask, ordered)

    @property
    def episode(self) -> Episode:
        """The record of the episode so far; team returns are filled once it is over.

        Raises:
            EnvMisuseError: before the first reset.
        """
        state = self._require_state()
        outcome = state.outcome
        last = state.events[-1] if state.events else None
        return Episode(
            episode_id=state.episode_id,
            env_id=self._name,
            env_kwargs=frozen_json(self.env_kwargs),
            seed=state.seed,
            task=state.task_record,
            task_id=state.task.task_id,
            group_id=state.group_id,
            events=with_returns(state.events) if outcome else tuple(state.events),
            reward=outcome.reward if outcome else 0.0,
            penalty=sum((event.penalty for event in state.events), start=0.0),
            terminated=bool(last and last.terminated),
            truncated=bool(last and last.truncated),
            setup_tool_calls=state.setup_calls,
            info=frozen_json(outcome.info) if outcome else {},
        )

    def resume(
        self, episode: Episode, num_events: int | None = None, *, episode_id: str | None = None
    ) -> ActiveSet | None:
        """Rebuild a stored episode up to an event by replaying its records, and return the set pending there.

        Args:
            episode: The record; its tool results and grades are used instead of the tools.
            num_events: How many events to replay; all of them when omitted.
            episode_id: New name when the continuation is a branch; the recorded one when omitted.

        Raises:
            ReplayError: the record belongs to another environment, the replay differs from it anywhere, or
                `num_events` is not between 0 and the number of recorded events.
        """
        if num_events is not None and not 0 <= num_events <= len(episode.events):
            raise ReplayError(
                f"episode {episode.episode_id!r}: num_events {num_events} is outside 0..{len(episode.events)}"
            )
        if episode.env_id != self._name:
            raise ReplayError(
                f"episode {episode.episode_id!r} was recorded by {episode.env_id!r}, this environment is "
                f"{self._name!r}; rebuild the one that recorded it"
            )
        self.close()
        self._state = _EpisodeState(
            Task.from_dict(episode.task), episode.seed, episode_id or episode.episode_id, episode.group_id
        )
        self._begin(episode.setup_tool_calls)
        for event in episode.events[:num_events]:
            self._replay_event(event)
        return self.pending

    def close(self) -> None:
        """End the running episode and release what its schedule holds; safe to call more than once."""
        state, self._state = self._state, None
        if state is not None and state.running is not None:
            state.running.close()

    # --- the machine ----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.env_id or type(self).__name__

    def _require_state(self) -> _EpisodeState:
        if self._state is None:
            raise EnvMisuseError(f"{self._name}: call reset() first")
        return self._state

    def _choose_task(self, task: Task | Mapping[str, Any] | None, index: int | None, episode_seed: int) -> Task:
        if task is not None:
            return task if isinstance(task, Task) else Task.from_dict(task)
        number = episode_seed % self.tasks.num_tasks if index is None else operator.index(index)
        if not 0 <= number < self.tasks.num_tasks:
            raise EnvMisuseError(f"task_index {number} is outside 0..{self.tasks.num_tasks - 1} of {self.tasks.name!r}")
        return self.tasks.task(number)

    def _prompt_values(self, context: Mapping[str, Any]) -> dict[str, str]:
        values = {"question": self._require_state().task.question}
        for key, value in context.items():
            values[key] = value if isinstance(value, str) else self.context(value)
        return values

    @staticmethod
    def _prompts(template: PromptTemplate, values: dict[str, str], seats: Sequence[int]) -> list[str]:
        """One prompt per seat; a template that does not name its seat is filled once."""
        if "seat" not in template.names:
            return [template.fill(values)] * len(seats)
        return [template.fill({**values, "seat": str(seat + 1)}) for seat in seats]

    def _begin(self, recorded: Iterable[ToolCall] | None = None) -> ActiveSet:
        """Run the schedule to its first ask, with the setup calls of a record when one is replayed."""
        state = self._require_state()
        try:
            state.task_record = state.task.to_dict()
            running = self.schedule(state.task)
            if not isinstance(running, Generator):
                raise ScheduleError(f"{self._name}: schedule() must be a generator; announce sets with yield")
            state.running = running
            if recorded is not None:
                state.call_log.start_replay(recorded)
            ask = self._next_with_room(None)
            if recorded is not None:
                state.call_log.end_replay()
            if not isinstance(ask, Ask):
                raise self._without_events()
        except BudgetExhaustedError as refusal:
            self.close()
            raise self._without_events() from refusal
        except BaseException:
            self.close()
            raise
        state.setup_calls = state.call_log.take()
        state.state_id = initial_state_id(self._name, state.task_record, state.seed, state.setup_calls)
        return self._announce(ask)

    def _without_events(self) -> ConfigError | ScheduleError:
        """The error of an episode that is over before anybody was asked."""
        if limits := self.budget.limits:
            return ConfigError(f"{self._name}: a budget of {limits} has no room for the first active set; raise it")
        return ScheduleError(f"{self._name}: the schedule returned before its first ask; yield at least one")

    def _advance(self, replies: list[Reply]) -> Ask | Outcome:
        """Run the schedule to its next ask or its outcome; where the budget ends it, that is a truncation."""
        try:
            return self._next_with_room(replies)
        except BudgetExhaustedError as refusal:
            return self.truncate(stopped_by=refusal.stopped_by)

    def _next_with_room(self, replies: list[Reply] | None) -> Ask | Outcome:
        """Run the schedule on; an ask that the budget has no room for is refused where it was made, once.

        Raises:
            BudgetExhaustedError: the schedule does not catch the refusal, or asks again for more than there is.
        """
        running = self._require_state().running
        assert running is not None
        asked = self._run(lambda: running.send(replies))  # type: ignore[arg-type]  # None starts it
        try:
            self._require_room(asked)
        except BudgetExhaustedError as refusal:
            error = refusal
        else:
            return asked
        asked = self._run(lambda: running.throw(error))
        self._require_room(asked)
        return asked

    def _run(self, resume: Callable[[], Ask]) -> Ask | Outcome:
        """Resume the schedule and return what it asks, or the outcome it returns."""
        try:
            asked = resume()
        except StopIteration as stop:
            outcome = stop.value
            if not isinstance(outcome, Outcome):
                raise ScheduleError(
                    f"{self._name}: the schedule returned {outcome!r}; return self.outcome(reply) or self.truncate()"
                ) from None
            if not math.isfinite(outcome.reward):
                raise ScheduleError(f"{self._name}: the team reward is {outcome.reward!r}; it must be finite") from None
            return Outcome(float(outcome.reward), checked_info(outcome.info), outcome.is_truncated)
        if not isinstance(asked, Ask):
            raise ScheduleError(f"{self._name}: the schedule yielded {asked!r}; yield self.ask(...)")
        return asked

    def _require_room(self, asked: Ask | Outcome) -> None:
        """Check that the budget has a call and at least one token for each member of a set."""
        if isinstance(asked, Ask):
            self.remaining_budget.require(calls=len(asked.seats), team_tokens=len(asked.seats))

    def _announce(self, ask: Ask) -> ActiveSet:
        state = self._require_state()
        state.pending_ask = ask
        state.pending = ActiveSet(
            event_id=f"{state.episode_id}/e{len(state.events)}",
            state_id=state.state_id,
            episode_id=state.episode_id,
            task_id=state.task.task_id,
            event_type=ask.event_type,
            turn=state.turn,
            state_label=ask.state_label or (f"after {state.events[-1].event_type}" if state.events else "task only"),
            members=seat_members(ask, self.remaining_budget.share(len(ask.seats))),
        )
        return state.pending

    def _consume(self, active: ActiveSet, ask: Ask, ordered: Sequence[MemberOutput]) -> StepResult:
        state = self._require_state()
        roles = [role for role, _, _ in ask.seats]
        replies = [
            read_reply(role, member, output)
            for role, member, output in zip(roles, active.members, ordered, strict=True)
        ]
        penalties = (role.invalid_penalty for role, reply in zip(roles, replies, strict=True) if not reply.is_valid)
        num_tokens = sum(sum(output.token_mask) for output in ordered)
        state.used = state.used.plus(Usage(team_tokens=num_tokens, calls=len(ordered)))
        try:
            following = self._advance(replies)
        except BaseException:
            self._rewind()
            raise
        calls = state.call_log.take()
        if isinstance(following, Ask) and len(state.events) + 1 >= self.max_events:
            following = self.truncate(stopped_by="max_events")
        event = self._record(active, ordered, replies, calls, sum(penalties, start=0.0), following)
        state.events.append(event)
        state.state_id = next_state_id(state.state_id, active.event_type, [reply.text for reply in replies], calls)
        return self._result(event, following)

    def _record(
        self,
        active: ActiveSet,
        ordered: Sequence[MemberOutput],
        replies: Sequence[Reply],
        calls: tuple[ToolCall, ...],
        penalty: float,
        following: Ask | Outcome,
    ) -> Event:
        outcome = following if isinstance(following, Outcome) else None
        return Event(
            event_id=active.event_id,
            state_id=active.state_id,
            episode_id=active.episode_id,
            task_id=active.task_id,
            group_id=self._require_state().group_id,
            event_type=active.event_type,
            turn=active.turn,
            state_label=active.state_label,
            cardinality=active.cardinality,
            members=tuple(map(member_record, active.members, ordered, replies)),
            reward=(outcome.reward if outcome else 0.0) - penalty,
            penalty=penalty,
            team_return=None,
            tool_calls=calls,
            terminated=outcome is not None and not outcome.is_truncated,
            truncated=outcome is not None and outcome.is_truncated,
        )

    def _result(self, event: Event, following: Ask | Outcome) -> StepResult:
        state = self._require_state()
        if isinstance(following, Outcome):
            state.outcome, state.pending, state.pending_ask = following, None, None
            if state.running is not None:
                state.running.close()
        else:
            self._announce(following)
        return StepResult(
            event=event,
            next=state.pending,
            reward=event.reward,
            terminated=event.terminated,
            truncated=event.truncated,
            info=following.info if isinstance(following, Outcome) else {},
        )

    def _replay_event(self, event: Event) -> None:
        """Step through a recorded event, without tools, and hold the result against the record."""
        state = self._require_state()
        active, ask = state.pending, state.pending_ask
        if active is None or ask is None:
            raise ReplayError(f"event {event.event_id!r}: recorded after the replayed episode had ended")
        asked = tuple((member.agent, member.prompt) for member in active.members)
        recorded = tuple((member.agent, member.prompt) for member in event.members)
        if asked != recorded:
            raise ReplayError(
                f"event {event.event_id!r}: the replay asks {[agent for agent, _ in asked]}, the record holds "
                f"{[agent for agent, _ in recorded]} or other prompts; was the workflow or its version changed?"
            )
        try:
            state.call_log.start_replay(event.tool_calls)
            outputs = [output_of(member, active.event_id) for member in event.members]
            rebuilt = self._consume(active, ask, outputs).event
            state.call_log.end_replay()
        except ReplayError as error:
            raise ReplayError(f"event {event.event_id!r}: {error}") from error
        expected = dataclasses.replace(
            event, event_id=rebuilt.event_id, episode_id=rebuilt.episode_id, team_return=rebuilt.team_return
        )
        if difference := first_difference(expected, rebuilt):
            raise ReplayError(f"event {event.event_id!r}: the replay differs from the record in {difference}")

    def _rewind(self) -> None:
        """Rebuild the pending event after its transition failed, from the records made so far."""
        self.resume(self.episode)


class SetEnvFactory(Protocol):
    """Anything that makes a fresh environment, for conformance checks and collectors."""

    def __call__(self) -> SetEnv:
        """Return a new environment."""
        ...
