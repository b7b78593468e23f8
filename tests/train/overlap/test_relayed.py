"""Rollouts that go on during the updates of several ranks: the main one samples ahead, on servers, and all train."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from fake_vllm import FakeVllm
from rank_world import run_ranks

from srpo_envs.audit import audit_run
from srpo_envs.errors import NoEpisodeError
from srpo_envs.records import read_episodes
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import load_recipe
from srpo_train.loop import Trainer, train
from srpo_train.metrics import read_metrics
from srpo_train.overlap.relayed import Relayed
from srpo_train.policies import Policy

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "env.kwargs.size=6",
    "eval.every=2",
    "eval.at_start=false",
    "eval.num_tasks=2",
    "eval.samples_per_task=1",
    "rollout.prompts_per_step=3",
    "rollout.group_size=4",
    "train.num_steps=4",
    "train.checkpoint_every=2",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
    "objective.correction=event",
    "engine.kind=served",
)
SHARDED = ("distributed.sharding=fsdp",)
ROUNDS = ("rollout.max_lag=1",)
STREAM = ("rollout.max_lag=2", "rollout.mode=asynchronous", "rollout.early_start=true", "optim.num_minibatches=3")


def train_served(ranks, folder, url, overrides, is_stopped):
    """Train, once or again from the checkpoint in the middle, and return the run's folder."""
    recipe = load_recipe(RECIPE, [*SMALL, *overrides, f"output_dir={folder}", f"engine.served.servers.team=['{url}']"])
    if is_stopped:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "_is_over", property(lambda trainer: trainer._step == 2))
            train(recipe)
    return str(train(recipe, resume=is_stopped))


def run(folder, overrides, *, size=2, is_stopped=False):
    policy = Policy.load("team", "builtin:tiny-team", device="cpu")
    with FakeVllm(policy, max_model_len=256) as server:
        run_dirs = run_ranks(size, folder / "ranks", train_served, folder, server.url, overrides, is_stopped)
        return Path(run_dirs[0]), server.label


def versions_of(run_dir, step):
    episodes = read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl")
    return [m.policy_version for episode in episodes for event in episode.events for m in event.members]


def weights(run_dir):
    newest = CheckpointStore(run_dir / "checkpoints", is_read_only=True).latest()
    model = Policy.load("team", newest.path / "team", device="cpu").model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory):
    """A run of one process, and the same run by two ranks over which the model is spread, stopped and resumed."""
    folder = tmp_path_factory.mktemp("rounds")
    return {
        "alone": run(folder / "alone", ROUNDS, size=1),
        "sharded": run(folder / "sharded", (*ROUNDS, *SHARDED), is_stopped=True),
    }


@pytest.mark.parametrize("name", ["alone", "sharded"])
def test_in_rounds_every_sample_is_as_old_as_the_recipe_says(in_rounds, name):
    run_dir, label = in_rounds[name]
    assert [set(versions_of(run_dir, step)) for step in range(1, 5)] == [{0}, {0}, {1}, {2}]
    lines = [line for line in read_metrics(run_dir) if line["step"]]
    assert [line["train/policy_lag"] for line in lines] == [0, 1, 1, 1]
    assert lines[0]["train/engine_gap"] < 1e-4  # sampled by the first weights, trained by them too
    assert all(line["train/first_clip_fraction"] == 0 for line in lines)
    assert label.startswith("4-")  # the evaluation at the end asked the newest weights
    report = audit_run(run_dir, replay=True)
    assert report.is_ok, report.summary()


def test_a_second_rank_and_a_resume_change_no_number(in_rounds):
    alone, sharded = (weights(in_rounds[name][0]) for name in ("alone", "sharded"))
    start = Policy.load("team", "builtin:tiny-team", device="cpu").model.parameters()
    assert (alone - torch.cat([parameter.detach().flatten() for parameter in start])).abs().max() > 1e-4
    assert (sharded - alone).abs().mean() < 2e-6


def test_streamed_groups_are_trained_part_by_part_on_every_rank_each_once_also_over_a_resume(tmp_path):
    run_dir, _ = run(tmp_path, (*STREAM, *SHARDED), is_stopped=True)
    groups: Counter[str] = Counter()
    for step, line in enumerate((line for line in read_metrics(run_dir) if line["step"]), start=1):
        assert step - 1 - min(versions_of(run_dir, step)) == line["train/policy_lag_max"] <= 2
        assert line["train/num_updates"] == 3
        groups.update(e.group_id for e in read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl"))
    assert groups == {f"step{step}/p{prompt}": 4 for step in range(1, 5) for prompt in range(3)}
    assert audit_run(run_dir).is_ok


class Lost:
    """A source from which nothing comes through."""

    def take(self):
        raise NoEpisodeError("the search server is away")
        yield


def take_from_a_lost_source(ranks):
    source = Relayed(Lost, lambda: None, ranks)
    try:
        next(source.take())
    except NoEpisodeError as error:
        return str(error), float(ranks.share(torch.ones(1)))  # they are still together


def test_every_rank_is_told_why_nothing_comes(tmp_path):
    assert run_ranks(2, tmp_path, take_from_a_lost_source) == [("the search server is away", 2.0)] * 2
