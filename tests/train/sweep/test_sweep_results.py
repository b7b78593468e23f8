"""Results: what is read from run directories, by hand-computed numbers, and how it is written."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from srpo_envs.errors import RecordError
from srpo_train.sweep import claim, list_runs, read_results, write_results
from srpo_train.sweep.cells import Run
from srpo_train.sweep.results import make_table
from sweeps import make_sweep

VARIANTS = [
    {"label": "SRPO", "group": "ours"},
    {"label": "GRPO", "set": {"objective": {"preset": "grpo"}}},
    {"label": "PPO", "set": {"objective": {"preset": "ppo"}}},
]


def training(step: int, **values: float) -> dict[str, float]:
    names = {
        "rollout/num_tokens": 50.0,
        "train/cardinality_mean": 1.5,
        "train/grad_norm": 1.0,
        "train/clip_fraction": 0.25,
        "train/log_ratio_std": 0.1,
        "rollout/zero_variance_groups": 0.5,
        "time/step_s": 2.0,
    }
    return {"step": step, **names, **values}


def evaluation(avg: float, best: float) -> dict[str, float]:
    return {"eval/avg_at_k": avg, "eval/pass_at_k": best, "eval/num_tokens": 240.0, "eval/num_episodes": 12.0}


def finish(run: Run, *lines: dict[str, float]) -> None:
    (run.run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.run_dir / "checkpoints" / f"step-{lines[-1]['step']:06d}").mkdir(parents=True)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """SRPO with two seeds, GRPO with one of two, PPO with none."""
    runs = list_runs(make_sweep(tmp_path, variants=VARIANTS, seeds=[0, 1]))
    with claim(tmp_path, runs):
        middle = training(2, **{"train/grad_norm": 3.0}) | evaluation(0.7, 0.9)
        start = {"step": 0} | evaluation(0.99, 0.99)  # before training: never the best
        finish(runs[0], start, training(1), middle, training(3, **{"train/grad_norm": 5.0}) | evaluation(0.6, 1.0))
        finish(runs[1], training(1), training(3) | evaluation(0.4, 0.5))
        finish(runs[3], training(1), training(3) | evaluation(0.8, 0.8))
    return tmp_path


def test_a_run_is_summed_up(out: Path) -> None:
    srpo, grpo, _ = read_results(out)
    run = srpo.runs[0]
    assert (run.final_avg, run.final_pass, run.best_avg, run.best_pass) == (0.6, 1.0, 0.7, 1.0)
    assert (run.num_steps, run.num_tokens, run.tokens_per_episode, run.seconds) == (3, 150.0, 20.0, 6.0)
    assert (run.cardinality_mean, run.clip_fraction, run.zero_variance_groups) == (1.5, 0.25, 0.5)
    assert run.grad_norm_mean == 3.0
    assert run.grad_norm_cv == pytest.approx(2 / 3)  # deviations -2, 0, 2 from a mean of 3: sqrt(8 / 2) / 3
    assert [run.seed for run in srpo.runs] == [0, 1]
    assert [run.seed for run in grpo.runs] == [0]


def test_cells_have_means_and_sample_deviations_and_none_for_a_single_run(out: Path) -> None:
    srpo, grpo, _ = read_results(out)
    both = srpo.score(lambda run: run.final_avg)
    assert both.mean == pytest.approx(0.7)  # 0.6 and 0.8
    assert both.spread == pytest.approx(0.02**0.5)
    assert grpo.score(lambda run: run.final_avg).spread is None


def test_the_table_shows_groups_deviations_and_what_is_missing(out: Path) -> None:
    text = write_results(out).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "Avg@2 at the end" in lines[0]
    assert lines[2].startswith("| *ours* |")
    assert lines[3].startswith("| SRPO | 70.0 ± 14.1 | 90.0 ± 14.1 |")
    assert lines[4].startswith("| GRPO | 40.0 | 50.0 |")
    assert "Percent of 64 held-out questions with 2 samples each" in text
    assert "Fewer finished runs than seeds: GRPO: 1." in text
    assert "No finished run yet: PPO." in text


def test_cells_that_were_not_evaluated_alike_have_no_best(tmp_path: Path) -> None:
    runs = list_runs(make_sweep(tmp_path, axes={"eval": {"samples_per_task": [1, 4]}}))
    with claim(tmp_path, runs):
        for run, score in zip(runs, (0.4, 0.8), strict=True):
            finish(run, training(3) | evaluation(score, score))
    table = make_table("sizes", read_results(tmp_path))
    assert table.columns[0].name == "Avg@k at the end"
    assert not any(cell.is_best for block in table.blocks for row in block.rows for cell in row.cells)
    assert "64 held-out questions with 1 samples each or 64 held-out questions with 4 samples each" in table.notes[0]
    assert "do not compare" in table.notes[1]


def test_the_csv_has_a_line_for_every_finished_run(out: Path) -> None:
    write_results(out)
    with (out / "results.csv").open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    assert [(row["cell"], row["seed"], float(row["final_avg"])) for row in rows] == [
        ("SRPO", "0", 0.6),
        ("SRPO", "1", 0.8),
        ("GRPO", "0", 0.4),
    ]
    assert json.loads(rows[2]["settings"]) == {"objective.preset": "grpo"}


def test_a_sweep_that_was_moved_is_still_read(out: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = tmp_path_factory.mktemp("elsewhere") / "sweep"
    out.rename(moved)
    assert [len(result.runs) for result in read_results(moved)] == [2, 1, 0]


def test_without_a_finished_run_there_is_no_table(tmp_path: Path) -> None:
    with claim(tmp_path, list_runs(make_sweep(tmp_path))):
        pass
    with pytest.raises(RecordError, match="no finished run"):
        write_results(tmp_path)
