"""The time line on a terminal, and the viewer there."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import pytest
from factories import make_episode, make_event, make_member
from rich.console import Console
from viewer_world import delete, hostile_episode, make_viewed_run, step_episodes, write_step

from srpo_train.viewer.rendering import EventRendering, TimelineRendering
from srpo_train.viewer.timeline import EventCredit, EventScores, MemberScores, build_timeline, view_event

STEERING = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Anything a terminal obeys that is not a colour."""


def drawn(what: object, width: int = 120, *, in_color: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=in_color, color_system="truecolor" if in_color else None).print(what)
    return file.getvalue()


def test_members_stand_side_by_side_where_there_is_room() -> None:
    event = view_event(make_event(3))
    (line,) = [line for line in drawn(EventRendering(event)).splitlines() if "solver_0" in line and "to " not in line]
    assert line.index("solver_0") < line.index("solver_1") < line.index("solver_2")
    narrow = drawn(EventRendering(event), width=40)
    assert not any("─ solver_0" in line and "─ solver_1" in line for line in narrow.splitlines())
    assert all(len(line) <= 40 for line in narrow.splitlines())


def test_an_event_tells_what_was_read_and_learned() -> None:
    members = (make_member(0), make_member(1, parsed=None, malformed_reason="no box"))
    scores = EventScores(
        members=tuple(MemberScores(log_ratio=0.25, logprobs=(-0.4,) * 3, token_texts=("a", "b", "c")) for _ in members),
        ratio=1.5,
        is_clipped=True,
    )
    episode = make_episode(events=(make_event(2, members=members, penalty=0.1, reward=-0.1),))
    timeline = build_timeline(episode, credits={"ep/e0": EventCredit(advantage=-0.5)}, scores={"ep/e0": scores})
    shown = drawn(TimelineRendering(timeline))
    for text in ("✓ right", "question", "gold", "K = 2", "read as 0", "malformed no box", "(penalty 0.1)"):
        assert text in shown, text
    assert "Â -0.5   ρ 1.5  clipped" in shown and "ℓ +0.25  abc" in shown


def test_an_announced_event_is_not_announced_again() -> None:
    shown = drawn(EventRendering(view_event(make_event(1)), is_announced=True))
    assert "question" not in shown and "K = 1" not in shown and "read as 0" in shown


def test_what_a_search_found_is_numbered() -> None:
    shown = drawn(TimelineRendering(build_timeline(step_episodes(1)[0])))
    assert "search query = capital of Peru · top_k = 2" in shown
    assert "1. Peru  The capital of Peru is Lima." in shown


@pytest.mark.parametrize("width", [30, 120])
def test_hostile_text_neither_steers_the_terminal_nor_floods_it(width: int) -> None:
    shown = drawn(TimelineRendering(build_timeline(hostile_episode())), width, in_color=True)
    assert not STEERING.search(shown)
    assert "[bold]markup[/bold]" in re.sub(r"\x1b\[[0-9;]*m|[│\s]", "", shown)
    assert len(shown) < 200_000


# --- the application ----------------------------------------------------------------------------------------------


def browse(*keys: str, run_dir: Path, query: str = "", size: tuple[int, int] = (150, 50)) -> tuple[str, str]:
    """Press keys and return the status line and the time line as text."""
    pytest.importorskip("textual", reason="textual is not installed")
    from textual.widgets import DataTable, Static

    from srpo_train.viewer.terminal import TerminalViewer

    async def session() -> tuple[str, str]:
        app = TerminalViewer([run_dir], query)
        async with app.run_test(size=size) as pilot:
            for key in ("", *keys):
                if key:
                    await pilot.press(key)
                await app.workers.wait_for_complete()
                await pilot.pause()
            assert app.query_one(DataTable).is_attached
            status = app.query_one("#status", Static).content
            timeline = app.query_one("#timeline", Static).content
            return str(status), drawn(timeline)

    return asyncio.run(session())


def test_the_terminal_survives_the_end_of_its_run(tmp_path: Path) -> None:
    pytest.importorskip("textual", reason="textual is not installed")
    from textual.widgets import Static

    from srpo_train.viewer.terminal import TerminalViewer

    run_dir = make_viewed_run(tmp_path / "run")

    async def session() -> str:
        app = TerminalViewer([run_dir])
        async with app.run_test(size=(160, 50)) as pilot:
            await app.workers.wait_for_complete()
            delete(run_dir)
            app._look()
            for key in ("c", "j", "s"):
                await pilot.press(key)
                await app.workers.wait_for_complete()
                await pilot.pause()
            return str(app.query_one("#status", Static).content)

    assert "is gone" in asyncio.run(session())


def test_the_terminal_shows_the_newest_episode_and_moves_on(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    status, timeline = browse(run_dir=run_dir)
    assert status == "run · 12 episodes · newest"
    assert "step3/p1/g1/e0" in timeline and "malformed no verdict tag" in timeline and "Â -" in timeline
    _, timeline = browse("j", "j", "k", run_dir=run_dir)
    assert "step3/p1/g0/e0" in timeline


def test_the_terminal_searches_sorts_and_says_what_is_wrong(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    status, timeline = browse("s", run_dir=run_dir, query="is:malformed")
    assert status == "run · 3 episodes · oldest" and "step1/p1/g1" in timeline
    status, timeline = browse("slash", *"step:2", "enter", run_dir=run_dir)
    assert status == "run · 4 episodes · newest" and "step2/p1/g1" in timeline
    status, _ = browse(run_dir=run_dir, query="rol:x")
    assert "did you mean 'role'" in status


def test_a_narrow_terminal_shows_one_pane_at_a_time(tmp_path: Path) -> None:
    _, timeline = browse("enter", "escape", run_dir=make_viewed_run(tmp_path / "run"), size=(60, 30))
    assert "step3/p1/g1" in timeline


def test_a_hostile_episode_is_shown_in_the_terminal(tmp_path: Path) -> None:
    write_step(tmp_path / "run", 9, [hostile_episode()])
    status, timeline = browse(run_dir=tmp_path / "run")
    assert "recipe" in status  # whose absence is why no advantage can be told
    assert "<script>" in timeline
