"""`srpo_train.sinks`: the terminal, TensorBoard and W&B show what the log holds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from srpo_envs.errors import MissingExtraError
from srpo_train.config import parse_recipe
from srpo_train.metrics import check_name
from srpo_train.sinks import COLUMNS, TerminalSink, open_metrics

RECIPE = parse_recipe({"name": "x", "env": {"id": "e"}, "policies": {"p": {"model": "m"}}})


def test_terminal_columns_show_known_metrics() -> None:
    for column in COLUMNS:
        check_name(column.name + "any" if column.name.endswith("/") else column.name)


STEP = {"eval/accuracy": 0.25, "rollout/valid_rate/solver": 1.0, "rollout/valid_rate/verifier": 0.5}


def shown(*, is_terminal: bool, width: int = 120) -> str:
    file = io.StringIO()
    sink = TerminalSink(4, console=Console(file=file, force_terminal=is_terminal, width=width))
    sink.write(1, STEP)
    sink.warn("look here")
    sink.write(2, {"eval/accuracy": 0.5})
    sink.close()
    return file.getvalue()


def test_without_a_terminal_there_are_plain_aligned_lines() -> None:
    header, first, warning, second = shown(is_terminal=False).splitlines()
    assert header.split()[:3] == ["step", "held-out", "right"]
    assert first.split() == ["1", "0.250", "75.0%"]  # valid: the mean of 1.0 and 0.5
    assert first.index("75.0%") + 5 == header.index("valid") + 5
    assert warning == "warning: look here"
    assert second.split() == ["2", "0.500"]


def test_on_a_terminal_a_bar_follows_the_rows() -> None:
    text = shown(is_terminal=True)
    assert "2/4" in text
    assert "held-out" in text


def test_a_narrow_terminal_loses_the_last_columns_instead_of_wrapping() -> None:
    assert "s/step" in shown(is_terminal=True, width=120)
    narrow = shown(is_terminal=True, width=50)
    assert "valid" in narrow
    assert "s/step" not in narrow


def quiet() -> TerminalSink:
    return TerminalSink(4, console=Console(file=io.StringIO()))


def test_tensorboard_points_after_the_checkpoint_are_purged_on_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(steps: range, resume_step: int | None) -> None:
        with open_metrics(RECIPE, tmp_path, resume_step, watcher=quiet()) as metrics:
            for step in steps:
                metrics.log(step, {"train/loss": float(step + 10 * (resume_step or 0))})

    run(range(1, 6), None)
    run(range(3, 5), 2)
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    points = {point.step: point.value for point in accumulator.Scalars("train/loss")}
    assert points == {1: 1.0, 2: 2.0, 3: 23.0, 4: 24.0}


def test_wandb_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = RECIPE.model_copy(update={"log": RECIPE.log.model_copy(update={"wandb": True, "tensorboard": False})})
    with pytest.raises(MissingExtraError, match=r"pip install 'srpo\[wandb\]'"):
        open_metrics(recipe, tmp_path, watcher=quiet())
