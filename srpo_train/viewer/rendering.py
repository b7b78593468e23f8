"""The time line on a terminal: members of one active set side by side where the terminal is wide enough.

Texts of a time line are made visible when it is built, and here they only ever become `rich.text.Text`, so nothing in
them is read as markup or steers the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from srpo_train.viewer.text import TAG, Excerpt
from srpo_train.viewer.timeline import EventView, MemberView, PromptView, Timeline, ToolView

_MIN_MEMBER_WIDTH = 26
_MAX_CHARACTERS = 4000
_MAX_LINES = 100
_MAX_PASSAGE = 300
_STRIP_CAP = 1.0  # nats at which a colour is full
_UP = ("#d7e6f8", "#9cc3ee", "#5b9be0")
_DOWN = ("#fbe3d0", "#f3ba8b", "#e58b45")


class EventRendering:
    """One event of a time line.

    Args:
        event: The event.
        is_announced: Its name and prompts are on the terminal already, so that only what followed is shown.
    """

    def __init__(self, event: EventView, *, is_announced: bool = False) -> None:
        self._event = event
        self._is_announced = is_announced

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield head, prompts, members, tool calls and what was learned."""
        event = self._event
        if not self._is_announced:
            yield Rule(_head(event), align="left", style="cyan")
            yield from (PromptRendering(prompt) for prompt in event.prompts)
        if not event.is_complete:
            yield Text(f"incomplete: {len(event.members)} of {event.cardinality} members answered", style="bold red")
        yield _side_by_side([_member(member) for member in event.members], options.max_width)
        yield from (Padding(_tool(call), (0, 0, 0, 2)) for call in event.tool_calls)
        yield Padding(_learned(event), (0, 0, 1, 2))


class PromptRendering:
    """A prompt and who reads it.

    Args:
        prompt: The prompt.
    """

    def __init__(self, prompt: PromptView) -> None:
        self._prompt = prompt

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield a panel."""
        title = Text(f"to {', '.join(self._prompt.agents)}", style="dim")
        yield Panel(_words(self._prompt.text), title=title, title_align="left", border_style="dim")


class TimelineRendering:
    """A whole episode.

    Args:
        timeline: The episode.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield what was asked and how it ended, then every event."""
        timeline = self._timeline
        yield _outcome(timeline)
        yield Padding(_words(timeline.question, "bold"), (1, 0))
        yield _facts([("gold", timeline.gold), *timeline.outcome])
        yield Text(f"{timeline.episode_id} · {timeline.task_id} · {timeline.env_id}\n", style="dim")
        yield from (_tool(call) for call in timeline.setup_tool_calls)
        yield from (EventRendering(event) for event in timeline.events)


def _outcome(timeline: Timeline) -> Text:
    mark = Text(" ✓ right ", "black on green") if timeline.is_correct else Text(" ✗ wrong ", "white on red")
    ending = "" if timeline.ending == "terminated" else f"{timeline.ending}, "
    counts = f"{len(timeline.events)} events, {timeline.num_tokens} tokens, {timeline.num_calls} calls"
    tools = f", {timeline.num_tool_calls} tool calls" if timeline.num_tool_calls else ""
    penalty = f", penalties {timeline.penalty:g}" if timeline.penalty else ""
    return mark + Text(f"  {ending}team reward {timeline.reward:g}{penalty}, {counts}{tools}")


def _facts(values: Iterable[tuple[str, Excerpt]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in values:
        if value.text:
            table.add_row(Text(name, "dim"), _words(value))
    return table


def _head(event: EventView) -> Text:
    head = Text(event.event_id, "bold") + Text(f"  {event.event_type}", "bold cyan")
    return head + Text(f"  K = {event.cardinality}", "cyan") + Text(f"  turn {event.turn}  {event.state_label}", "dim")


def _side_by_side(members: Sequence[RenderableType], width: int) -> RenderableType:
    """Columns of equal width, in as many rows as it takes."""
    per_row = max(1, min(len(members), width // _MIN_MEMBER_WIDTH))
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in range(per_row):
        table.add_column(ratio=1)
    for first in range(0, len(members), per_row):
        table.add_row(*members[first : first + per_row])
    return table


def _member(member: MemberView) -> Panel:
    title = Text(member.agent, "bold cyan")
    policy = f", {member.policy} v{member.policy_version}" if member.policy else ""
    cut = "" if member.finish_reason == "stop" else f", {member.finish_reason}"
    spent = Text(f"{member.num_tokens} tokens{policy}{cut}", "dim") if member.num_tokens else Text(policy[2:], "dim")
    reading = (
        Text("malformed ", "bold red") + Text(member.malformed_reason, "red")
        if member.malformed_reason
        else Text("read as ", "dim") + _words(member.parsed, "green")
    )
    parts: list[RenderableType] = [_words(member.text), reading]
    if member.tokens.current:
        parts.append(_strip(member))
    style = "red" if member.malformed_reason else "bright_black"
    return Panel(
        Group(*parts), title=title, title_align="left", subtitle=spent, subtitle_align="right", border_style=style
    )


def _strip(member: MemberView) -> Text:
    """Each token on a ground that says how much more or less likely a checkpoint finds it."""
    tokens = member.tokens
    strip = Text(f"ℓ {member.log_ratio:+.3g}  " if member.log_ratio is not None else "", "dim")
    for text, behavior, current in zip(tokens.texts, tokens.behavior, tokens.current, strict=True):
        shade = round(min(1.0, abs(current - behavior) / _STRIP_CAP) * len(_UP))
        colors = _UP if current > behavior else _DOWN
        strip.append(text.replace("\n", "↵"), f"black on {colors[shade - 1]}" if shade else "")
    return strip


def _tool(call: ToolView) -> Group:
    arguments = " · ".join(f"{name} = {value}" if name else str(value) for name, value in call.arguments)
    head = Text("graded " if call.kind == "grade" else f"{call.name} ", "bold magenta") + Text(arguments, "magenta")
    if call.kind == "grade":
        return Group(head + Text(f"  {call.result}", "bold"))
    found = [
        Text(f"  {number}. ", "dim") + Text(passage.title, "bold") + Text(f"  {_one_line(passage.text)}")
        for number, passage in enumerate(call.passages, start=1)
    ]
    return Group(head, *(found or [Text("  ") + Text(_one_line(call.result) or "nothing", "dim")]))


def _learned(event: EventView) -> Text:
    line = Text(f"reward {event.reward:g}")
    if event.penalty:
        line.append(f" (penalty {event.penalty:g})", "yellow")
    if event.team_return is not None:
        line.append(f"   R {event.team_return:g}")
    if event.credit and event.credit.left_out:
        line.append(f"   not trained on: {event.credit.left_out}", "yellow")
    elif event.advantage is not None:
        line.append(f"   Â {event.advantage:+.3g}", "green" if event.advantage > 0 else "red")
    if event.ratio is not None:
        line.append(f"   ρ {event.ratio:.4g}")
        if event.is_clipped is not None:
            line.append("  clipped" if event.is_clipped else "  not clipped", "yellow" if event.is_clipped else "dim")
    return line


def _words(excerpt: Excerpt, style: str = "") -> Text:
    cut = "\n".join(excerpt.text[:_MAX_CHARACTERS].split("\n")[:_MAX_LINES])
    num_omitted = excerpt.num_omitted + len(excerpt.text) - len(cut)
    text = Text(cut, style=style, overflow="fold")
    text.highlight_regex(TAG, "bold magenta")
    if num_omitted:
        text.append(f" … {num_omitted:,} more characters", "yellow")
    return text


def _one_line(excerpt: Excerpt) -> str:
    line = " ".join(excerpt.text.split())
    return line if len(line) <= _MAX_PASSAGE else line[: _MAX_PASSAGE - 1] + "…"
