"""Tables and pictures of studies, from runs whose metrics are written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from srpo_envs.errors import RecordError
from srpo_train.config import load_recipe
from srpo_train.reporting.tables import Row
from srpo_train.study import list_study_runs, load_study, read_study, write_study
from srpo_train.study.results import make_table
from srpo_train.sweep import claim

RECIPES = Path(__file__).parents[3] / "recipes"
STUDY = f"""
seeds = [0, 1]
sharing = ["shared", "isolated"]

[models]
tiny = "builtin:tiny-team"

[set]
train.num_steps = 2

[[workflows]]
label = "Team"
task = "arithmetic"
recipe = "{RECIPES / "tiny-arithmetic.toml"}"

[[controls]]
task = "arithmetic"
recipe = "{RECIPES / "tiny-arithmetic-single-agent.toml"}"
"""

SCORES = {  # Avg@k before, after one step and after two, for both seeds
    "team_shared_arithmetic_tiny": ([0.2, 0.5, 0.5], [0.2, 0.7, 0.7]),
    "team_isolated_arithmetic_tiny": ([0.2, 0.9, 0.4], [0.2, 0.8, 0.4]),
    "single-agent_arithmetic_tiny": ([0.3, 0.4, 0.4], [0.3, 0.5, 0.6]),
}


def write_run(run_dir: Path, scores: Sequence[float]) -> None:
    lines = [
        {"step": step, "eval/avg_at_k": score, "eval/accuracy": score, "eval/num_episodes": 1000}
        | ({"rollout/num_tokens": 500} if step else {})
        for step, score in enumerate(scores)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run_dir / "checkpoints" / f"step-{len(scores) - 1:06d}").mkdir(parents=True)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    study = load_study(tmp_path / "study.toml", {"out": str(tmp_path / "out")})
    runs = list_study_runs(study)
    with claim(study.out, runs):
        for run in runs:
            write_run(run.run_dir, SCORES[run.cell.folder][run.recipe.seed])
    return tmp_path / "out"


def rows(out: Path) -> dict[str, Row]:
    (block,) = make_table(read_study(out)).blocks
    return {row.name: row for row in block.rows}


def shown(row: Row) -> list[str]:
    return [cell.text + (f" ± {cell.spread}" if cell.spread else "") for cell in row.cells]


def test_peak_end_gain_gap_and_fall_by_hand(out: Path) -> None:
    # The isolated team peaks at .9 and .8 (mean .85, sample deviation .0707) and ends at .4 twice; the control ends at
    # .4 and .6 (mean .5, deviation .1414), so the gap is -.1 with deviation sqrt(0 + .02) = .1414.
    assert shown(rows(out)["Team, isolated"]) == [
        "20.0 ± 0.0",
        "85.0 ± 7.1",
        "40.0 ± 0.0",
        "20.0 ± 0.0",
        "-10.0 ± 14.1",
        "45.0 ± 7.1",
        "1 ± 0",
        "validation cliff (2)",
    ]


def test_the_control_has_no_gap_to_itself(out: Path) -> None:
    cells = shown(rows(out)["single agent"])
    assert cells[4] == "–"
    assert cells[7] == "none"


def test_the_best_of_a_block_is_marked(out: Path) -> None:
    found = rows(out)
    assert [name for name, row in found.items() if row.cells[1].is_best] == ["Team, isolated"]
    assert [name for name, row in found.items() if row.cells[2].is_best] == ["Team, shared"]


def test_a_run_that_is_not_finished_does_not_count_and_is_said(out: Path) -> None:
    run_dir = out / "team_shared_arithmetic_tiny" / "seed-1"
    (run_dir / "checkpoints" / "step-000002").rmdir()
    table = make_table(read_study(out))
    assert table.notes[-1] == "Fewer finished runs than seeds: Team, shared, arithmetic, tiny: 1."
    assert shown(rows(out)["Team, shared"])[2] == "50.0"


def test_a_cell_without_a_finished_run_is_said_and_has_no_line(out: Path) -> None:
    for run_dir in (out / "team_shared_arithmetic_tiny").iterdir():
        (run_dir / "metrics.jsonl").unlink()
    assert make_table(read_study(out)).notes[-1] == "No finished run yet: Team, shared, arithmetic, tiny."
    assert "Team, shared" not in rows(out)
    assert "Team, isolated" in write_study(out).read_text()


def test_table_and_picture_are_written(out: Path) -> None:
    path = write_study(out)
    assert "| Team, isolated |" in path.read_text()
    assert (out / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"is it the directory of a sweep"):
        read_study(tmp_path)
    (tmp_path / "cells.json").write_text(
        json.dumps([{"label": "x", "folder": "x", "group": "", "settings": {"optim.lr": 1}}])
    )
    with pytest.raises(RecordError, match="is not of a study"):
        read_study(tmp_path)


def test_recipes_of_a_study_are_ordinary_recipes(out: Path) -> None:
    assert load_recipe(out / "team_shared_arithmetic_tiny" / "seed-0" / "recipe.toml").train.num_steps == 2
