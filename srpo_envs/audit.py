"""Audit: proof that stored events keep the event contract, and the paper's event-audit table.

An update is only as good as its rows: the outputs that changed the environment together must still be together,
complete and answers to one state. The audit checks this from the records alone, and by replay when asked::

    report = audit_run("runs/demo")
    print(report.summary())
    report.raise_if_failed()
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from srpo_envs.budget import Budget, Usage
from srpo_envs.errors import AuditError, ConfigError, ReplayError, TornRecordError, UnknownIdError
from srpo_envs.recording import initial_state_id, next_state_id
from srpo_envs.records import Episode, Event, MemberRecord, read_episodes
from srpo_envs.replay import replay as replay_episode

RULES: dict[str, str] = {
    "complete": "every announced member is there once, indices 0 to K-1 in order, none aborted; drop such events",
    "cardinality": "K is at least 1 and equals the number of members; drop the event, a member was lost",
    "agents": "no agent sits in a set twice; the workflow asked one seat twice",
    "version": "members of one policy in one event share its version; publish weights between events, not within",
    "tokens": "token, log-probability and mask counts agree and masks hold 0 or 1; store what the engine sampled",
    "logprobs": "log-probabilities are finite and not above 0; look at the engine's numerics",
    "unique": "event and episode ids occur once in a run; give each rollout its own episode_id",
    "order": "events are numbered e0, e1, ... of their episode and share its task and group; lines were moved or lost",
    "state": "state ids follow from task, seed and outputs; a record was changed after it was written",
    "penalty": "a penalty is finite, at least 0, and charged only where a member is malformed",
    "reward": "an event's reward is minus its penalty, plus the team reward at the end",
    "return": "R_e is the sum of the rewards from e to the end, and None before the end",
    "end": "exactly the last event of an ended episode ends it, as terminated or as truncated, never both",
    "budget": "no episode spends more than its environment's budget, no member more than its share of the tokens left",
    "replay": "the episode replays to itself; the workflow changed since it was recorded",
}
"""What is checked, by rule name: what holds, and what to do where it does not."""

_TOLERANCE = 1e-9  # rewards are sums of a few small numbers
_LOGPROB_CEILING = 1e-3  # log-softmax in low precision may end a little above 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule."""

    rule: str
    """Key of `RULES`."""
    record_id: str
    """The event or episode."""
    detail: str
    """What was found."""

    def __str__(self) -> str:
        return f"{self.record_id}: {self.rule}: {self.detail} (expected: {RULES[self.rule]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """What an audit counted and what it found."""

    num_episodes: int
    """Episodes read; 0 when only events were given."""
    num_events: int
    """Events read."""
    num_members: int
    """Member outputs read."""
    cardinalities: dict[int, int]
    """Number of events by K."""
    num_replayed: int
    """Episodes that were replayed."""
    findings: tuple[Finding, ...]
    """Every broken rule; empty when all hold."""
    torn: tuple[str, ...] = ()
    """Files that end in the middle of a record, and where; that record counts as never written."""

    @property
    def is_ok(self) -> bool:
        """Whether every rule holds."""
        return not self.findings

    def summary(self, max_findings: int = 20) -> str:
        """Return the counts and the first findings as text."""
        by_k = ", ".join(f"K={k}: {count}" for k, count in sorted(self.cardinalities.items())) or "none"
        lines = [
            f"{self.num_episodes} episodes, {self.num_events} events, {self.num_members} outputs; events by {by_k}",
            f"{self.num_replayed} episodes replayed" if self.num_replayed else "not replayed",
            "every rule holds" if self.is_ok else f"{len(self.findings)} findings",
        ]
        lines += [f"a last record counts as never written: {place}" for place in self.torn]
        lines += [str(finding) for finding in self.findings[:max_findings]]
        if len(self.findings) > max_findings:
            lines.append(f"... and {len(self.findings) - max_findings} more")
        return "\n".join(lines)

    def raise_if_failed(self) -> None:
        """Raise when a rule is broken.

        Raises:
            AuditError: with the summary; names event ids and remedies.
        """
        if self.findings:
            raise AuditError(self.summary())


def episode_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the files of stored episodes: ``events/*.jsonl`` of a run by step, or the samples of an evaluation."""
    root = Path(directory)
    return sorted((root / "events").glob("*.jsonl")) or sorted(root.glob("*/seed-*/samples.jsonl"))


def audit_run(run_dir: str | os.PathLike[str], *, replay: bool = False) -> AuditReport:
    """Audit every stored episode of a run or of an evaluation.

    What a file that was cut off holds is audited up to there, and the report names the file.

    Raises:
        AuditError: it stored none.
        ReplayError: the recorded environment is not registered, so that nothing can be replayed.
        RecordError: a file cannot be read; names file and line.
    """
    files = episode_files(run_dir)
    if not files:
        raise AuditError(
            f"{str(run_dir)!r} holds no events/*.jsonl and no samples; give the folder of a run that stored its "
            "events, or of an evaluation"
        )
    torn: list[str] = []
    report = audit_episodes((episode for file in files for episode in _whole_episodes(file, torn)), replay=replay)
    return replace(report, torn=tuple(torn))


def _whole_episodes(file: Path, torn: list[str]) -> Iterator[Episode]:
    """Yield the episodes of a file; where its end is missing, say so in the list."""
    try:
        yield from read_episodes(file)
    except TornRecordError as error:
        torn.append(str(error))


def audit_episodes(episodes: Iterable[Episode], *, replay: bool = False) -> AuditReport:
    """Audit episodes, finished or not.

    Args:
        episodes: Read once, one at a time.
        replay: Also rebuild each episode through the registry and compare, without engine or tools.
    """
    auditor = _Auditor()
    for episode in episodes:
        auditor.read_episode(episode)
        if replay:
            auditor.replay(episode)
    return auditor.report()


def audit_events(events: Iterable[Event]) -> AuditReport:
    """Audit events on their own, as a trainer has them; what needs the whole episode is not checked."""
    auditor = _Auditor()
    for event in events:
        auditor.read_event(event)
    return auditor.report()


class _Auditor:
    """Reads records and gathers findings."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._cardinalities: Counter[int] = Counter()
        self._num_episodes = 0
        self._num_members = 0
        self._num_replayed = 0
        self._findings: list[Finding] = []

    def read_episode(self, episode: Episode) -> None:
        self._num_episodes += 1
        self._note_id(episode.episode_id)
        for event in episode.events:
            self.read_event(event)
        for check in _EPISODE_CHECKS:
            self._findings.extend(check(episode))

    def read_event(self, event: Event) -> None:
        self._cardinalities[event.cardinality] += 1
        self._num_members += len(event.members)
        self._note_id(event.event_id)
        for check in _EVENT_CHECKS:
            self._findings.extend(check(event))

    def replay(self, episode: Episode) -> None:
        try:
            replay_episode(episode)
        except ReplayError as error:
            if isinstance(error.__cause__, UnknownIdError):  # nothing can be replayed: no finding about this episode
                raise
            self._findings.append(Finding("replay", episode.episode_id, str(error)))
        self._num_replayed += 1

    def report(self) -> AuditReport:
        return AuditReport(
            num_episodes=self._num_episodes,
            num_events=sum(self._cardinalities.values()),
            num_members=self._num_members,
            cardinalities=dict(self._cardinalities),
            num_replayed=self._num_replayed,
            findings=tuple(self._findings),
        )

    def _note_id(self, record_id: str) -> None:
        if record_id in self._seen:
            self._findings.append(Finding("unique", record_id, "met before"))
        self._seen.add(record_id)


# --- one event ----------------------------------------------------------------------------------------------------


def _check_members(event: Event) -> Iterator[Finding]:
    indices = [member.member_index for member in event.members]
    if event.cardinality < 1 or len(indices) != event.cardinality:
        yield Finding("cardinality", event.event_id, f"K = {event.cardinality}, {len(indices)} members")
    if not event.is_complete:
        aborted = [member.member_index for member in event.members if member.finish_reason == "abort"]
        yield Finding(
            "complete", event.event_id, f"K = {event.cardinality}, member indices {indices}, aborted {aborted}"
        )
    twice = [agent for agent, count in Counter(member.agent for member in event.members).items() if count > 1]
    if twice:
        yield Finding("agents", event.event_id, f"{', '.join(twice)} twice")


def _check_versions(event: Event) -> Iterator[Finding]:
    versions: dict[str, set[int]] = {}
    for member in event.members:
        versions.setdefault(member.policy_id, set()).add(member.policy_version)
    for policy_id, met in versions.items():
        if len(met) > 1:
            yield Finding("version", event.event_id, f"policy {policy_id!r} answered with versions {sorted(met)}")


def _check_tokens(event: Event) -> Iterator[Finding]:
    for member in event.members:
        counts = (len(member.token_ids), len(member.behavior_logprobs), len(member.token_mask))
        where = f"member_index {member.member_index}"
        if len(set(counts)) > 1 and any(counts[:2]):  # an endpoint may count tokens without showing them
            yield Finding(
                "tokens",
                event.event_id,
                f"{where}: {counts[0]} tokens, {counts[1]} log-probs, {counts[2]} mask entries",
            )
        if not set(member.token_mask) <= {0, 1}:
            yield Finding("tokens", event.event_id, f"{where}: the mask holds {sorted(set(member.token_mask))}")
        yield from _check_logprobs(event, member)
        yield from _check_kept(event, member)


def _check_logprobs(event: Event, member: MemberRecord) -> Iterator[Finding]:
    for position, logprob in enumerate(member.behavior_logprobs):
        if not (math.isfinite(logprob) and logprob <= _LOGPROB_CEILING):
            where = f"member_index {member.member_index}, token {position}"
            yield Finding("logprobs", event.event_id, f"{where}: {logprob}")
            return


def _check_kept(event: Event, member: MemberRecord) -> Iterator[Finding]:
    kept = member.kept_token_ids
    where = f"member_index {member.member_index}"
    if kept and len(kept) != len(member.token_ids):
        yield Finding("tokens", event.event_id, f"{where}: {len(member.token_ids)} tokens, kept tokens of {len(kept)}")
        return
    for position, (token, left) in enumerate(zip(member.token_ids, kept, strict=False)):
        if token not in left:
            yield Finding("tokens", event.event_id, f"{where}: token {position} is {token}, not one of those kept")
            return


def _check_penalty(event: Event) -> Iterator[Finding]:
    is_malformed = any(not member.is_valid for member in event.members)
    if not (math.isfinite(event.penalty) and event.penalty >= 0) or (event.penalty > 0 and not is_malformed):
        yield Finding("penalty", event.event_id, f"penalty {event.penalty}, a malformed member: {is_malformed}")


# --- one episode --------------------------------------------------------------------------------------------------


def _check_order(episode: Episode) -> Iterator[Finding]:
    for number, event in enumerate(episode.events):
        expected = (f"{episode.episode_id}/e{number}", episode.episode_id, episode.task_id, episode.group_id)
        got = (event.event_id, event.episode_id, event.task_id, event.group_id)
        if got != expected:
            yield Finding("order", event.event_id, f"event, episode, task and group are {got}, expected {expected}")


def _check_states(episode: Episode) -> Iterator[Finding]:
    state_id = initial_state_id(episode.env_id, episode.task, episode.seed, episode.setup_tool_calls)
    for event in episode.events:
        if event.state_id != state_id:
            yield Finding("state", event.event_id, f"state id {event.state_id}, the history gives {state_id}")
            return
        texts = [member.text for member in event.members]
        state_id = next_state_id(state_id, event.event_type, texts, event.tool_calls)


def _check_rewards(episode: Episode) -> Iterator[Finding]:
    for event in episode.events:
        is_end = event.terminated or event.truncated
        expected = (episode.reward if is_end else 0.0) - event.penalty
        if not _is_close(event.reward, expected):
            yield Finding("reward", event.event_id, f"reward {event.reward}, expected {expected}")
    penalty = sum(event.penalty for event in episode.events)
    if not _is_close(episode.penalty, penalty):
        yield Finding("penalty", episode.episode_id, f"penalty {episode.penalty}, its events sum to {penalty}")


def _check_returns(episode: Episode) -> Iterator[Finding]:
    later = 0.0
    for event in reversed(episode.events):
        later += event.reward
        expected = later if episode.is_over else None
        if not _is_close(event.team_return, expected):
            yield Finding("return", event.event_id, f"R_e {event.team_return}, expected {expected}")


def _check_end(episode: Episode) -> Iterator[Finding]:
    flags = [(event.terminated, event.truncated) for event in episode.events]
    expected = [(False, False)] * len(flags)
    if flags:
        expected[-1] = (episode.terminated, episode.truncated)
    if flags != expected or (episode.terminated and episode.truncated) or (episode.is_over and not flags):
        ends = [event.event_id for event in episode.events if event.terminated or event.truncated]
        yield Finding(
            "end",
            episode.episode_id,
            f"terminated {episode.terminated}, truncated {episode.truncated}, ended by events {ends}",
        )


def _check_budget(episode: Episode) -> Iterator[Finding]:
    try:
        budget = Budget.of(episode.env_kwargs.get("budget"))
    except ConfigError as error:
        yield Finding("budget", episode.episode_id, str(error))
        return
    used = Usage.of(episode)
    for name in budget.exceeded_by(used):
        yield Finding("budget", episode.episode_id, f"{name}: {getattr(used, name)} spent of {getattr(budget, name)}")
    yield from _check_shares(episode, budget)


def _check_shares(episode: Episode, budget: Budget) -> Iterator[Finding]:
    used = Usage()
    for event in episode.events:
        share = budget.minus(used).share(max(event.cardinality, 1))
        spent = [sum(member.token_mask) for member in event.members]
        if share is not None and max(spent, default=0) > share:
            yield Finding("budget", event.event_id, f"members sampled {spent} tokens, the share of each is {share}")
        used = used.plus(Usage(team_tokens=sum(spent)))


def _is_close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


_EVENT_CHECKS: Sequence[Callable[[Event], Iterator[Finding]]] = (
    _check_members,
    _check_versions,
    _check_tokens,
    _check_penalty,
)
_EPISODE_CHECKS: Sequence[Callable[[Episode], Iterator[Finding]]] = (
    _check_order,
    _check_states,
    _check_rewards,
    _check_returns,
    _check_end,
    _check_budget,
)


# --- the table ----------------------------------------------------------------------------------------------------

TABLE_COLUMNS = ("event", "pre-action state", "outputs consumed", "state transition", "K_e")
"""Columns of the paper's event audit."""


def event_table(episode: Episode) -> list[dict[str, str | int]]:
    """Return the event audit of one episode: a row per transition, however many outputs it consumed."""
    rows: list[dict[str, str | int]] = []
    for number, event in enumerate(episode.events):
        following = episode.events[number + 1] if number + 1 < len(episode.events) else None
        values = (
            f"e{number} {event.event_type}",
            event.state_label,
            _outputs_consumed(event),
            _transition(episode, event, following),
            event.cardinality,
        )
        rows.append(dict(zip(TABLE_COLUMNS, values, strict=True)))
    return rows


def format_event_table(episode: Episode) -> str:
    """Return the event audit as a Markdown table that also reads well as plain text."""
    cells = [TABLE_COLUMNS, *(tuple(str(row[column]) for column in TABLE_COLUMNS) for row in event_table(episode))]
    cells = [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in cells]
    widths = [max(len(row[column]) for row in cells) for column in range(len(TABLE_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _outputs_consumed(event: Event) -> str:
    roles = Counter(member.role for member in event.members)
    malformed = sum(not member.is_valid for member in event.members)
    text = " + ".join(f"{count} {role}" for role, count in roles.items())
    return f"{text} ({malformed} malformed)" if malformed else text


def _transition(episode: Episode, event: Event, following: Event | None) -> str:
    if following is not None:
        calls = sum(call.kind == "tool" for call in event.tool_calls)
        return following.state_label + (f" ({calls} tool calls)" if calls else "")
    if not episode.is_over:
        return "pending"
    return f"{'truncated' if episode.truncated else 'terminal'}, team reward {episode.reward:g}"
