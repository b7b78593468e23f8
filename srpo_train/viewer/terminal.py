"""The viewer in a terminal: episodes of a run on the left, the time line of one on the right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from srpo_envs.errors import SrpoError
from srpo_train.viewer.opened import UNREADABLE, OpenRuns
from srpo_train.viewer.rendering import TimelineRendering
from srpo_train.viewer.search import SORTS, Page, find, parse_query
from srpo_train.viewer.text import one_line
from srpo_train.viewer.timeline import Timeline

_PAGE = 200
_NEAR_END = 20
_FOLLOW_S = 2.0
_MAX_QUESTION = 34


class TerminalViewer(App[None]):
    """Browses the stored episodes of runs with the keyboard.

    Args:
        roots: Directories of runs and evaluations, or folders of them.
        query: What to begin with, see `srpo_train.viewer.search`.
    """

    TITLE = "srpo view"
    CSS = """
    #browse { width: 66; border-right: solid $primary 40%; }
    #search { border: none; height: 1; margin: 0 1; background: $boost; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #detail { padding: 0 2; }
    .-narrow #browse { width: 100%; }
    .-narrow #detail { display: none; }
    .-narrow.reading #browse { display: none; }
    .-narrow.reading #detail { display: block; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - declared so by textual
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "move(1)", "next"),
        Binding("k", "move(-1)", "previous"),
        Binding("slash", "search", "search"),
        Binding("r", "run(1)", "run"),
        Binding("s", "sort", "order"),
        Binding("c", "checkpoint", "checkpoint"),
        Binding("enter", "read", "read", priority=False),
        Binding("escape", "to_list", "list"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, roots: list[Path], query: str = "") -> None:
        super().__init__()
        self._runs = OpenRuns(roots, follow_every_s=_FOLLOW_S)
        self._keys = [place.key for place in self._runs.catalogue.places()]
        self._run = self._keys[0]
        self._sort = next(iter(SORTS))
        self._query = query
        self._page = Page(total=0, newest=0, rows=())
        self._rows: list[Mapping[str, Any]] = []
        self._step = -1
        self._told = ""
        self._known = 0

    def compose(self) -> ComposeResult:
        """Lay out the two panes."""
        with Horizontal():
            with Vertical(id="browse"):
                yield Input(self._query, placeholder="words, or reward<1 role:verifier is:malformed", id="search")
                yield Static(id="status", markup=False)
                yield DataTable(cursor_type="row", id="list", zebra_stripes=True)
            with VerticalScroll(id="detail"):
                yield Static(id="timeline", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow, and ask for the first page."""
        self._runs.start()
        table = self.query_one(DataTable)
        table.add_columns("", "question", "reward", "K", "tok", "bad", "step")
        self.action_find()
        table.focus()
        self.set_interval(_FOLLOW_S, self._look)

    def on_unmount(self) -> None:
        """Stop following."""
        self._runs.close()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Ask what was typed."""
        self._query = message.value
        self.action_find()
        self.query_one(DataTable).focus()

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        """Show the episode under the cursor, and fetch more where the list ends."""
        place = message.cursor_row
        if place < len(self._rows):
            self._show(self._rows[place])
        if len(self._rows) - place < _NEAR_END and len(self._rows) < self._page.total:
            self._fetch()

    def on_data_table_row_selected(self) -> None:
        """Read the episode in a narrow terminal, where only one pane has room."""
        self.action_read()

    def action_find(self) -> None:
        """Ask anew."""
        self._rows = []
        self._page = Page(total=0, newest=0, rows=())
        self.query_one(DataTable).clear()
        self._fetch()

    def action_move(self, by: int) -> None:
        """Go to another episode, or scroll the one that is read."""
        table = self.query_one(DataTable)
        table.move_cursor(row=max(0, table.cursor_row + by))

    def action_search(self) -> None:
        """Type a search."""
        self.query_one(Input).focus()

    def action_run(self, by: int) -> None:
        """Go to another run."""
        self._run = self._keys[(self._keys.index(self._run) + by) % len(self._keys)]
        self._step = -1
        self.action_find()

    def action_sort(self) -> None:
        """Take another order."""
        orders = list(SORTS)
        self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        self.action_find()

    def action_checkpoint(self) -> None:
        """Score the episode with the next checkpoint of the run, or with none."""
        from srpo_train.viewer.runs import checkpoints

        try:
            place_of_run = self._runs.catalogue[self._run]
        except SrpoError as error:
            self._tell(str(error))
            return
        steps = [-1, *(item["step"] for item in checkpoints(place_of_run))]
        place = steps.index(self._step) if self._step in steps else 0
        self._step = steps[(place + 1) % len(steps)]
        self._tell_state()
        table = self.query_one(DataTable)
        if table.cursor_row < len(self._rows):
            self._show(self._rows[table.cursor_row])

    def action_read(self) -> None:
        """Go to the time line."""
        self.screen.add_class("reading")
        self.query_one("#detail").focus()

    def action_to_list(self) -> None:
        """Go to the list."""
        self.screen.remove_class("reading")
        self.query_one(DataTable).focus()

    def _look(self) -> None:
        """Ask again where the list is at its top and the log has grown; elsewhere say that it has."""
        try:
            index = self._runs.with_episodes(self._run).index
        except UNREADABLE as error:  # deleted, for instance; another run may be chosen
            self._tell(str(error))
            return
        gained = index.progress.num_episodes - self._known
        if gained and self.query_one(DataTable).cursor_row <= 0:
            self.action_find()
        elif gained:
            self._tell_state(f" · {gained:,} new")

    @work(thread=True, exclusive=True, group="list")
    def _fetch(self) -> None:
        """Fetch the next page, beside the application."""
        try:
            run = self._runs.with_episodes(self._run)
            query = parse_query(self._query, run.curves.alarm_steps())
            page = find(
                run.index, query, sort=self._sort, offset=len(self._rows), limit=_PAGE, newest=self._page.newest
            )
        except UNREADABLE as error:
            self.call_from_thread(self._tell, str(error))
            return
        self._known = run.index.progress.num_episodes
        self.call_from_thread(self._add, page)

    def _add(self, page: Page) -> None:
        table = self.query_one(DataTable)
        self._page = page
        self._rows.extend(page.rows)
        for row in page.rows:
            table.add_row(*_cells(row))
        self._tell_state()
        if not page.rows and not self._rows:
            self.query_one("#timeline", Static).update(Text("no episode here", "dim"))

    def _tell_state(self, news: str = "") -> None:
        scored = f" · checkpoint {self._step}" if self._step >= 0 else ""
        total = self._page.total
        found = f"{total:,} episode{'s' * (total != 1)}"
        self._tell(f"{self._run} · {found} · {self._sort}{scored}{news}")

    def _tell(self, text: str) -> None:
        self.query_one("#status", Static).update(Text(one_line(text)))

    @work(thread=True, exclusive=True, group="detail")
    def _show(self, row: Mapping[str, Any]) -> None:
        """Show an episode at once, then what was learned from it."""
        wanted = (self._run, row["episode_id"], row["file"], self._step)
        self._told = repr(wanted)
        try:
            self.call_from_thread(self._draw, wanted, self._runs.timeline(*wanted[:2], file=wanted[2]))
            if row["step"] is not None:
                learned = self._runs.timeline(*wanted[:2], file=wanted[2], credit=True, step=wanted[3])
                self.call_from_thread(self._draw, wanted, learned)
                if learned.remark:
                    self.call_from_thread(self._tell, learned.remark)
        except UNREADABLE as error:
            self.call_from_thread(self._tell, str(error))

    def _draw(self, wanted: tuple[str, str, str, int], timeline: Timeline) -> None:
        if self._told == repr(wanted):
            self.query_one("#timeline", Static).update(TimelineRendering(timeline))


def _cells(row: Mapping[str, Any]) -> list[Text]:
    right = Text("✓", "green") if row["correct"] else Text("✗", "red")
    question = Text(one_line(row["question"] or row["task_id"], _MAX_QUESTION))
    malformed = Text(str(row["malformed"]) if row["malformed"] else "", "red", justify="right")
    numbers = (f"{row['reward']:.3g}", str(row["k"]), f"{row['tokens']:,}")
    step = "" if row["step"] is None else str(row["step"])
    return [
        right,
        question,
        *(Text(value, justify="right") for value in numbers),
        malformed,
        Text(step, justify="right"),
    ]
