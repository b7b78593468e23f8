"""How much do objectives differ before any ratio has moved? Their gradients on one batch, compared with SRPO's.

All objectives train on the same events, so on one batch of the starting policy they can be compared exactly: norm of
the gradient, and cosine with SRPO's. At the first update every ratio is 1 and no clip acts; what differs is how returns
become advantages and what counts once in the mean. Adam forgets the norm, not the direction::

    python benchmarks/gradient_directions.py                 # arithmetic and search, 16 questions x 8 episodes
    python benchmarks/gradient_directions.py --prompts 64

The last row is the noise to compare with: SRPO on another batch of the same size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.pop(0)  # this folder, in which `retrieval` would be another benchmark

import srpo_envs
from srpo_envs.records import Episode
from srpo_train.collect import Collector
from srpo_train.config import Recipe, load_recipe
from srpo_train.engines.base import Sampling
from srpo_train.engines.making import make_engines
from srpo_train.experience import build_experience
from srpo_train.objective import Objective
from srpo_train.policies.team import Team
from srpo_train.set_gradient import accumulate_set_gradient
from srpo_train.task_order import TaskOrder, step_jobs

RECIPES = Path(__file__).parent.parent / "recipes"

WORLDS = ("arithmetic", "search")

CHOICES: dict[str, list[str]] = {
    "SRPO": [],
    "SRPO, no scaling": ["objective.scaling=none"],
    "SRPO, joint mean": ["objective.scaling=mean"],
    "SRPO, members count once": ["objective.reduction=row"],
    "SRPO, tokens count once": ["objective.reduction=token"],
    "SRPO, member ratios": ["objective.unit=sequence"],
    "Dr. MAS": ["objective.preset=dr_mas"],
    "GRPO": ["objective.preset=grpo"],
    "AT-GRPO": ["objective.preset=at_grpo"],
    "MAGRPO": ["objective.preset=magrpo"],
    "GSPO": ["objective.preset=gspo"],
}


def collect(recipe: Recipe, team: Team, step: int) -> tuple[Episode, ...]:
    """The episodes that training step `step` would sample with the starting weights."""
    rollout = recipe.rollout
    env = srpo_envs.make(recipe.env.id, **recipe.env.kwargs)
    jobs = step_jobs(
        TaskOrder(env.tasks.num_tasks, recipe.seed),
        step=step,
        prompts_per_step=rollout.prompts_per_step,
        group_size=rollout.group_size,
        seed=recipe.seed,
    )
    collector = Collector(
        lambda: srpo_envs.make(recipe.env.id, **recipe.env.kwargs),
        make_engines(team, recipe.engine),
        team.roles,
        seed=recipe.seed,
    )
    try:
        return collector.collect(jobs, Sampling(temperature=recipe.sampling.temperature)).episodes
    finally:
        collector.close()


def gradient(objective: Objective, recipe: Recipe, team: Team, episodes: Sequence[Episode]) -> Tensor:
    """The gradient of an objective over the team's parameters, as one vector."""
    parameters = [parameter for policy in team for parameter in policy.trainable_parameters]
    for parameter in parameters:
        parameter.grad = None
    batch = build_experience(episodes, objective, recipe.optim.max_row_tokens).batch
    scorers = {policy.policy_id: policy.scorer(temperature=recipe.sampling.temperature) for policy in team}
    max_tokens = recipe.optim.micro_batch_tokens
    accumulate_set_gradient(objective, batch, scorers, max_tokens=max_tokens, on_policy=True)
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])


def compare(name: str, num_prompts: int) -> Table:
    overrides = [f"rollout.prompts_per_step={num_prompts}"]
    recipe = load_recipe(RECIPES / f"{name}.toml", overrides)
    env = srpo_envs.make(recipe.env.id, **recipe.env.kwargs)
    team = Team.load(recipe.policy_specs(), recipe.role_map(env.roles))
    episodes, others = (collect(recipe, team, step) for step in (1, 2))
    table = Table("objective", "gradient norm", "cosine with SRPO", title=f"{name}, {len(episodes)} episodes")
    objectives = {
        label: load_recipe(RECIPES / f"{name}.toml", changes).objective.build() for label, changes in CHOICES.items()
    }
    srpo = gradient(objectives["SRPO"], recipe, team, episodes)
    found = {label: gradient(objective, recipe, team, episodes) for label, objective in objectives.items()}
    found["SRPO, another batch"] = gradient(objectives["SRPO"], recipe, team, others)
    for label, vector in found.items():
        cosine = torch.nn.functional.cosine_similarity(vector, srpo, dim=0).item()
        table.add_row(label, f"{vector.norm().item():.3f}", f"{cosine:.3f}")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS, help="which of the tiny recipes")
    parser.add_argument("--prompts", type=int, default=16, help="questions of the batch, with 8 episodes each")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for world in options.worlds:
        Console(width=120).print(compare(f"tiny-{world}", options.prompts))


if __name__ == "__main__":
    main()
