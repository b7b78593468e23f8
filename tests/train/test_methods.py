"""Every method of the comparison can be written as a recipe and trains the tiny policies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from srpo_train.config import load_recipe
from srpo_train.loop import Trainer
from srpo_train.metrics import read_metrics
from srpo_train.objective import METHODS, Method
from srpo_train.policies import Policy

RECIPES = Path(__file__).parents[2] / "recipes"

OF_TEAM = {
    "any": "tiny-arithmetic",
    "shared": "tiny-arithmetic",
    "per role": "tiny-arithmetic-isolated",
    "one agent": "tiny-arithmetic-single-agent",
}
SMALL = (
    "env.kwargs.size=8",
    "eval.every=0",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "optim.num_minibatches=1",
    "train.num_steps=1",
    "log.save_events=none",
    "log.tensorboard=false",
)


@pytest.fixture(scope="module")
def start() -> dict[str, torch.Tensor]:
    """The weights every policy begins with."""
    return Policy.load("start", "builtin:tiny-team", device="cpu").model.state_dict()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_recipe_of_each_method_trains_every_policy(method: Method, start, tmp_path):
    recipe = load_recipe(
        RECIPES / f"{OF_TEAM[method.team]}.toml",
        [f"objective.preset={method.preset}", *SMALL],
    )
    assert len(recipe.policies) == (3 if method.team == "per role" else 1)
    with Trainer(recipe, tmp_path) as trainer:  # without the report, whose figures would take most of the time
        trainer.run()
    (line,) = read_metrics(tmp_path)
    assert line["rollout/num_episodes"] == 16
    assert line["train/num_updates"] == 1
    assert line["train/grad_norm"] > 0
    assert line["train/first_clip_fraction"] == 0.0
    for policy_id in recipe.policies:
        weights = Policy.load(policy_id, tmp_path / "checkpoints" / "step-000001" / policy_id, device="cpu")
        assert any(not torch.equal(tensor, start[name]) for name, tensor in weights.model.state_dict().items())
    if method.team == "one agent":
        assert line["train/cardinality_mean"] == line["train/num_events"] / 16 == 1.0
