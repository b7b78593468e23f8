"""Which runs there are, and that nothing else is opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from viewer_world import lines_of, make_viewed_run, step_episodes

from srpo_envs.errors import RecordError, UnknownIdError
from srpo_train.viewer.runs import Catalogue, checkpoints, describe


def keys(*roots: Path) -> list[str]:
    return [place.key for place in Catalogue(roots).places()]


def test_a_folder_of_runs_is_searched(tmp_path: Path) -> None:
    make_viewed_run(tmp_path / "runs/a")
    make_viewed_run(tmp_path / "runs/sweep/b")
    samples = tmp_path / "runs/a/evals/math/math500/seed-0/samples.jsonl"
    samples.parent.mkdir(parents=True)
    samples.write_text("".join(map(lines_of, step_episodes(1))))
    (tmp_path / "runs/a/evals/math/plan.json").write_text("{}")
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "runs/.hidden").mkdir()
    assert keys(tmp_path / "runs") == ["a", "a/evals/math", "sweep/b"]
    assert [place.kind for place in Catalogue([tmp_path / "runs"]).places()] == ["run", "evaluation", "run"]
    assert keys(tmp_path / "runs/a") == ["a", "a/evals/math"]


def test_runs_of_one_name_are_told_apart_and_none_is_shown_twice(tmp_path: Path) -> None:
    first, second = make_viewed_run(tmp_path / "x/run"), make_viewed_run(tmp_path / "y/run")
    assert keys(first, second, first, tmp_path / "x") == ["run", "run (2)"]


def test_a_run_that_begins_later_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_viewed_run(tmp_path / "a")
    catalogue = Catalogue([tmp_path])
    monkeypatch.setattr("srpo_train.viewer.runs._SEARCH_EVERY_S", 0.0)
    make_viewed_run(tmp_path / "b")
    assert [place.key for place in catalogue.places()] == ["a", "b"]
    assert catalogue["b"].path == (tmp_path / "b").resolve()


def test_a_run_that_was_deleted_is_gone_at_once(tmp_path: Path) -> None:
    make_viewed_run(tmp_path / "a")
    make_viewed_run(tmp_path / "b")
    catalogue = Catalogue([tmp_path, tmp_path / "b"])
    shutil.rmtree(tmp_path / "b")
    assert [place.key for place in catalogue.places()] == ["a"]
    with pytest.raises(RecordError, match="run 'b' is gone"):
        catalogue["b"]
    shutil.rmtree(tmp_path)
    assert catalogue.places() == []


def test_a_root_that_was_deleted_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue([make_viewed_run(tmp_path / "a"), make_viewed_run(tmp_path / "b")])
    monkeypatch.setattr("srpo_train.viewer.runs._SEARCH_EVERY_S", 0.0)
    shutil.rmtree(tmp_path / "a")
    assert [place.key for place in catalogue.places()] == ["b"]


@pytest.mark.parametrize("name", ["../secret", "/etc", "a/../../secret", "", "a\x00", "secret"])
def test_only_what_was_named_is_opened(tmp_path: Path, name: str) -> None:
    make_viewed_run(tmp_path / "runs/a")
    make_viewed_run(tmp_path / "secret")
    with pytest.raises(UnknownIdError):
        Catalogue([tmp_path / "runs"])[name]


def test_a_link_to_a_run_elsewhere_is_not_followed(tmp_path: Path) -> None:
    make_viewed_run(tmp_path / "runs/a")
    (tmp_path / "runs/b").symlink_to(make_viewed_run(tmp_path / "secret"))
    assert keys(tmp_path / "runs") == ["a"]


def test_a_directory_that_is_no_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"neither a run .* nor an evaluation .* `srpo train RECIPE` makes a run"):
        Catalogue([tmp_path])
    with pytest.raises(RecordError, match="no such directory"):
        Catalogue([tmp_path / "missing"])


def test_a_run_is_described_by_its_recipe(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "a")
    for step in (10, 2):
        folder = run_dir / f"checkpoints/step-{step:06d}/team"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"0" * 100)
        (folder.parent / "manifest.json").write_text("{}")
    (run_dir / "checkpoints/step-000030.partial").mkdir()
    place = Catalogue([run_dir]).places()[0]
    shown = describe(place, 3)
    assert (shown["env"], shown["objective"], shown["last_step"]) == ("ArithmeticSolverVerifier-v0", "srpo", 3)
    assert shown["is_live"] and not describe(place, shown["num_steps"])["is_live"]
    assert checkpoints(place) == [{"step": 2, "num_bytes": 100}, {"step": 10, "num_bytes": 100}]
    (run_dir / "recipe.toml").write_text("nonsense = [")
    assert "recipe.toml" in describe(place, 3)["problem"]
