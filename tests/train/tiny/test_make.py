from __future__ import annotations

import json

import pytest

from srpo_envs.errors import CheckpointError
from srpo_train.policies import Policy
from srpo_train.policies.loading import BUILTIN_CHECKPOINTS
from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.make import CURRICULA, RECIPE_FILE

FILES = {
    "RECIPE.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_equal_seeds_write_equal_files_and_other_seeds_other_weights(made, make_brief, tmp_path):
    folder, _ = made
    make_brief(tmp_path / "again")
    make_brief(tmp_path / "other", seed=1)
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    weights = [path.read_bytes() for path in (folder / "model.safetensors", tmp_path / "other" / "model.safetensors")]
    assert weights[0] != weights[1]


def test_the_report_is_written_beside_the_weights(made):
    folder, report = made
    assert json.loads((folder / RECIPE_FILE).read_text()) == report
    assert set(report["measured"]) == set(ARITHMETIC.measurements)
    assert [phase["name"] for phase in report["settings"]["phases"]] == ["first", "second"]


def test_the_folder_is_a_checkpoint_and_nothing_is_left_beside_it(made):
    folder, report = made
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert Policy.load("p", folder, device="cpu").num_parameters == report["settings"]["num_parameters"]


def test_an_empty_folder_is_filled_and_the_leftovers_of_an_interrupted_attempt_are_replaced(make_brief, tmp_path):
    target = tmp_path / "policy"
    target.mkdir()
    (tmp_path / "policy.partial").mkdir()
    (tmp_path / "policy.partial" / "half").write_text("x")
    make_brief(target)
    assert {path.name for path in target.iterdir()} == FILES


@pytest.mark.parametrize("is_folder", [True, False])
def test_files_are_refused_before_any_work_and_kept(tmp_path, make_brief, monkeypatch, is_folder):
    monkeypatch.setattr("srpo_train.tiny.make.make_tokenizer", lambda curriculum, seed: pytest.fail("started to work"))
    target = tmp_path / "policy"
    kept = target / "mine" if is_folder else target
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("x")
    with pytest.raises(CheckpointError, match=r"output_dir .*policy': expected a new or empty folder"):
        make_brief(target)
    assert kept.read_text() == "x"


def test_an_attempt_that_fails_leaves_no_folder(tmp_path, make_brief, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save", fail)
    with pytest.raises(OSError, match="disk full"):
        make_brief(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_every_builtin_has_its_recipe():
    assert list(CURRICULA) == list(BUILTIN_CHECKPOINTS)
