"""The report in a real browser: it stands alone, nothing in it acts, it fits screens and paper, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import visiting
from factories import make_episode, make_event, make_member
from report_world import HOSTILE, make_run

from srpo_envs.records import write_episodes
from srpo_train.reporting.page import write_page

WORSE = (*HOSTILE, "</pre></section><svg onload=alert(2)>", "w" * 50_000, "<a href='javascript:alert(3)'>x</a>")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        make_run(folder / name, f"seed={seed}", steps=[{"train/grad_norm": 1.0 + place * seed} for place in range(4)])
        for seed, name in enumerate(["one", "two"], start=1)
    ]
    members = tuple(make_member(seat, text=text, prompt=text) for seat, text in enumerate(WORSE))
    event = make_event(len(members), members=members)
    write_episodes(runs[0] / "events/step-000004.jsonl", [make_episode(events=(event,))])
    return write_page(runs, folder / "page.html", labels={runs[1]: "<img src=x onerror=alert(1)>"})


def test_nothing_acts_and_nothing_is_fetched(report: Path) -> None:
    with visiting(report.as_uri()) as visit:
        assert visit.page.title() == "Report of 2 runs"
        assert visit.page.locator(".member").count() == len(WORSE)
        assert visit.page.locator("img, script, iframe, main a").count() == 0
        shown = visit.page.locator(".member pre").first.inner_text()
        assert shown == HOSTILE[0]
        visit.page.wait_for_timeout(50)
        assert visit.troubles == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_is_wider_than_the_screen(report: Path, width: int) -> None:
    with visiting(report.as_uri(), width=width) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width


def test_members_of_one_set_stand_side_by_side(report: Path) -> None:
    with visiting(report.as_uri()) as visit:
        boxes = [visit.page.locator(".member").nth(place).bounding_box() for place in range(3)]
        assert len({box["y"] for box in boxes}) == 1
        assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_are_seen_on_the_ground(report: Path, scheme: str) -> None:
    with visiting(report.as_uri(), scheme=scheme) as visit:
        ground = luminance(visit.page, "body", "backgroundColor")
        for what, style in (("body", "color"), (".note", "color"), (".parsed", "color"), ("a", "color")):
            assert contrast(luminance(visit.page, what, style), ground) >= 4.5, what  # WCAG AA for text
        for number in (0, 1):
            line = luminance(visit.page, f"svg .line.run-{number}", "stroke")
            assert contrast(line, ground) >= 3, number  # WCAG AA for graphics


def test_prompts_are_opened_by_keyboard_and_are_there_on_paper(report: Path) -> None:
    with visiting(report.as_uri()) as visit:
        prompt = visit.page.locator("details pre").first
        assert not prompt.is_visible()
        visit.page.locator("summary").first.focus()
        visit.page.keyboard.press("Enter")
        assert prompt.is_visible()
        visit.page.keyboard.press("Enter")
        visit.page.emulate_media(media="print")
        assert prompt.evaluate("element => element.getBoundingClientRect().height") > 0
        assert visit.page.pdf().startswith(b"%PDF")


def luminance(page, selector: str, style: str) -> float:
    """Relative luminance of a colour of the page, as WCAG defines it."""
    color = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{style}")
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return (high + 0.05) / (low + 0.05)
