"""A model spread over ranks is the same model: what it computes, what is published and what is saved."""

from __future__ import annotations

import pytest
import torch
from rank_world import Case, build_team, make_batch, run_ranks, shard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from srpo_envs.errors import CheckpointError, ConfigError
from srpo_train.config import DistributedConfig, OptimConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.distributed.sharding import ShardedModel, save_parts
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.publishing import weights_of
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.optimizer import PolicyOptimizer

REQUESTS = [
    GenerationRequest(request_id=f"r{n}", prompt="Compute 3+4.", max_new_tokens=8, seed=n, stop=()) for n in range(3)
]


def load(dtype):
    return build_team("shared", dtype)["a"]


def sample(policy, requests):
    return [generation.token_ids for generation in TransformersEngine(policy).generate(requests, Sampling())]


def use_sharded(ranks, folder):
    policy = load("bfloat16")
    shard({"a": policy}, ranks, torch.bfloat16)
    found = {"local": sum(parameter.to_local().numel() for parameter in policy.trainable_parameters)}
    with policy.shards.assembled():  # ranks need not do the same there
        found["samples"] = sample(policy, REQUESTS[: 1 + 2 * ranks.rank])
    with policy.shards.streamed():
        found["published"] = dict(weights_of(policy)) if ranks.is_main else {}
    with pytest.raises(LookupError, match="only while it is streamed"):
        weights_of(policy)
    policy.save(folder / "saved")
    rows = make_batch(Case(), ["a"]).rows
    found["logprobs"] = policy.scorer()(rows[:2]).logprobs_MT.detach()
    adamw = PolicyOptimizer(policy.trainable_parameters, OptimConfig()).adamw
    save_parts(policy.shards.parts(adamw), folder / "shards", ranks)
    with torch.no_grad():
        for parameter in policy.trainable_parameters:
            parameter.zero_()
    policy.shards.load_shards(folder / "shards", adamw)
    with policy.shards.collected():
        found["restored"] = dict(policy.shards.state_dict())
    with pytest.raises(LookupError, match="only while it is collected"):
        policy.shards.state_dict()
    with pytest.raises(CheckpointError, match="cannot be read"):
        policy.shards.load_shards(folder / "nowhere", adamw)
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    return run_ranks(2, folder / "ranks", use_sharded, folder), folder


def test_each_rank_holds_a_part_of_the_parameters(outcome):
    found, _ = outcome
    assert found[0]["local"] + found[1]["local"] == load("bfloat16").num_parameters
    assert 0.4 < found[0]["local"] / load("bfloat16").num_parameters < 0.6


def test_an_assembled_model_samples_what_the_whole_one_does(outcome):
    found, _ = outcome
    expected = sample(load("bfloat16"), REQUESTS)
    assert found[0]["samples"] == expected[:1]
    assert found[1]["samples"] == expected


def test_it_scores_what_the_whole_one_does(outcome):
    found, _ = outcome
    rows = make_batch(Case(), ["a"]).rows
    expected = load("bfloat16").scorer()(rows[:2]).logprobs_MT.detach()
    torch.testing.assert_close(found[0]["logprobs"], expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["published", "restored"])
def test_the_main_rank_has_every_tensor_by_name_in_the_policys_format(outcome, name):
    found, _ = outcome
    expected = dict(weights_of(load("bfloat16")))
    assert found[0][name].keys() == expected.keys()  # both names of tied ones among them
    assert all(torch.equal(found[0][name][key], tensor) for key, tensor in expected.items())
    assert all(tensor.dtype == torch.bfloat16 for tensor in found[0][name].values())
    assert found[1][name] == {}


def test_the_saved_model_is_what_the_whole_one_saves(outcome, tmp_path):
    _, folder = outcome
    load("bfloat16").save(tmp_path)
    assert {path.name for path in (folder / "saved").iterdir()} == {path.name for path in tmp_path.iterdir()}
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder / "saved", tmp_path))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], tensor) and ours[key].dtype == tensor.dtype for key, tensor in theirs.items())
    assert (folder / "saved" / "config.json").read_text() == (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(folder / "saved").dtype == torch.bfloat16


def test_what_cannot_be_spread_is_refused():
    policy = load("float32")
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "ranks": Ranks()}
    with pytest.raises(ConfigError, match="cpu_offload: the parameters are on the CPU already"):
        ShardedModel("a", policy.model, settings=DistributedConfig(sharding="fsdp", cpu_offload=True), **options)
    policy.model._no_split_modules = None
    with pytest.raises(ConfigError, match="does not say which of its modules are blocks"):
        ShardedModel("a", policy.model, settings=DistributedConfig(sharding="fsdp"), **options)
