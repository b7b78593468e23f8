"""A small run of the embedded policy in which nothing fails, and its recipe, for runs in which something does."""

from __future__ import annotations

from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=3",
    "train.checkpoint_every=1",
    "log.save_events=all",
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)


@pytest.fixture(scope="session")
def small_recipe():
    """Return what makes the recipe of a run of three steps of eight episodes, in a folder."""
    config = pytest.importorskip("srpo_train.config")
    return lambda folder, *overrides: config.load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


@pytest.fixture(scope="session")
def whole_run(small_recipe, tmp_path_factory) -> Path:
    """The directory of a run that nothing happened to; tests must leave it as it is."""
    from srpo_train.loop import train

    return train(small_recipe(tmp_path_factory.mktemp("whole")))
