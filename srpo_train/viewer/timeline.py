"""One episode as a time line of events, ready to be shown by a page, a terminal or a report.

It is what a reader sees and nothing of how: every text is cut and made visible (`srpo_train.viewer.text`), members of
one active set stand together, each different prompt of theirs once, and what a tool returned is told apart into
passages. What the learner made of the events joins where it is known::

    timeline = build_timeline(episode)
    timeline.events[0].members[2].parsed          # Excerpt('5')
    timeline = build_timeline(episode, credits=credit_of_step(...))
    timeline.events[0].advantage                  # 0.71
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from srpo_envs.records import Episode, Event, MemberRecord, ToolCall
from srpo_train.summary import is_correct
from srpo_train.viewer.text import Excerpt, excerpt, one_line, visible, written

MAX_TEXT = 16_000
"""Characters that are shown of one text."""

MAX_TOKENS = 4_000
"""Tokens of one response that are shown one by one."""

_MAX_SHOWN = 2_000_000
"""Characters of a whole time line, about; an episode of very many texts has each cut shorter."""
_MIN_TEXT = 400
_MAX_LABEL = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class EventCredit:
    """What the returns of a step say about one event."""

    advantage: float | None = None
    """Â_e (eq. 6); None where the event was not trained on, or the advantage is not known."""
    member_advantages: tuple[float | None, ...] = ()
    """By member, where the objective compares rows."""
    left_out: str = ""
    """Why the event was not trained on: ``incomplete``, ``overlong`` or ``uniform``; empty when it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberScores:
    """What a checkpoint says about one response."""

    log_ratio: float
    """l_ej (eq. 3): sum over sampled tokens of the checkpoint's log-probability less the behavior policy's."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each response token under the checkpoint."""
    token_texts: tuple[str, ...] = ()
    """Each token as text."""
    ratio: float | None = None
    """The row's ratio, where the objective's unit is the row."""
    is_clipped: bool | None = None
    """Whether the clip holds it, where the objective's unit is the row; where it is the token, whether it holds any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventScores:
    """What a checkpoint says about one event."""

    members: tuple[MemberScores, ...]
    """By member."""
    log_ratio: float | None = None
    """L_e (eq. 4), where the objective's unit is the set."""
    ratio: float | None = None
    """rho_e, where the objective's unit is the set."""
    is_clipped: bool | None = None
    """Whether the clip holds it, where the objective's unit is the set and the advantage is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageView:
    """Something a search found."""

    title: str
    """What it is about; may be empty."""
    text: Excerpt
    """The words."""
    score: float | None
    """How well it fits; None where that is not recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolView:
    """One call of a tool or of the grader."""

    name: str
    """Which."""
    kind: Literal["tool", "grade"]
    """``grade`` is the environment's own scoring."""
    arguments: tuple[tuple[str, Excerpt], ...]
    """Name and value; one without a name where the arguments are no table."""
    passages: tuple[PassageView, ...]
    """What a search found; empty for other tools, and where nothing was found."""
    result: Excerpt
    """What came back, where it is no list of passages."""
    duration_s: float
    """Seconds it took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptView:
    """A prompt, and who read it."""

    agents: tuple[str, ...]
    """Members with this prompt."""
    text: Excerpt
    """The prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensView:
    """A response token by token; every list has one entry a token."""

    texts: tuple[str, ...]
    """As text; empty where no tokenizer was asked."""
    ids: tuple[int, ...]
    """Ids."""
    behavior: tuple[float, ...]
    """Log-probability under the policy that sampled it."""
    current: tuple[float, ...]
    """Log-probability under a checkpoint; empty where none was asked."""
    is_sampled: tuple[bool, ...]
    """False for text of the environment within the response."""
    num_omitted: int
    """Tokens that follow and are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberView:
    """One response."""

    index: int
    """Seat, from 0."""
    agent: str
    """Who."""
    role: str
    """The job."""
    policy: str
    """Parameters that answered; empty for a person or a script."""
    policy_version: int
    """Weight publications they had seen."""
    text: Excerpt
    """The response."""
    parsed: Excerpt
    """What the role's parser read; empty when malformed."""
    malformed_reason: str
    """Why the parser refused it; empty when it is valid."""
    finish_reason: str
    """``stop``, ``length`` or ``abort``."""
    num_tokens: int
    """Sampled tokens."""
    num_prompt_tokens: int
    """Tokens of its prompt; 0 where they are not recorded."""
    seconds: float | None
    """Generation; None where it was not measured."""
    mean_logprob: float | None
    """Mean log-probability of the sampled tokens under the behavior policy; None without any."""
    advantage: float | None
    """Of this row alone, where the objective compares rows."""
    log_ratio: float | None
    """l_ej against a checkpoint."""
    ratio: float | None
    """Of this row against a checkpoint, where the objective's unit is the row."""
    is_clipped: bool | None
    """Whether the clip holds the row or a token of it, where the objective's unit is one of these."""
    tokens: TokensView
    """Token by token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventView:
    """One event: what its active set saw and answered, and where the world went."""

    event_id: str
    """``episode_id/eN``."""
    event_type: str
    """Kind of decision."""
    turn: int
    """Routing decision, from 0."""
    state_id: str
    """Digest of the pre-action state."""
    state_label: str
    """That state in a few words."""
    cardinality: int
    """K as announced."""
    is_complete: bool
    """Whether every announced member answered."""
    prompts: tuple[PromptView, ...]
    """Each different prompt once."""
    members: tuple[MemberView, ...]
    """Side by side."""
    tool_calls: tuple[ToolView, ...]
    """What ran in this transition."""
    reward: float
    """Of the transition."""
    penalty: float
    """Part of it, for malformed answers."""
    team_return: float | None
    """R_e."""
    credit: EventCredit | None
    """What the returns say; None where that is not known."""
    log_ratio: float | None
    """L_e against a checkpoint."""
    ratio: float | None
    """rho_e against a checkpoint."""
    is_clipped: bool | None
    """Whether the clip holds it."""

    @property
    def advantage(self) -> float | None:
        """Â_e; None where it is not known."""
        return self.credit.advantage if self.credit else None

    @property
    def num_malformed(self) -> int:
        """Members whose answer could not be read."""
        return sum(bool(member.malformed_reason) for member in self.members)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One episode."""

    episode_id: str
    """Which."""
    env_id: str
    """The environment."""
    task_id: str
    """The task."""
    group_id: str
    """Rollouts of one prompt share it."""
    seed: int
    """Of the environment."""
    question: Excerpt
    """What is asked, as far as the task names it; else the whole task."""
    gold: Excerpt
    """The right answer; empty where the task names none."""
    outcome: tuple[tuple[str, Excerpt], ...]
    """What the workflow says of the end, name and value."""
    reward: float
    """Team reward, penalties not taken off."""
    penalty: float
    """Sum of all penalties."""
    is_correct: bool
    """Whether the task was solved."""
    ending: Literal["terminated", "truncated", "unfinished"]
    """How it ended."""
    num_tokens: int
    """C_tok of eq. 8."""
    num_calls: int
    """C_call of eq. 8."""
    num_tool_calls: int
    """C_tool of eq. 8."""
    setup_tool_calls: tuple[ToolView, ...]
    """Calls before the first event."""
    events: tuple[EventView, ...]
    """In order."""
    remark: str = ""
    """What could not be computed and why; empty when nothing is missing."""


def build_timeline(
    episode: Episode,
    *,
    credits: Mapping[str, EventCredit] | None = None,
    scores: Mapping[str, EventScores] | None = None,
    remark: str = "",
    max_text: int = MAX_TEXT,
    max_tokens: int = MAX_TOKENS,
) -> Timeline:
    """Return the time line of an episode.

    Args:
        episode: As it was stored.
        credits: What the returns of its step say, by event id.
        scores: What a checkpoint says, by event id.
        remark: What is missing among these, and why.
        max_text: Characters of one text.
        max_tokens: Tokens of one response that are listed one by one.
    """
    limit = min(max_text, max(_MIN_TEXT, _MAX_SHOWN // max(1, _num_texts(episode))))
    question, gold = _question(episode.task)
    return Timeline(
        episode_id=one_line(episode.episode_id, _MAX_LABEL),
        env_id=one_line(episode.env_id, _MAX_LABEL),
        task_id=one_line(episode.task_id, _MAX_LABEL),
        group_id=one_line(episode.group_id, _MAX_LABEL),
        seed=episode.seed,
        question=excerpt(question, limit),
        gold=excerpt(gold, limit),
        outcome=_outcome(episode.info, limit),
        reward=episode.reward,
        penalty=episode.penalty,
        is_correct=is_correct(episode),
        ending="terminated" if episode.terminated else "truncated" if episode.truncated else "unfinished",
        num_tokens=episode.num_tokens,
        num_calls=episode.num_calls,
        num_tool_calls=episode.num_tool_calls,
        setup_tool_calls=_tools(episode.setup_tool_calls, limit),
        events=tuple(
            _event(event, (credits or {}).get(event.event_id), (scores or {}).get(event.event_id), limit, max_tokens)
            for event in episode.events
        ),
        remark=visible(remark),
    )


def view_event(event: Event) -> EventView:
    """Return one event as it is shown, such as one that has just happened."""
    return _event(event, None, None, MAX_TEXT, MAX_TOKENS)


def view_prompts(given: Iterable[tuple[str, str]], limit: int = MAX_TEXT) -> tuple[PromptView, ...]:
    """Return each different prompt once, from pairs of an agent and its prompt."""
    readers: dict[str, list[str]] = {}
    for agent, prompt in given:
        readers.setdefault(prompt, []).append(one_line(agent, _MAX_LABEL))
    return tuple(PromptView(agents=tuple(agents), text=excerpt(prompt, limit)) for prompt, agents in readers.items())


def question_of(task: Mapping[str, Any]) -> str:
    """Return what a task asks, or the whole task where it names no question."""
    return _question(task)[0]


def _event(
    event: Event, credit: EventCredit | None, scores: EventScores | None, limit: int, max_tokens: int
) -> EventView:
    given = scores.members if scores else [None] * len(event.members)
    advantages = credit.member_advantages if credit and credit.member_advantages else [None] * len(event.members)
    return EventView(
        event_id=one_line(event.event_id, _MAX_LABEL),
        event_type=one_line(event.event_type, _MAX_LABEL),
        turn=event.turn,
        state_id=one_line(event.state_id, _MAX_LABEL),
        state_label=one_line(event.state_label, _MAX_LABEL),
        cardinality=event.cardinality,
        is_complete=event.is_complete,
        prompts=view_prompts(((member.agent, member.prompt) for member in event.members), limit),
        members=tuple(
            _member(member, advantage, score, limit, max_tokens)
            for member, advantage, score in zip(event.members, advantages, given, strict=True)
        ),
        tool_calls=_tools(event.tool_calls, limit),
        reward=event.reward,
        penalty=event.penalty,
        team_return=event.team_return,
        credit=credit,
        log_ratio=scores.log_ratio if scores else None,
        ratio=scores.ratio if scores else None,
        is_clipped=scores.is_clipped if scores else None,
    )


def _member(
    member: MemberRecord, advantage: float | None, scores: MemberScores | None, limit: int, max_tokens: int
) -> MemberView:
    sampled = [value for value, flag in zip(member.behavior_logprobs, member.token_mask, strict=False) if flag]
    return MemberView(
        index=member.member_index,
        agent=one_line(member.agent, _MAX_LABEL),
        role=one_line(member.role, _MAX_LABEL),
        policy=one_line(member.policy_id, _MAX_LABEL),
        policy_version=member.policy_version,
        text=excerpt(member.text, limit),
        parsed=excerpt(written(member.parsed), limit) if member.is_valid else Excerpt(),
        malformed_reason=one_line(member.malformed_reason, 2 * _MAX_LABEL),
        finish_reason=member.finish_reason,
        num_tokens=sum(member.token_mask),
        num_prompt_tokens=len(member.prompt_token_ids),
        seconds=member.timings.get("generate_s"),
        mean_logprob=math.fsum(sampled) / len(sampled) if sampled else None,
        advantage=advantage,
        log_ratio=scores.log_ratio if scores else None,
        ratio=scores.ratio if scores else None,
        is_clipped=scores.is_clipped if scores else None,
        tokens=_tokens(member, scores, max_tokens),
    )


def _tokens(member: MemberRecord, scores: MemberScores | None, max_tokens: int) -> TokensView:
    return TokensView(
        texts=tuple(map(_token_text, scores.token_texts[:max_tokens])) if scores else (),
        ids=member.token_ids[:max_tokens],
        behavior=member.behavior_logprobs[:max_tokens],
        current=scores.logprobs[:max_tokens] if scores else (),
        is_sampled=tuple(bool(flag) for flag in member.token_mask[: len(member.token_ids)][:max_tokens]),
        num_omitted=max(0, len(member.token_ids) - max_tokens),
    )


def _token_text(text: str) -> str:
    return visible(text[:_MAX_LABEL])


def _tools(calls: Iterable[ToolCall], limit: int) -> tuple[ToolView, ...]:
    return tuple(_tool(call, limit) for call in calls)


def _tool(call: ToolCall, limit: int) -> ToolView:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {"": call.arguments}
    is_search = _is_list_of_passages(call.result)
    return ToolView(
        name=one_line(call.name, _MAX_LABEL),
        kind=call.kind,
        arguments=_named_values(arguments, limit),
        passages=tuple(_passage(item, limit) for item in call.result) if is_search else (),
        result=Excerpt() if is_search else excerpt(written(call.result), limit),
        duration_s=call.duration_s,
    )


def _is_list_of_passages(result: Any) -> bool:
    return (
        isinstance(result, (list, tuple))
        and bool(result)
        and all(isinstance(item, Mapping) and isinstance(item.get("text"), str) for item in result)
    )


def _passage(item: Mapping[str, Any], limit: int) -> PassageView:
    score = item.get("score")
    return PassageView(
        title=one_line(str(item.get("title", "")), _MAX_LABEL),
        text=excerpt(item["text"], limit),
        score=float(score) if isinstance(score, (int, float)) else None,
    )


def _question(task: Mapping[str, Any]) -> tuple[str, str]:
    """What a task asks, and its golden answer where it names one."""
    question = next((task[name] for name in ("question", "prompt", "problem") if isinstance(task.get(name), str)), None)
    gold = task.get("gold", "")
    return question if question is not None else written(dict(task)), "" if gold is None else written(gold)


def _named_values(values: Mapping[str, Any], limit: int) -> tuple[tuple[str, Excerpt], ...]:
    return tuple((one_line(str(name), _MAX_LABEL), excerpt(written(value), limit)) for name, value in values.items())


def _outcome(info: Mapping[str, Any], limit: int) -> tuple[tuple[str, Excerpt], ...]:
    """What a workflow says of the end; a table of measures becomes one line, and what there is not becomes nothing."""
    return _named_values({name: _told(value) for name, value in info.items()}, limit)


def _told(value: Any) -> Any:
    if isinstance(value, Mapping):
        return " · ".join(
            f"{name} {item:.4g}" if isinstance(item, float) else f"{name} {written(item)}"
            for name, item in value.items()
        )
    return "" if value is None else value


def _num_texts(episode: Episode) -> int:
    members = [member for event in episode.events for member in event.members]
    calls = [*episode.setup_tool_calls, *(call for event in episode.events for call in event.tool_calls)]
    found = sum(len(call.result) if isinstance(call.result, (list, tuple)) else 1 for call in calls)
    return 3 * len(members) + len(calls) + found + len(episode.info)
