from __future__ import annotations

import pickle

import pytest
import torch

from srpo_envs.errors import ConfigError, PolicyLoadError
from srpo_train.policies import Policy, loading


def test_a_local_checkpoint_loads_with_its_weights(tiny_policy, tiny_checkpoint):
    from transformers import AutoModelForCausalLM

    expected = AutoModelForCausalLM.from_pretrained(tiny_checkpoint).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tiny_policy.model.state_dict().items())
    assert (tiny_policy.policy_id, tiny_policy.version) == ("tiny", 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_the_asked_one(tiny_checkpoint, dtype):
    policy = Policy.load("p", tiny_checkpoint, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {getattr(torch, dtype)}


def test_an_unknown_dtype_is_refused_with_the_nearest_one(tiny_checkpoint):
    with pytest.raises(ConfigError, match=r"policy 'p'.*'bflot16'.*did you mean 'bfloat16'"):
        Policy.load("p", tiny_checkpoint, dtype="bflot16")


@pytest.mark.parametrize("device", ["tpu?", "gpu"])
def test_an_unknown_device_is_refused(tiny_checkpoint, device):
    with pytest.raises(ConfigError, match="is not a torch device"):
        Policy.load("p", tiny_checkpoint, device=device)


def test_cuda_without_cuda_is_refused(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA"):
        Policy.load("p", tiny_checkpoint, device="cuda")


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "runs/a/checkpoint"])
def test_a_missing_directory_is_named(source):
    with pytest.raises(PolicyLoadError, match="policy 'p': expected a directory"):
        Policy.load("p", source)


def test_a_directory_without_a_checkpoint_says_what_it_needs(tmp_path):
    with pytest.raises(PolicyLoadError, match=r"policy 'p'.*needs config\.json") as caught:
        Policy.load("p", tmp_path)
    assert caught.value.__cause__ is not None


def test_an_unreachable_hub_names_the_remedy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyLoadError, match=r"policy 'p'.*'nobody/nothing'.*check the hub id and the connection"):
        Policy.load("p", "nobody/nothing")


def test_a_checkpoint_that_lacks_weights_is_refused(tiny_policy, tiny_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    tiny_policy.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyLoadError, match=r"lacks 1 weights.*'model\.layers\.1\.mlp\.up_proj\.weight'"):
        Policy.load("p", tmp_path)


def test_an_unknown_builtin_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"no builtin checkpoint 'tiny-tem'; did you mean 'tiny-team'"):
        Policy.load("p", "builtin:tiny-tem")


def test_a_builtin_that_is_not_installed_names_the_command(monkeypatch):
    monkeypatch.setitem(loading.BUILTIN_CHECKPOINTS, "absent", "no/such/folder")
    with pytest.raises(PolicyLoadError, match="srpo make-tiny-policy"):
        Policy.load("p", "builtin:absent")


def test_a_builtin_resolves_into_the_package(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(loading.importlib.resources, "files", lambda package: tiny_checkpoint.parent)
    monkeypatch.setitem(loading.BUILTIN_CHECKPOINTS, "mine", tiny_checkpoint.name)
    assert Policy.load("p", "builtin:mine", device="cpu").num_parameters > 0


def test_a_load_error_survives_a_process_boundary():
    error = PolicyLoadError("policy 'p': gone")
    assert str(pickle.loads(pickle.dumps(error))) == "policy 'p': gone"


def test_loading_and_saving_draw_no_progress_bar(tiny_checkpoint, tmp_path, capfd):
    Policy.load("p", tiny_checkpoint, device="cpu").save(tmp_path)
    assert capfd.readouterr() == ("", "")
