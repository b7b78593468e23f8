"""What the viewer's server answers, to whom, and how it is guarded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from viewer_world import LONG_LINE, SCRIPT, delete, hostile_episode, make_viewed_run, step_episodes, write_step

fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from srpo_envs.errors import ConfigError, RecordError  # noqa: E402
from srpo_train.viewer.guard import HEADERS  # noqa: E402
from srpo_train.viewer.index import INDEX_FILE  # noqa: E402
from srpo_train.viewer.server import ViewerServer  # noqa: E402

SITE = {"sec-fetch-site": "cross-site"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerServer]:
    folder = tmp_path_factory.mktemp("runs")
    make_viewed_run(folder / "good", alarm_at=2)
    write_step(make_viewed_run(folder / "bad", num_steps=1), 9, [hostile_episode()])
    with ViewerServer([folder], port=0, follow_every_s=0.05) as server:
        yield server


@pytest.fixture
def client(server: ViewerServer) -> Iterator[Any]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def wait_for(client: Any, run: str, num_episodes: int) -> dict[str, int]:
    """Ask until a run's index holds so many episodes, and return how far it is."""
    deadline = time.monotonic() + 60
    while True:
        found = client.get("/api/pulse", params={"run": run}).json()[run]["index"]
        if found["num_episodes"] == num_episodes or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_it_listens_on_this_machine_only(server: ViewerServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")


def test_every_answer_is_guarded(client: Any) -> None:
    for path in ("/", "/static/app.js", "/static/style.css", "/api/runs", "/api/episode?run=no&id=no", "/nothing"):
        answer = client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value], (path, name)
        assert "server" not in answer.headers


def test_the_policy_of_the_page_allows_nothing_but_its_own_files() -> None:
    directives = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    assert directives["default-src"] == directives["base-uri"] == directives["form-action"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert directives["require-trusted-types-for"] == "'script'" and directives["trusted-types"] == "'none'"
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    static = Path(__file__).parents[3] / "srpo_train/viewer/static"
    page = (static / "index.html").read_text()
    assert "style=" not in page and "onclick" not in page and "<style" not in page
    assert all(" src=" in tag.split(">")[0] for tag in page.split("<script")[1:])
    for path in static.glob("*.js"):
        source = path.read_text()
        for sink in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert sink not in source, (path.name, sink)
        assert "http://" not in source.replace("http://www.w3.org/2000/svg", "") and "https://" not in source, path.name


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "a b"])
def test_another_name_is_not_answered(client: Any, host: str) -> None:
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 421 and "runs" not in answer.text


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1:9", "[::1]:8000", "LOCALHOST"])
def test_its_own_names_are_answered_on_any_port_for_tunnels_change_it(client: Any, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


def test_what_another_site_asks_for_is_refused(client: Any) -> None:
    assert client.get("/api/runs", headers=SITE).status_code == 403
    assert client.get("/api/runs", headers={"sec-fetch-site": "same-site"}).status_code == 403
    assert client.get("/", headers=SITE | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/", headers=SITE | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: Any, method: str) -> None:
    assert client.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/vendor/../../guard.py",
    ],
)
def test_only_the_pages_own_files_are_served(client: Any, path: str) -> None:
    answer = client.send(httpx.Request("GET", client.base_url.join(path)))
    assert answer.status_code == 404 and "import" not in answer.text


@pytest.mark.parametrize("run", ["../good", "/etc", "good/../good", "goood", ""])
def test_only_named_runs_are_opened(client: Any, run: str) -> None:
    for path in ("pulse", "metrics", "episodes", "facets", "episode"):
        answer = client.get(f"/api/{path}", params={"run": run, "id": "step1/p0/g0"})
        assert answer.status_code == 404 and "no run" in answer.json()["error"]


@pytest.mark.parametrize("file", ["../../etc/passwd", "/etc/passwd", "recipe.toml", "events/../recipe.toml"])
def test_a_file_of_the_log_is_named_only_to_choose_among_those_indexed(client: Any, file: str) -> None:
    answer = client.get("/api/episode", params={"run": "good", "id": "step1/p0/g0", "file": file})
    assert answer.status_code == 404


def test_runs_are_listed(client: Any) -> None:
    good, bad = sorted(client.get("/api/runs").json()["runs"], key=lambda run: run["key"] != "good")
    assert (good["key"], good["last_step"], good["objective"], bad["key"]) == ("good", 3, "srpo", "bad")


def test_curves_come_from_where_the_reader_is(client: Any) -> None:
    whole = client.get("/api/curves", params={"run": "good", "name": "rollout/reward_mean"}).json()
    assert whole["step"] == [0, 1, 2, 3] and whole["alarms"] == [{"name": "entropy_collapse", "first": 2, "last": 3}]
    query = {"run": "good", "name": "rollout/reward_mean", "after": 3}
    assert client.get("/api/curves", params=query | {"epoch": whole["epoch"]}).json()["step"] == [3]
    assert client.get("/api/curves", params=query | {"epoch": 99}).json()["step"] == [0, 1, 2, 3]


def test_episodes_are_found_and_opened(client: Any) -> None:
    page = client.get("/api/episodes", params={"run": "good", "q": "is:malformed alarm:entropy_collapse"}).json()
    assert [row["episode_id"] for row in page["rows"]] == ["step3/p1/g1", "step2/p1/g1"]
    row = page["rows"][0]
    found = client.get("/api/episode", params={"run": "good", "id": row["episode_id"], "credit": True}).json()
    assert found["file"] == row["file"] == "events/step-000003.jsonl"
    first, verdict = found["timeline"]["events"]
    assert [member["agent"] for member in first["members"]] == ["solver_0", "solver_1", "solver_2"]
    assert verdict["members"][0]["malformed_reason"] == "no verdict tag"
    assert verdict["credit"]["advantage"] < 0  # -0.1 beside 1.0
    facets = client.get("/api/facets", params={"run": "good"}).json()
    assert facets["alarms"] == [["entropy_collapse", 2]] and ["search", 12] in facets["labels"]["tool"]
    assert client.get("/api/tasks", params={"run": "good", "beginning": "sum/"}).json()["tasks"] == ["sum/0", "sum/1"]


def test_a_question_that_means_nothing_is_told(client: Any) -> None:
    answer = client.get("/api/episodes", params={"run": "good", "q": "rol:x"})
    assert answer.status_code == 200 and "did you mean 'role'" in answer.json()["error"]
    answer = client.get("/api/episode", params={"run": "good", "id": "step1/p0/g0", "checkpoint": 5})
    assert answer.status_code == 200 and "no checkpoint of step 5" in answer.json()["error"]


def test_hostile_text_arrives_as_visible_text_and_cut(client: Any) -> None:
    answer = client.get("/api/episode", params={"run": "bad", "id": "step9/p0/g0"})
    assert answer.headers["content-type"] == "application/json" and len(answer.content) < 600_000
    timeline = answer.json()["timeline"]
    shown = timeline["events"][0]["members"][0]["text"]["text"]
    assert SCRIPT in shown and "⟦U+202E⟧" in shown and "␛[31m" in shown
    assert not any(ord(sign) in (0x1B, 0x9B, 0x202E, 0) for sign in json.dumps(timeline, ensure_ascii=False))
    long = timeline["events"][0]["members"][1]["text"]
    assert len(long["text"]) + long["num_omitted"] == len(LONG_LINE)


def test_a_whole_text_is_a_download_and_never_a_page(client: Any) -> None:
    query = {"run": "bad", "id": "step9/p0/g0", "event": 0, "part": "text", "number": 1}
    answer = client.get("/api/text", params=query)
    assert answer.text == LONG_LINE
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert SCRIPT in client.get("/api/text", params=query | {"part": "call", "number": 0}).text
    for wrong in ({"event": 7}, {"number": 7}, {"part": "__class__"}, {"event": -1}):
        assert client.get("/api/text", params=query | wrong).json()["error"]


def test_a_live_run_is_followed(client: Any, server: ViewerServer) -> None:
    run_dir = server.runs.catalogue["good"].path
    before = client.get("/api/episodes", params={"run": "good"}).json()["total"]
    write_step(run_dir, 50, step_episodes(50))
    found = wait_for(client, "good", before + 4)
    assert found["num_episodes"] == before + 4


@pytest.mark.parametrize("name", ["offset", "newest", "limit"])
def test_numbers_beyond_sqlites_are_no_failure(client: Any, name: str) -> None:
    for number in (10**30, -(10**30)):
        assert client.get("/api/episodes", params={"run": "good", name: number}).status_code == 200


class Deleted:
    """A server of its own, whose runs are harmed while it answers."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder = folder
        self.client = client

    def ask(self, path: str, **values: object) -> Any:
        answer = self.client.get(f"/api/{path}", params=values)
        assert answer.status_code < 500, answer.text
        return answer.json()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Deleted]:
    folder = tmp_path / "runs"
    make_viewed_run(folder / "kept")
    make_viewed_run(folder / "harmed")
    with (
        ViewerServer([folder], port=0, follow_every_s=0.05) as own,
        httpx.Client(base_url=own.url, timeout=60) as client,
    ):
        yield Deleted(folder, client)


def test_a_run_that_is_deleted_vanishes_and_the_others_go_on(served: Deleted) -> None:
    served.ask("episodes", run="harmed"), served.ask("episodes", run="kept")
    delete(served.folder / "harmed")
    assert [run["key"] for run in served.ask("runs")["runs"]] == ["kept"]
    questions = ("metrics", {}), ("curves", {"name": "train/loss"}), ("episodes", {}), ("facets", {}), ("tasks", {})
    one = {"id": "step1/p0/g0"}
    for path, values in (*questions, ("episode", one), ("text", {**one, "event": 0, "part": "text"})):
        assert "run 'harmed' is gone" in served.ask(path, run="harmed", **values)["error"], path
    pulse = served.ask("pulse", run=["harmed", "kept"])
    assert "is gone" in pulse["harmed"]["gone"] and pulse["kept"]["last_step"] == 3
    write_step(served.folder / "kept", 4, step_episodes(4))  # whoever follows still does
    assert wait_for(served.client, "kept", 16)["num_episodes"] == 16
    assert not (served.folder / "harmed").exists()
    make_viewed_run(served.folder / "harmed", num_steps=1)
    assert served.ask("episodes", run="harmed")["index"] and wait_for(served.client, "harmed", 4)["num_episodes"] == 4


@pytest.mark.parametrize("harm", ["deleted", "its folder deleted", "overwritten"])
def test_an_index_that_is_lost_meanwhile_is_made_anew(served: Deleted, harm: str) -> None:
    assert served.ask("episodes", run="harmed")["total"] == 12
    index = served.folder / "harmed" / INDEX_FILE
    if harm == "deleted":
        index.unlink()
    elif harm == "its folder deleted":
        delete(index.parent)
    else:
        index.write_bytes(b"no database " * 10_000)
    for _ in range(100):  # at most a few answers say that it is being made
        found = served.ask("episodes", run="harmed")
        if found.get("total") == 12:
            break
        assert "total" in found or "ask again soon" in found["error"]
        time.sleep(0.05)
    assert found["total"] == 12
    assert served.ask("episode", run="harmed", id="step1/p0/g0")["timeline"]["episode_id"] == "step1/p0/g0"
    write_step(served.folder / "harmed", 4, step_episodes(4))
    assert wait_for(served.client, "harmed", 16)["num_episodes"] == 16


def test_whoever_deletes_a_run_is_not_disturbed_by_files_that_come_back(served: Deleted) -> None:
    """`rm -r` empties a directory before it removes it; whoever follows must not put an index there meanwhile."""
    assert served.ask("episodes", run="harmed")["total"] == 12
    harmed, kept = served.folder / "harmed", served.folder / "kept"
    delete(harmed / INDEX_FILE.parent)
    assert served.ask("episodes", run="kept")["total"] == 12
    write_step(kept, 4, step_episodes(4))
    assert wait_for(served.client, "kept", 16)["num_episodes"] == 16  # so both were followed since
    assert not (harmed / INDEX_FILE.parent).exists()


def test_a_log_that_is_deleted_leaves_a_run_without_episodes(served: Deleted) -> None:
    assert served.ask("episodes", run="harmed")["total"] == 12
    delete(served.folder / "harmed" / "events")
    told = served.ask("episode", run="harmed", id="step1/p0/g0")
    assert "no longer holds this episode" in told["error"] or "no stored episode" in told["error"]
    assert wait_for(served.client, "harmed", 0)["num_episodes"] == 0


def test_a_taken_port_is_told_and_the_usual_one_replaced(server: ViewerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = int(server.url.rsplit(":", 1)[1].strip("/"))
    root = [place.path for place in server.runs.catalogue.places()]
    with pytest.raises(ConfigError, match=f"port {taken}: .*choose another --host or --port"):
        ViewerServer(root, port=taken)
    monkeypatch.setattr("srpo_train.viewer.server.DEFAULT_PORT", taken)
    with ViewerServer(root) as other:
        assert httpx.get(other.url).status_code == 200 and other.url != server.url


def test_what_is_no_run_is_refused_before_anything_listens(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither a run"):
        ViewerServer([tmp_path])
