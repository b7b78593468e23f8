"""``srpo sweep``: what it lists, trains, reports, and how it ends."""

from __future__ import annotations

import functools
import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import srpo_train.sweep
from srpo_train.cli import app
from srpo_train.cli._sweep_progress import SweepProgress, duration, seconds_left
from srpo_train.sweep import Run, list_runs, load_sweep
from srpo_train.sweep.cells import Standing

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"

TRAINS = """
import json, pathlib, sys
run_dir = pathlib.Path(sys.argv[1])
if len(sys.argv) > 2 and sys.argv[2] in str(run_dir):
    sys.exit("no space left")
scores = {"eval/avg_at_k": 0.5, "eval/pass_at_k": 0.75, "eval/num_tokens": 20, "eval/num_episodes": 2}
lines = [{"step": 0}, {"step": 1, **scores}]
(run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
(run_dir / "checkpoints" / "step-000001").mkdir(parents=True)
"""


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs end at once; those whose directory holds a text of the list fail."""
    failing: list[str] = []

    def command(run: Run) -> list[str]:
        return [sys.executable, "-c", TRAINS, str(run.run_dir), *failing]

    trained = functools.partial(srpo_train.sweep.run_all, command=command)
    monkeypatch.setattr(srpo_train.sweep, "run_all", trained)
    return failing


def sweep(*arguments: object) -> Result:
    given = ["sweep", *map(str, arguments), "--set", "train.num_steps=1"]
    return CliRunner().invoke(app, given, env={"COLUMNS": "140"})


def test_a_grid_is_trained_and_its_table_written(tmp_path: Path, trainer: list[str]) -> None:
    out = tmp_path / "scaling"
    result = sweep(RECIPE, "--grid", "objective.scaling=sqrt,none", "--seeds", "3,4", "--processes", "2", "--out", out)
    assert result.exit_code == 0, result.output
    assert "training: scaling = sqrt, seed 3" in result.stdout
    assert "4 of 4 runs finished" in result.stdout
    assert "| scaling = none | **50.0 ± 0.0** | **75.0 ± 0.0** |" in (out / "results.md").read_text()
    assert (out / "results.csv").read_text().count("\n") == 5
    again = sweep(RECIPE, "--grid", "objective.scaling=sqrt,none", "--seeds", "3,4", "--out", out)
    assert "training:" not in again.stdout
    assert "4 of 4 runs finished" in again.stdout


def test_a_run_that_fails_is_shown_and_makes_the_exit_code(tmp_path: Path, trainer: list[str]) -> None:
    trainer.append("seed-4")
    result = sweep(RECIPE, "--seeds", "3,4", "--out", tmp_path)
    assert result.exit_code == 1
    assert "failed: tiny-arithmetic, seed 4: exit code 1\nno space left\nlog:" in result.stdout
    assert "1 of 2 runs finished" in result.stdout
    assert (tmp_path / "results.md").exists()


def test_where_every_run_fails_there_is_no_table(tmp_path: Path, trainer: list[str]) -> None:
    trainer.append("seed")
    result = sweep(RECIPE, "--seeds", "3", "--out", tmp_path)
    assert result.exit_code == 1
    assert not (tmp_path / "results.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "objective.scalng=sqrt"], "objective.scalng: unknown key; did you mean 'scaling'"),
        (["--grid", "env.kwargs.num_solver=1"], "no argument 'num_solver'; did you mean 'num_solvers'"),
        (["--grid", "optim.lr"], "--grid section.key=value"),
        (["--seeds", "one"], "--seeds one: expected whole numbers"),
        (["--processes", "-1"], "processes: should be greater than 0"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_starts(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = sweep(RECIPE, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_cells_and_makes_nothing(tmp_path: Path) -> None:
    result = sweep(RECIPE, "--grid", "env.kwargs.num_solvers=1,3", "--dry-run", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if line.startswith("num_solvers = 3"))
    assert line.split()[3:] == ["0,", "1,", "2", "1", "128", "at", "most", "1,130,496", "132,800", "unknown"]
    assert "6 runs" in result.stdout
    assert not (tmp_path / "out").exists()


def test_only_some_cells_may_be_trained_and_the_table_shows_what_is_finished(tmp_path, trainer: list[str]) -> None:
    arguments = [RECIPE, "--grid", "env.kwargs.num_solvers=1,3", "--seeds", "0", "--out", tmp_path / "out"]
    listed = sweep(*arguments, "--dry-run", "--only", "NUM_SOLVERS = 3").stdout
    assert "1 runs" in listed and "num_solvers = 1" not in listed
    assert sweep(*arguments, "--only", "num_solvers = 3").exit_code == 0
    assert _rows(tmp_path) == ["solvers = 3"]
    assert sweep(*arguments).exit_code == 0
    assert _rows(tmp_path) == ["solvers = 1", "solvers = 3"]


def _rows(folder: Path) -> list[str]:
    return re.findall(r"^\| num.{0,2}(solvers = .) \|", (folder / "out" / "results.md").read_text(), flags=re.MULTILINE)


def test_a_choice_of_no_cell_is_refused(tmp_path: Path) -> None:
    result = sweep(RECIPE, "--grid", "env.kwargs.num_solvers=1,3", "--only", "voting", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--only voting: no cell has such a label; they are num_solvers = 1; num_solvers = 3" in result.stderr


# --- progress -----------------------------------------------------------------------------------------------------


def test_a_terminal_shows_a_line_for_each_cell(tmp_path: Path) -> None:
    runs = list_runs(load_sweep(RECIPE, ["env.kwargs.num_solvers=1,3"], {"out": str(tmp_path), "seeds": (0, 1)}))
    runs[0].run_dir.mkdir(parents=True)
    line = {"step": 40, "eval/accuracy": 0.625, "time/step_s": 30.0}  # half of 80 steps
    (runs[0].run_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    written = io.StringIO()
    with SweepProgress(Console(file=written, force_terminal=True, width=120), runs, processes=2) as progress:
        progress({run.name: "training" if run is runs[0] else "waiting" for run in runs})
    text = written.getvalue()
    assert "num_solvers = 1" in text and "num_solvers = 3" in text
    assert "0.625" in text
    assert "1:30" in text  # of the cell: one and a half runs at a minute each


def test_what_is_left_follows_from_the_pace_so_far() -> None:
    half = Standing(share=0.5, seconds=60.0)
    assert seconds_left([half, Standing()]) == 180.0
    assert seconds_left([Standing()]) is None
    assert (duration(59.6), duration(3725)) == ("1:00", "1:02:05")
