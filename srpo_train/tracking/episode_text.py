"""An episode as plain text and as a row of a table, for trackers that show texts."""

from __future__ import annotations

from collections.abc import Iterator

from srpo_envs.records import Episode, MemberRecord
from srpo_train.reporting.shown_text import shown_text
from srpo_train.showcase import ShownEpisode, largest_cardinality, num_malformed

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

_MOST = 2000
"""Characters of one output: trackers are for looking, and `events/` has every one."""


def table_row(step: int, shown: ShownEpisode) -> list[str | float]:
    """Return the cells of an episode, one for each of `COLUMNS`."""
    episode = shown.episode
    return [
        step,
        shown_text(episode.episode_id),
        shown.reason,
        shown_text(episode.task_id),
        episode.reward,
        episode.penalty,
        len(episode.events),
        largest_cardinality(episode),
        num_malformed(episode),
        episode.num_tokens,
        transcript(episode),
    ]


def headline(shown: ShownEpisode) -> str:
    """Return a line that says which episode this is and why it is shown."""
    episode = shown.episode
    return shown_text(f"{shown.reason}: {episode.episode_id}, task {episode.task_id}, team reward {episode.reward:g}")


def transcript(episode: Episode) -> str:
    """Return what an episode's members said, event by event; members of one active set stand together."""
    return "\n".join(_lines(episode))


def as_code(text: str) -> str:
    """Return a text as Markdown in which nothing is markup: every line is indented, so that none can end the block."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _lines(episode: Episode) -> Iterator[str]:
    for number, event in enumerate(episode.events):
        yield f"e{number} {event.event_type} · K = {event.cardinality} · {shown_text(event.state_label)}"
        for member in event.members:
            yield f"  {member.agent}{_told(member)}"
            yield from (f"    {line}" for line in shown_text(member.text, _MOST).split("\n"))
    yield f"team reward {episode.reward:g}" + (f", penalties {episode.penalty:g}" if episode.penalty else "")


def _told(member: MemberRecord) -> str:
    return f" (malformed: {shown_text(member.malformed_reason)})" if member.malformed_reason else ""
