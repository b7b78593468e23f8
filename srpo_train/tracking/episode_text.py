"""An episode as plain text and as a row of a table, for trackers that show texts."""

from __future__ import annotations

from collections.abc import Iterator

from srpo_train.showcase import ShownEpisode, largest_cardinality, num_malformed
from srpo_train.viewer.timeline import EventView, MemberView, Timeline, ToolView, build_timeline

COLUMNS = (
    "step",
    "episode",
    "why",
    "task",
    "reward",
    "penalty",
    "events",
    "largest K",
    "malformed",
    "tokens",
    "transcript",
)
"""Of a table of episodes."""

_MAX_TEXT = 2000  # characters of one text: trackers are for looking, and `events/` has all of it


def table_row(step: int, shown: ShownEpisode) -> list[str | float]:
    """Return the cells of an episode, one for each of `COLUMNS`."""
    episode = shown.episode
    timeline = _timeline(shown)
    return [
        step,
        timeline.episode_id,
        shown.reason,
        timeline.task_id,
        episode.reward,
        episode.penalty,
        len(episode.events),
        largest_cardinality(episode),
        num_malformed(episode),
        episode.num_tokens,
        _transcript(timeline),
    ]


def described(shown: ShownEpisode) -> str:
    """Return which episode this is, why it is shown, and what its members said, as lines of plain text."""
    timeline = _timeline(shown)
    return f"{shown.reason}: {timeline.episode_id}, task {timeline.task_id}\n{_transcript(timeline)}"


def as_code(text: str) -> str:
    """Return a text as Markdown in which nothing is markup: every line is indented, so that none can end the block."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _timeline(shown: ShownEpisode) -> Timeline:
    return build_timeline(shown.episode, max_text=_MAX_TEXT, max_tokens=0)


def _transcript(timeline: Timeline) -> str:
    """What is asked, event by event what was answered, and how it ended; members of one active set stand together."""
    return "\n".join(_lines(timeline))


def _lines(timeline: Timeline) -> Iterator[str]:
    yield from _indented(str(timeline.question), 0)
    for number, event in enumerate(timeline.events):
        yield f"e{number} {event.event_type}, K = {event.cardinality}: {event.state_label}"
        for member in event.members:
            yield f"  {member.agent}{_told(member)}"
            yield from _indented(str(member.text), 4)
        yield from _tool_lines(event)
    yield f"team reward {timeline.reward:g}, penalties {timeline.penalty:g}, {timeline.ending}"


def _tool_lines(event: EventView) -> Iterator[str]:
    for call in event.tool_calls:
        if call.kind == "tool":
            yield f"  {call.name}: {_found(call)}"


def _found(call: ToolView) -> str:
    if call.passages:
        return "; ".join(passage.title or str(passage.text)[:80] for passage in call.passages)
    return " ".join(str(call.result).split())


def _told(member: MemberView) -> str:
    return f" (malformed: {member.malformed_reason})" if member.malformed_reason else ""


def _indented(text: str, width: int) -> Iterator[str]:
    yield from (" " * width + line for line in text.split("\n"))
