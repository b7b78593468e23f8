"""What alarms do to a run: end it, slow it down, or take it back to its best checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import Recipe, load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, series, without_timing
from srpo_train.policies import Policy

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"

# With these thresholds silent_batches is raised at the first step that can be judged, the sixth.
SMALL = (
    "env.kwargs.size=6",
    "eval.every=2",
    "eval.at_start=false",
    "eval.num_tasks=4",
    "eval.samples_per_task=1",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=8",
    "train.checkpoint_every=2",
    "train.keep_last=1",
    "optim.lr=1e-3",
    "log.save_events=none",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "alarms.silent_batches.share=0.0",
    "alarms.silent_batches.solved=1.0",
    "alarms.silent_batches.patience=1",
)
FIRES_AT = 6


def recipe(folder: Path, action: str, *overrides: str) -> Recipe:
    settings = [f"output_dir={folder}", *SMALL, f"alarms.silent_batches.action={action}", *overrides]
    return load_recipe(RECIPE, settings)


def weights(checkpoint: Path) -> torch.Tensor:
    model = Policy.load("team", checkpoint / "team", device="cpu").model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def numbers(run_dir: Path) -> list[dict[str, float]]:
    return [without_timing(line) for line in read_metrics(run_dir)]


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(recipe(tmp_path_factory.mktemp("rollback"), "rollback"))


def test_a_run_that_is_stopped_keeps_its_last_step_and_can_go_on(tmp_path: Path) -> None:
    run_dir = train(recipe(tmp_path, "stop"))
    assert [line["step"] for line in read_metrics(run_dir)] == [1, 2, 3, 4, 5, FIRES_AT]
    newest = CheckpointStore(run_dir / "checkpoints", is_read_only=True).latest()
    assert newest is not None
    assert newest.step == FIRES_AT
    train(recipe(tmp_path, "stop"), resume=True)
    assert read_metrics(run_dir)[-1]["step"] == 8


def test_a_lasting_alarm_is_in_the_log_of_every_step(rolled_back: Path) -> None:
    assert series(read_metrics(rolled_back), "alarm/silent_batches")[0] == [6, 7, 8]


def test_a_lower_rate_holds_from_the_next_step_on(tmp_path: Path) -> None:
    run_dir = train(recipe(tmp_path, "lower_lr", "alarms.lr_factor=0.25"))
    assert series(read_metrics(run_dir), "train/lr")[1] == [1e-3] * 6 + [2.5e-4] * 2


def test_a_rollback_takes_weights_and_moments_of_the_best_checkpoint(tmp_path: Path) -> None:
    run_dir = train(recipe(tmp_path, "rollback", f"train.num_steps={FIRES_AT}", "train.keep_last=9"))
    store = CheckpointStore(run_dir / "checkpoints", is_read_only=True)
    steps, scores = series(read_metrics(run_dir), "eval/avg_at_k")
    good = store.at(steps[scores.index(max(scores))])
    now = store.at(FIRES_AT)
    assert good.step < FIRES_AT, "the best evaluation is the last one, so nothing can be seen here"
    assert torch.equal(weights(now.path), weights(good.path))
    stored, current = (store.load_state(item)["learner"] for item in (good, now))
    moments = [item["optimizers"]["team"]["adamw"]["state"][0]["exp_avg"] for item in (stored, current)]
    assert torch.equal(*moments)
    assert (stored["rate_factor"], current["rate_factor"]) == (1.0, 0.5)


def test_the_best_checkpoint_is_kept_beside_the_newest(rolled_back: Path) -> None:
    steps, scores = series(read_metrics(rolled_back), "eval/avg_at_k")
    best = steps[scores.index(max(scores))]
    assert {path.name for path in (rolled_back / "checkpoints").iterdir()} == {f"step-{best:06d}", "step-000008"}


def test_a_run_resumed_after_a_rollback_arrives_at_the_same_numbers(rolled_back: Path, tmp_path: Path) -> None:
    train(recipe(tmp_path, "rollback", "train.num_steps=6"))
    run_dir = train(recipe(tmp_path, "rollback"), resume=True)
    assert numbers(run_dir) == numbers(rolled_back)


def test_policy_versions_keep_rising_over_a_rollback(rolled_back: Path) -> None:
    assert series(read_metrics(rolled_back), "train/policy_version")[1] == [1, 2, 3, 4, 5, 6, 8, 9]


def test_measuring_gradients_does_not_move_training(tmp_path: Path, rolled_back: Path) -> None:
    off = ["log.role_gradients_every=0", "train.num_steps=2"]
    unmeasured = train(recipe(tmp_path, "rollback", *off))
    for mine, theirs in zip(numbers(unmeasured), numbers(rolled_back), strict=False):
        assert mine == {name: value for name, value in theirs.items() if name in mine}
    measured = series(read_metrics(rolled_back), "train/role_grad_norm/solver")[0]
    assert measured == [1]  # of every tenth step, counted from the first
