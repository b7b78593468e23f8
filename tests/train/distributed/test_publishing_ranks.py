"""From a model that is spread over ranks to servers: tensor by tensor, and what happens when a push breaks off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_vllm import FakeVllm
from rank_world import build_team, run_ranks, shard

from srpo_envs.errors import EngineError
from srpo_train.config import load_recipe
from srpo_train.engines.publishing import weights_of
from srpo_train.engines.served import ServedEngine
from srpo_train.loop import train
from srpo_train.metrics import read_metrics
from srpo_train.policies import Policy

BUCKET_BYTES = 20_011
RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"


def load():
    return build_team("shared", "bfloat16")["a"]


def publish_sharded(ranks, folder):
    """Publish over both transports; return what the servers hold then, and the tensors of each rank's own."""
    policy = load()
    servers = [FakeVllm(policy) for _ in range(2)] if ranks.is_main else []
    shard({"a": policy}, ranks, torch.bfloat16)
    with torch.no_grad():  # float32 weights that are no bfloat16 numbers, as after an update
        for parameter in policy.trainable_parameters:
            parameter.mul_(1.01)
    found = {}
    for transport in ("file", "gloo"):
        policy.version += 1
        with policy.shards.streamed():
            if ranks.is_main:
                engine = ServedEngine(
                    policy,
                    [server.url for server in servers],
                    weights_dir=folder,
                    transport=transport,
                    bucket_bytes=BUCKET_BYTES,
                    outage_s=20.0,
                    publish_timeout_s=40.0,
                )
                report = engine.publish(policy.version, weights_of(policy))
                held = [dict(server.policy.model.state_dict()) for server in servers]
                found[transport] = report.num_buckets, [server.label for server in servers], held
                engine.close()
    with policy.shards.collected():
        found["expected"] = dict(policy.shards.state_dict())
    if ranks.is_main:
        for server in servers:
            server.stop()
    return found


def break_off(ranks, folder):
    """Publish to nobody who would take it; then do something together, which needs all ranks in one place."""
    policy = load()
    server = FakeVllm(policy) if ranks.is_main else None
    shard({"a": policy}, ranks, torch.bfloat16)
    message = ""
    try:
        with policy.shards.streamed():
            if server:
                engine = ServedEngine(
                    policy, [server.url], weights_dir=folder, bucket_bytes=BUCKET_BYTES, publish_timeout_s=20.0
                )
                server._receiver._load = lambda weights: [1 / 0 for _ in weights]
                engine.publish(1, weights_of(policy))
    except EngineError as error:
        message = str(error)
        engine.close()
        server.stop()
    return message, float(ranks.share(torch.ones(1)))


def train_served(ranks, urls, folder):
    overrides = {
        "output_dir": folder,
        "env.kwargs.size": 6,
        "eval.every": 0,
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 4,
        "train.num_steps": 2,
        "train.checkpoint_every": 2,
        "log.tensorboard": "false",
        "log.role_gradients_every": 0,
        "distributed.sharding": "fsdp",
        "engine.kind": "served",
        "engine.served.bucket_bytes": BUCKET_BYTES,
        "engine.served.servers.team": urls,
        "engine.served.transport": "gloo",
    }
    return str(train(load_recipe(RECIPE, [f"{key}={value}" for key, value in overrides.items()])))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("publishing")
    return run_ranks(2, folder / "ranks", publish_sharded, folder)


@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_servers_hold_the_sharded_model_bit_for_bit_in_the_format_of_the_policy(outcome, transport):
    num_buckets, labels, held = outcome[0][transport]
    expected = outcome[0]["expected"]
    assert num_buckets > 5
    assert {label.partition("-")[0] for label in labels} == {"1" if transport == "file" else "2"}
    for state in held:
        assert state.keys() == expected.keys()
        assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
        assert all(state[name].equal(tensor) for name, tensor in expected.items())
    assert not held[0]["model.norm.weight"].equal(load().model.state_dict()["model.norm.weight"])
    assert transport not in outcome[1]


def test_ranks_stay_together_when_a_push_breaks_off(tmp_path):
    (message, total), (_, other) = run_ranks(2, tmp_path / "ranks", break_off, tmp_path)
    assert "could not load bucket 0" in message
    assert "division by zero" in message
    assert total == other == 2.0


def test_a_sharded_run_samples_from_the_weights_of_every_update_and_says_what_publishing_took(tmp_path):
    policy = Policy.load("team", "builtin:tiny-team", device="cpu")
    with FakeVllm(policy, max_model_len=256) as server:
        run_dir, _ = run_ranks(2, tmp_path / "ranks", train_served, [server.url], tmp_path)
        assert server.label.startswith("2-")
    lines = [line for line in read_metrics(Path(run_dir)) if line["step"]]
    size = sum(tensor.nbytes for tensor in policy.model.state_dict().values())
    for line in lines:
        assert line["train/engine_gap"] < 1e-4
        assert line["publish/buckets"] > 5
        assert 0 < line["publish/bytes"] - size < 20_000
        assert 0 < line["publish/slowest_s"] <= line["publish/seconds"]
        assert line["publish/unfit_servers"] == 0
    assert len(lines) == 2
