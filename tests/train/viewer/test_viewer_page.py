"""The viewer's page in a real browser: what a person sees, types and hears, and that hostile text stays text.

Screenshots are kept in the folder that the environment variable SRPO_SCREENSHOTS names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import find_chromium
from report_world import RECIPE
from viewer_world import append_metrics, delete, hostile_episode, make_viewed_run, step_episodes, write_step

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from srpo_train.viewer.server import ViewerServer  # noqa: E402

expect = api.expect
CHROMIUM = find_chromium()
CHECKS = (Path(__file__).parents[2] / "page_checks.js").read_text()
PATIENCE_MS = 60_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A run that was really trained, for two steps."""
    from srpo_train.config import load_recipe
    from srpo_train.loop import train

    changes = [
        f"output_dir={tmp_path_factory.mktemp('trained')}", "name=trained", f"policies.team.model={tiny_checkpoint}",
        "env.kwargs.max_new_tokens=6", "eval.every=0", "rollout.prompts_per_step=2", "rollout.group_size=3",
        "train.num_steps=2", "optim.lr=0.01", "train.checkpoint_every=1", "log.tensorboard=false",
        "log.save_events=all",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("srpo_train.loop.write_report", lambda _: None)
        return train(load_recipe(RECIPE, changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_viewed_run(folder / "first", num_steps=6, alarm_at=4)
    make_viewed_run(folder / "second", num_steps=4)
    make_viewed_run(folder / "third-run-of-a-sweep-with-a-long-name", num_steps=1)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, trained: Path) -> Iterator[ViewerServer]:
    with ViewerServer([folder, trained], port=0, follow_every_s=0.2) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a run and return the address; until after the pages of `open_page` are closed."""
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(ViewerServer([path], port=0, follow_every_s=0.1)).url


@pytest.fixture
def open_page(browser: Any, server: ViewerServer, serve: Callable[[Path], str]) -> Iterator[Open]:
    """Open a page; at the end nothing may have been said on its console, and nothing asked of anyone else."""
    trouble: list[str] = []
    with contextlib.ExitStack() as stack:

        def open_at(place: str = "#/curves", *, width: int = 1400, scheme: str = "light", url: str = server.url) -> Any:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
            )
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
            page.on("request", lambda ask: None if ask.url.startswith(url) else trouble.append(f"asked {ask.url}"))
            page.goto(url + place)
            return page

        yield open_at
    assert not trouble


@pytest.fixture
def keep(tmp_path: Path) -> Callable[[Any, str], None]:
    folder = Path(os.environ.get("SRPO_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return lambda page, name: page.screenshot(path=folder / f"{name}.png")


def see(what: Any) -> Any:
    return expect(what)


@pytest.fixture(scope="module", autouse=True)
def patience() -> None:
    expect.set_options(timeout=PATIENCE_MS)


def test_curves_of_several_runs_are_overlaid(open_page: Open, keep: Callable[..., None]) -> None:
    page = open_page("#/curves?runs=first|second")
    chart = page.locator("[data-metric='Team reward']")
    see(chart.locator(".readout .value")).to_have_count(2)
    see(chart.locator(".readout")).to_have_text(re.compile(r"first.*0\.6.*second.*0\.4"))
    see(page.locator(".alarm")).to_have_text(re.compile("entropy collapse steps 4–6"))
    keep(page, "curves-light")
    plot = chart.locator(".plot")
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    see(chart.locator(".chart-note")).to_have_text("step 2")
    see(chart.locator(".readout")).to_have_text(re.compile(r"first.*0\.2.*second.*0\.2"))
    see(plot).to_have_attribute("aria-label", re.compile("Team reward by step at 2: first 0.2; second 0.2"))
    page.get_by_role("button", name="Tokens").click()
    see(chart.locator("canvas")).to_have_count(1)
    assert "x=tokens" in page.url
    page.get_by_role("checkbox", name="second").uncheck()
    see(chart.locator(".readout .value")).to_have_count(1)
    page.get_by_role("button", name="Time", exact=True).first.click()
    see(page.locator("[data-metric='Time of a step']")).to_be_visible()


def test_a_constant_is_drawn_though_its_running_mean_is_rounded(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run_dir = make_viewed_run(tmp_path / "run", num_steps=1)
    for step in range(2, 60):
        append_metrics(run_dir, step, train__grad_norm=0.1, train__entropy=9.0, train__loss=0.0)
    page = open_page("#/curves?group=train", url=serve(run_dir))
    for metric in ("Gradient norm", "Entropy", "train/loss"):
        see(page.locator(f"[data-metric='{metric}'] canvas")).to_be_visible()


def test_metrics_are_filtered_by_keyboard(open_page: Open) -> None:
    page = open_page("#/curves?runs=first")
    see(page.locator(".chart").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("grad_norm")
    see(page.locator(".chart")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("x")
    see(page.get_by_role("button", name="Tokens")).to_have_attribute("aria-pressed", "true")


def test_an_alarm_leads_to_its_episodes(open_page: Open) -> None:
    page = open_page("#/curves?runs=first")
    page.locator(".alarm").click()
    see(page.locator(".count")).to_have_text("12 episodes of 24")
    see(page.get_by_label("Search and filter episodes")).to_have_value("alarm:entropy_collapse")


def test_episodes_are_filtered(open_page: Open) -> None:
    page = open_page("#/episodes?run=first")
    see(page.locator(".count")).to_have_text("24 episodes")
    page.get_by_role("button", name="malformed", exact=True).click()
    see(page.locator(".count")).to_have_text("6 episodes of 24")
    page.get_by_label("Policy version").select_option("version:3")
    see(page.locator(".count")).to_have_text("1 episode of 24")
    assert "q=is%3Amalformed+version%3A3" in page.url
    page.reload()
    see(page.locator(".count")).to_have_text("1 episode of 24")
    search = page.get_by_label("Search and filter episodes")
    search.fill("rol:verifier")
    see(page.get_by_role("alert")).to_have_text(re.compile("did you mean 'role'"))
    search.fill('"capital of Peru" step:2')
    see(page.locator(".count")).to_have_text("4 episodes of 24")
    page.get_by_label("Order").select_option("worst")
    see(page.locator(".row .mark").first).to_contain_text("✗")


def test_an_episode_is_read_by_keyboard(open_page: Open, keep: Callable[..., None]) -> None:
    page = open_page("#/episodes?run=first")
    see(page.locator(".event")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    see(page.locator(".ids")).to_contain_text("step6/p1/g0")
    see(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "2")
    first = page.locator(".event").first
    see(first.locator(".chip", has_text="Â")).to_be_visible()
    boxes = [member.bounding_box() for member in first.locator(".member").all()]
    assert len({box["y"] for box in boxes}) == 1 and len({box["x"] for box in boxes}) == 3
    see(first.locator(".member .tag").first).to_have_text("<think>")
    see(first.locator(".passages")).to_contain_text("The capital of Peru is Lima.")
    page.keyboard.press("n")
    see(first).to_be_focused()
    page.keyboard.press("n")
    see(page.locator(".event").nth(1)).to_be_focused()
    page.keyboard.press("e")
    see(page.locator("details.prompt[open]")).to_have_count(2)
    page.keyboard.press("?")
    see(page.get_by_role("dialog")).to_contain_text("next episode")
    page.keyboard.press("Escape")
    see(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("k")
    see(page.locator(".event.has-malformed .malformed")).to_contain_text("no verdict tag")
    keep(page, "episode-light")
    page.keyboard.press("g")
    page.keyboard.press("c")
    see(page.locator(".charts")).to_be_visible()


def test_a_checkpoint_shows_ratios_clips_and_a_heat_strip(open_page: Open, keep: Callable[..., None]) -> None:
    page = open_page("#/episodes?run=trained&q=step:2")
    page.get_by_label("Compare with a checkpoint").select_option("2")
    see(page.locator(".chip", has_text="ρ").first).to_be_visible()
    see(page.locator(".chip", has_text="clipped").first).to_be_visible()
    strip = page.locator(".strip.texts").first
    assert strip.locator(".tok").count() > 1
    assert page.locator(".tok[class*='d-'], .tok.d1, .tok.d2, .tok.d3, .tok.d4, .tok.d5").count() > 0
    see(strip).to_have_attribute("aria-label", re.compile("nats in all"))
    strip.focus()
    page.keyboard.press("ArrowRight")
    see(page.get_by_role("tooltip")).to_contain_text("difference")
    keep(page, "checkpoint-light")
    page.keyboard.press("Escape")


def test_what_could_not_be_computed_is_told_beside_what_could(
    open_page: Open, serve: Callable[[Path], str], trained: Path, tmp_path: Path
) -> None:
    """With a critic whose checkpoint is gone: ratios without advantages, and a line that says why."""
    run_dir = tmp_path / "critic"
    shutil.copytree(trained, run_dir)
    recipe = run_dir / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('preset = "srpo"', 'preset = "ppo"'))
    page = open_page("#/episodes?q=step:2&checkpoint=2", url=serve(run_dir))
    see(page.locator(".remark")).to_have_text(re.compile("no advantages: .* as it was before step 2"))
    see(page.locator(".ell", has_text="ℓ").first).to_be_visible()
    see(page.locator(".chip", has_text="Â")).to_have_count(0)
    see(page.locator(".ell", has_text="clipped")).to_have_count(0)


def test_two_checkpoints_are_compared_on_one_task(open_page: Open, keep: Callable[..., None]) -> None:
    page = open_page("#/episodes?run=trained&q=step:2")
    see(page.locator(".event").first).to_be_visible()
    page.keyboard.press("c")
    see(page.locator(".offer")).to_contain_text("of this task")
    page.get_by_role("button", name="This same episode, through another checkpoint").click()
    page.get_by_label("Checkpoint on the left").select_option("1")
    page.get_by_label("Checkpoint on the right").select_option("2")
    ratios = page.locator(".pair").nth(1).locator(".chip", has_text="ρ")
    see(ratios).to_have_count(2)
    left, right = ratios.all_text_contents()
    assert left == "ρ1" and right != left  # the checkpoint of step 1 sampled step 2
    see(page.locator(".badge.same").first).to_be_visible()
    keep(page, "compare-light")


def test_two_episodes_of_one_task_are_compared(open_page: Open) -> None:
    page = open_page("#/episodes?run=first&q=episode:step1/p0/g0")
    see(page.locator(".event").first).to_be_visible()
    page.get_by_role("link", name="Compare …").click()
    see(page.locator(".offer h3").first).to_contain_text("12 episodes of this task")
    page.get_by_role("button", name="step2/p0/g1").first.click()
    see(page.locator(".summary")).to_contain_text("right − left")
    see(page.locator(".summary tbody tr").last).to_contain_text("−1")
    see(page.locator(".pair")).to_have_count(3)


def test_a_live_run_is_followed(open_page: Open, serve: Callable[[Path], str], tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "live")
    url = serve(run_dir)
    curves = open_page("#/curves", url=url)
    see(curves.locator("[data-metric='Team reward'] .readout")).to_contain_text("0.3")
    episodes = open_page("#/episodes?q=step>3", url=url)
    see(episodes.locator(".count")).to_have_text("0 episodes of 12")
    reading = open_page("#/episodes", url=url)
    see(reading.locator(".count")).to_have_text("12 episodes")
    reading.keyboard.press("j")
    reading.keyboard.press("j")
    append_metrics(run_dir, 4, rollout__reward_mean=0.875, rollout__num_tokens=10, train__loss=0.5)
    write_step(run_dir, 4, step_episodes(4))
    see(curves.locator("[data-metric='Team reward'] .readout")).to_contain_text("0.875")
    see(curves.locator(".run-facts")).to_contain_text("4 of")
    see(episodes.locator(".count")).to_have_text("4 episodes of 16")
    see(reading.get_by_role("button", name="4 new episodes")).to_be_visible()
    see(reading.locator(".ids")).to_contain_text("step3")
    reading.get_by_role("button", name="4 new episodes").click()
    see(reading.locator(".ids")).to_contain_text("step4/p1/g1")


def test_a_run_that_begins_later_joins_the_list_and_the_panels(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    make_viewed_run(runs / "first")
    url = serve(runs)
    every, chosen = open_page("#/curves", url=url), open_page("#/curves?runs=runs/first", url=url)
    box = every.get_by_role("checkbox", name="first")
    see(box).to_be_checked()
    make_viewed_run(runs / "second")
    for page in (every, chosen):
        see(page.locator(".run-list li")).to_have_count(2)
        see(page.get_by_role("checkbox", name="second")).to_be_checked()
    box.uncheck()
    make_viewed_run(runs / "third")
    see(every.locator(".run-list li")).to_have_count(3)
    see(every.get_by_role("checkbox", name="third")).not_to_be_checked()


def test_a_run_that_is_trained_meanwhile_is_followed(
    open_page: Open,
    serve: Callable[[Path], str],
    tmp_path: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from srpo_train.config import load_recipe
    from srpo_train.loop import train

    monkeypatch.setattr("srpo_train.loop.write_report", lambda _: None)
    common = [
        f"output_dir={tmp_path}", "name=live", f"policies.team.model={tiny_checkpoint}", "env.kwargs.max_new_tokens=4",
        "eval.every=0", "rollout.prompts_per_step=1", "rollout.group_size=2", "train.checkpoint_every=1",
        "log.tensorboard=false", "log.save_events=all", "optim.schedule=constant",
    ]  # fmt: skip
    train(load_recipe(RECIPE, [*common, "train.num_steps=1"]))
    url = serve(tmp_path / "live")
    page = open_page("#/episodes", url=url)
    see(page.locator(".count")).to_have_text("2 episodes")
    train(load_recipe(RECIPE, [*common, "train.num_steps=3"]), resume=True)
    see(page.get_by_role("button", name="4 new episodes")).to_be_visible()


def test_a_run_that_is_deleted_leaves_the_page_and_the_others_go_on(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    make_viewed_run(tmp_path / "runs/gone")
    kept = make_viewed_run(tmp_path / "runs/kept")
    url = serve(tmp_path / "runs")
    curves = open_page("#/curves", url=url)
    see(curves.locator("[data-metric='Team reward'] .readout .value")).to_have_count(2)
    episodes = open_page("#/episodes?run=gone", url=url)
    see(episodes.locator(".count")).to_have_text("12 episodes")
    color = curves.locator(".run-list li", has_text="kept").locator(".swatch line").get_attribute("stroke")
    delete(tmp_path / "runs/gone")
    see(curves.locator(".alarms")).to_contain_text("run 'gone' is gone")
    see(curves.locator(".run-list li")).to_have_count(1)
    see(curves.locator("[data-metric='Team reward'] .readout .value")).to_have_count(1)
    assert curves.locator(".run-list .swatch line").get_attribute("stroke") == color
    append_metrics(kept, 4, rollout__reward_mean=0.875, rollout__num_tokens=10)
    see(curves.locator("[data-metric='Team reward'] .readout")).to_contain_text("0.875")
    see(episodes.get_by_role("alert").first).to_contain_text("run 'gone' is gone")
    delete(kept)
    see(curves.locator(".run-list li")).to_have_count(0)
    nothing = open_page("#/curves", url=url)
    see(nothing.get_by_role("alert")).to_contain_text("There is no run here any more")


def test_an_index_that_is_deleted_meanwhile_is_made_anew(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    page = open_page("#/episodes", url=serve(run_dir))
    see(page.locator(".count")).to_have_text("12 episodes")
    delete(run_dir / ".view")
    page.get_by_label("Search and filter episodes").fill("step:2")
    see(page.locator(".count")).to_have_text("4 episodes of 12")


def test_hostile_text_is_shown_and_does_nothing(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path, keep: Callable[..., None]
) -> None:
    run_dir = make_viewed_run(tmp_path / "bad", num_steps=1)
    write_step(run_dir, 9, [hostile_episode(), hostile_episode("step9/p0/<img src=x onerror=alert(1)>")])
    url = serve(run_dir)
    page = open_page("#/episodes?q=step:9", url=url)
    see(page.locator(".member")).to_have_count(3)
    page.keyboard.press("j")
    see(page.locator(".ids")).to_contain_text("<img src=x onerror=alert(1)>")
    page.keyboard.press("e")
    shown = page.locator(".member").first.inner_text()
    assert "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>" in shown
    assert "⟦U+202E⟧" in shown and "␛[31m" in shown
    see(page.locator(".cut").first).to_contain_text("984,000 more characters")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('main img, main script, main iframe, main b b').length") == 0
    assert page.evaluate(CHECKS) == []
    assert max(page.evaluate("[...document.querySelectorAll('.words')].map((box) => box.clientHeight)")) < 700
    keep(page, "hostile-light")
    page.keyboard.press("c")
    see(page.locator(".offer")).to_be_visible()
    page.locator(".offer tbody button").first.click()
    see(page.locator(".pair")).to_have_count(2)
    assert page.evaluate("window.hacked") is None


def test_should_markup_ever_be_made_the_browser_refuses_it(open_page: Open) -> None:
    page = open_page("#/curves")
    see(page.locator(".chart").first).to_be_visible()
    other = page.context.new_page()  # on whose console the refusal is told, and nobody listens
    other.goto(page.url)
    assert other.evaluate("() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } }")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_every_page_is_accessible(open_page: Open, keep: Callable[..., None], scheme: str, width: int) -> None:
    left = '["trained","step2/p0/g0","","1"]'
    pages = {
        "curves": ("#/curves?runs=first|second", ".chart canvas"),
        "episodes": ("#/episodes?run=first&q=is:malformed", ".row .badge"),
        "long": ("#/episodes?run=third-run-of-a-sweep-with-a-long-name", ".row"),
        "episode": ("#/episodes?run=trained&id=step2/p0/g0&checkpoint=2", ".strip.texts"),
        "offer": (f"#/compare?left={left}", ".offer table"),
        "compare": (f'#/compare?left={left}&right=["trained","step2/p0/g1","","2"]', ".pair .strip.texts"),
    }
    for name, (place, waits_for) in pages.items():
        page = open_page(place, width=width, scheme=scheme)
        see(page.locator(waits_for).first).to_be_visible()
        assert page.evaluate(CHECKS) == [], name
        keep(page, f"{name}-{scheme}-{width}")
    page.keyboard.press("?")
    assert page.evaluate(CHECKS) == []


def test_the_checks_see_what_is_wrong(open_page: Open) -> None:
    page = open_page("#/curves")
    see(page.locator(".chart").first).to_be_visible()
    page.evaluate(
        """() => {
            const faint = document.createElement("p");
            faint.textContent = "faint";
            faint.style.color = "#999";
            faint.style.width = "3000px";
            document.querySelector("main").append(faint, document.createElement("button"));
        }"""
    )
    found = " ".join(page.evaluate(CHECKS))
    assert "contrast 2" in found and "no name: <button" in found and "main is 30" in found


def test_light_and_dark_follow_the_system_and_the_reader(open_page: Open, keep: Callable[..., None]) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    page = open_page("#/curves", scheme="dark")
    see(page.locator(".chart canvas").first).to_be_visible()
    dark = page.evaluate(ground)
    keep(page, "curves-dark")
    page.keyboard.press("t")
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("button", name="Colours").click()
    see(page.get_by_role("button", name="Colours: colours of the system")).to_be_visible()
    assert page.evaluate(ground) == light


def test_a_narrow_window_shows_list_or_episode(open_page: Open) -> None:
    page = open_page("#/episodes?run=first", width=420)
    see(page.locator(".detail")).to_be_hidden()
    page.locator(".row").nth(1).click()
    see(page.locator(".detail .event").first).to_be_visible()
    see(page.locator(".browse")).to_be_hidden()
    page.get_by_role("button", name="Back to the list").click()
    see(page.locator(".browse")).to_be_visible()


def test_of_a_long_list_only_what_is_in_sight_exists(
    open_page: Open, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    run_dir = make_viewed_run(tmp_path / "long", num_steps=1)
    write_step(run_dir, 2, step_episodes(2, num_tasks=400, group_size=5))
    url = serve(run_dir)
    page = open_page("#/episodes?sort=oldest", url=url)
    see(page.locator(".count")).to_have_text("2,004 episodes")
    page.keyboard.press("End")
    see(page.locator(".ids")).to_contain_text("step2/p399/g4")
    see(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "2004")
    assert page.locator(".row").count() < 40
    page.keyboard.press("Home")
    see(page.locator(".ids")).to_contain_text("step1/p0/g0")


def test_the_chosen_row_stays_in_sight_when_filters_appear_above_the_list(open_page: Open) -> None:
    page = open_page("#/episodes?run=first&sort=oldest&id=step4/p1/g1")  # the sixteenth
    see(page.locator(".menus select").first).to_be_visible()
    chosen = page.locator(".row[aria-selected=true]")
    see(chosen).to_have_attribute("aria-posinset", "16")
    page.wait_for_function(
        """() => {
            const [row, list] = [".row[aria-selected=true]", ".list"].map((name) => document.querySelector(name));
            const [inner, outer] = [row.getBoundingClientRect(), list.getBoundingClientRect()];
            return inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
        }"""
    )


def test_a_server_that_ended_is_told(open_page: Open, folder: Path, browser: Any) -> None:
    own = ViewerServer([folder], port=0)
    with own:
        context = browser.new_context()
        page = context.new_page()
        page.goto(own.url)
        see(page.locator(".chart").first).to_be_visible()
    see(page.locator("#live")).to_have_text(re.compile("does not answer"))
    context.close()
