"""TensorBoard, W&B and trackio, each the real library: what arrives there, and that a resume repeats nothing."""

from __future__ import annotations

import io
import json
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_episode, make_event, make_member
from rich.console import Console

from srpo_envs.errors import MissingExtraError
from srpo_envs.records import Episode
from srpo_train.config import Recipe, parse_recipe
from srpo_train.tracking import open_metrics
from srpo_train.tracking.terminal import TerminalSink

HOSTILE = "</td><script>alert(1)</script>\n\n# heading `a` \u202egnihton\x1b[31m"


def recipe(**log: Any) -> Recipe:
    settings = {"tensorboard": False, "episodes_every": 2, "num_episodes": 2} | log
    return parse_recipe({"name": "x", "env": {"id": "e"}, "policies": {"p": {"model": "m"}}, "log": settings})


def quiet() -> TerminalSink:
    return TerminalSink(4, console=Console(file=io.StringIO()))


def hostile_episode() -> Episode:
    member = make_member(text=HOSTILE, malformed_reason="no answer", parsed=None)
    return make_episode(events=(make_event(1, episode_id="odd", members=(member,)),), episode_id="odd", reward=0.25)


def train(
    settings: Recipe, run_dir: Path, steps: Sequence[int], resume_step: int | None = None, offset: float = 0.0
) -> None:
    with open_metrics(settings, run_dir, resume_step, watcher=quiet()) as metrics:
        for step in steps:
            metrics.log(step, {"train/loss": step + offset}, [make_episode(), hostile_episode()])
        metrics.warn("look here")


# --- TensorBoard --------------------------------------------------------------------------------------------------


def tensorboard_of(run_dir: Path, tag: str) -> dict[int, Any]:
    """What the server of TensorBoard shows of a tag, by step."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    board = EventAccumulator(str(run_dir / "tensorboard"))
    board.Reload()
    points = board.Tensors(tag)
    assert len({point.step for point in points}) == len(points)
    return {point.step: tensor_util.make_ndarray(point.tensor_proto).item() for point in points}


def test_tensorboard_points_after_the_checkpoint_are_purged_on_resume(tmp_path: Path) -> None:
    train(recipe(tensorboard=True), tmp_path, range(1, 6))
    train(recipe(tensorboard=True), tmp_path, range(3, 5), resume_step=2, offset=20)
    assert tensorboard_of(tmp_path, "train/loss") == {1: 1.0, 2: 2.0, 3: 23.0, 4: 24.0}
    assert list(tensorboard_of(tmp_path, "episodes/text_summary")) == [2, 4]


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")
def test_tensorboard_shows_episodes_as_text_and_no_markup(tmp_path: Path) -> None:
    from tensorboard.plugins.text.text_plugin import text_array_to_html

    train(recipe(tensorboard=True), tmp_path, [2])
    text = tensorboard_of(tmp_path, "episodes/text_summary")[2].decode()
    assert "best: ep, task task" in text
    assert "malformed: no answer" in text
    assert "⟦U+202E⟧" in text
    html = str(text_array_to_html(np.array([text]), enable_markdown=True))
    assert "<script" not in html
    assert "<h1" not in html
    assert "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in html


# --- Weights & Biases ---------------------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The library, silent and without a network."""
    library = pytest.importorskip("wandb", reason="W&B is not installed: pip install 'srpo[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    yield library
    library.teardown()  # its service process, which would outlive the test


def wandb_history(run_dir: Path) -> list[dict[str, Any]]:
    """What all offline folders of a run hold, as `wandb sync` would send it."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in wandb_records(path.read_bytes()):
            history = Record.FromString(data).history
            if history.item:
                values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item}
                found.append(values | {"step": history.step.num})
    return found


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file: after a header of 7 bytes a log of LevelDB's, in blocks of 32 KiB."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # no room for a header: the next block
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb", "ignore::ResourceWarning")
def test_wandb_offline_keeps_curves_and_tables_and_no_step_twice(wandb: Any, tmp_path: Path) -> None:
    settings = recipe(wandb=True, wandb_offline=True)
    train(settings, tmp_path, range(1, 5))
    time.sleep(1.1)  # W&B names a folder by its run and second, and two starts in one would share it
    train(settings, tmp_path, range(3, 7), resume_step=2)
    lines = wandb_history(tmp_path)
    assert [(line["step"], line["train/loss"]) for line in lines] == [(step, float(step)) for step in range(1, 7)]
    tables = [
        json.loads(path.read_text()) for path in sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/*.json"))
    ]
    assert sorted(table["data"][0][0] for table in tables) == [2, 4, 6]
    table = tables[0]
    assert table["columns"][:5] == ["step", "episode", "why", "task", "reward"]
    assert [row[1:3] for row in table["data"]] == [["ep", "best"], ["odd", "worst"]]
    assert "<script>alert(1)</script>" in table["data"][1][-1]  # as text: W&B shows cells so
    assert "\u202e" not in table["data"][1][-1]
    assert len({path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}) == 1  # one id, two folders


def test_a_tracker_that_cannot_be_opened_is_done_without(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: Any) -> None:
        raise wandb.errors.CommError("no route to host")

    monkeypatch.setattr(wandb, "init", refuse)
    train(recipe(wandb=True), tmp_path, [1])
    assert caplog.messages == ["W&B cannot be opened, and the run does without it: no route to host"]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1,"train/loss":1.0}\n'


# --- trackio ------------------------------------------------------------------------------------------------------


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The library, with its folder beside the test's other files."""
    pytest.importorskip("trackio", reason="trackio is not installed: pip install 'srpo[trackio]'")
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    return sqlite_storage.SQLiteStorage


def test_trackio_keeps_curves_and_tables_and_no_step_twice(
    trackio: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = recipe(trackio=True, trackio_project="tests")
    train(settings, tmp_path / "run", range(1, 5))
    train(settings, tmp_path / "run", range(3, 7), resume_step=2)
    (name,) = trackio.get_runs("tests")
    assert name.startswith("x-")
    lines = trackio.get_logs("tests", name)
    assert [(line["step"], line["train/loss"]) for line in lines] == [(step, float(step)) for step in range(1, 7)]
    tables = [line["episodes"]["_value"] for line in lines if "episodes" in line]
    assert [table[0]["step"] for table in tables] == [2, 4, 6]
    assert [row["why"] for row in tables[0]] == ["    best", "    worst"]
    transcript = tables[0][1]["transcript"]
    assert all(line.startswith("    ") for line in transcript.split("\n"))  # a code block, whatever is in it
    assert "⟦U+202E⟧" in transcript


# --- all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "module", "extra"), [("wandb", "wandb", "wandb"), ("trackio", "trackio", "trackio")])
def test_a_tracker_that_is_not_installed_names_its_extra(
    key: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'srpo\[{extra}\]'"):
        open_metrics(recipe(**{key: True}), tmp_path, watcher=quiet())
