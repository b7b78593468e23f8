"""What a power cut leaves of the files of a run: ends torn off. The run goes on, and arrives at the same numbers."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

from run_accounts import accounts_of, assert_same_run

from srpo_envs.audit import audit_run
from srpo_train.loop import train
from srpo_train.metrics import read_metrics


def test_a_run_whose_last_lines_are_torn_off_goes_on_to_the_same_numbers(small_recipe, whole_run, tmp_path):
    recipe = small_recipe(tmp_path)
    run_dir = recipe.run_dir
    shutil.copytree(whole_run, run_dir)
    for path in ("metrics.jsonl", "events/step-000003.jsonl", "checkpoints/step-000003/team/model.safetensors"):
        content = (run_dir / path).read_bytes()
        (run_dir / path).write_bytes(content[:-100])
    assert [line["step"] for line in read_metrics(run_dir)] == [1, 2]
    report = audit_run(run_dir)
    assert report.is_ok
    assert report.num_episodes == 23
    assert "step-000003.jsonl" in report.summary()
    train(recipe, resume=True)
    assert_same_run(run_dir, whole_run)
    assert accounts_of(run_dir, per_step=8, num_steps=3).trained == 24
