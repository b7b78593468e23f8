"""How ``srpo train --ray`` shows places, who takes them, and what happens to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from srpo_train.cluster.placement import Fit, Group, Node
from srpo_train.cluster.roster import Arrived, Began, News, Said, Seat, Stepped, Warned
from srpo_train.tracking.terminal import TerminalSink

if TYPE_CHECKING:
    from pathlib import Path

    from srpo_train.config import Recipe


def train_and_show(console: Console, recipe: Recipe, *, resume: bool) -> Path:
    """Train on a cluster, and show where everything is and how it goes."""
    from srpo_train.cluster.running import train_on_ray

    screen = Screen(console, recipe.train.num_steps)
    try:
        return train_on_ray(recipe, resume=resume, on_news=screen.show)
    finally:
        screen.close()


def show_places(console: Console, groups: Sequence[Group], nodes: Sequence[Node], layout: Fit) -> None:
    """Print which places a run needs and where they would be, and what there is no room for."""
    table = Table("places", _right("number"), _right("CPU"), _right("GPU"), "strategy", "where", box=None)
    for group, names in zip(groups, layout.nodes, strict=True):
        where = ", ".join(f"{names.count(name)} on {name}" for name in dict.fromkeys(names))
        table.add_row(group.name, str(group.count), f"{group.cpus:g}", str(group.gpus), group.strategy, where or "-")
    console.print("[bold]places[/bold]")
    console.print(table)
    room = ", ".join(f"{node.name} ({node.cpus:g} CPU, {node.gpus:g} GPU)" for node in nodes)
    console.print(f"on {room or 'no machine at all'}", markup=False, highlight=False, soft_wrap=True)
    for line in layout.missing:
        console.print(Text("no room: ", style="bold red") + Text(line))
    if any(node.gpus for node in nodes) and not any(group.gpus for group in groups):
        console.print(Text("note: ", style="yellow") + Text("there are GPUs, and ray.gpus_per_rank = 0 uses none"))


class Screen:
    """Shows a run as its news come in.

    Args:
        console: Where.
        num_steps: Steps of the run.
    """

    def __init__(self, console: Console, num_steps: int) -> None:
        self._console = console
        self._num_steps = num_steps
        self._steps: TerminalSink | None = None
        self._seats: dict[str, Seat] = {}

    def show(self, news: News) -> None:
        """Show one piece of news."""
        if isinstance(news, Arrived):
            self._arrive(news.seat)
        elif isinstance(news, Began):
            self._begin(news.done_steps)
        elif isinstance(news, Said):
            level = logging.getLevelName(news.level)
            self._console.print(f"{level} {news.name}: {news.message}", markup=False, highlight=False, soft_wrap=True)
        elif self._steps and isinstance(news, Stepped):
            self._steps.write(news.step, news.values)
        elif self._steps and isinstance(news, Warned):
            self._steps.warn(news.message)

    def close(self) -> None:
        """Let go of the terminal."""
        if self._steps:
            self._steps.close()

    def _arrive(self, seat: Seat) -> None:
        self._seats[seat.name] = seat
        if seat.starts > 1:
            where = f"{seat.node}, pid {seat.pid}" + (f", {seat.url}" if seat.url else "")
            self._console.print(
                f"{seat.name} was started again ({where})", markup=False, highlight=False, soft_wrap=True
            )

    def _begin(self, done_steps: int) -> None:
        """Everybody is there when the main rank begins: say who is where, at the first time."""
        if self._steps is None:
            self._console.print(_seats(self._seats.values()))
        else:
            self._steps.close()
            self._console.print(
                f"training goes on from step {done_steps}", markup=False, highlight=False, soft_wrap=True
            )
        self._steps = TerminalSink(self._num_steps, console=self._console, done_steps=done_steps)


def _seats(seats: Iterable[Seat]) -> Table:
    table = Table("what", "machine", _right("pid"), "address", box=None, header_style="dim", pad_edge=False)
    for seat in sorted(seats, key=lambda seat: (seat.kind != "rank", seat.kind, seat.name)):
        table.add_row(seat.name, seat.node, str(seat.pid), seat.url or "-")
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right")
