"""The shipped checkpoints: what other tools expect of them, and that each is what its recipe in the code makes."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from srpo_envs.errors import SandboxError
from srpo_envs.parsing import Parsed
from srpo_envs.sandbox.shared import open_sandbox
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_train.config import BUILTIN_TEAM
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies.loading import resolve_source
from srpo_train.tiny import checkpoint_dir
from srpo_train.tiny.make import CURRICULA, RECIPE_FILE
from srpo_train.tiny.measure import measure
from srpo_train.tiny.model import tiny_config


@pytest.fixture(scope="module", params=list(CURRICULA))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def loaded(name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint_dir(name))
    return model, AutoTokenizer.from_pretrained(checkpoint_dir(name))


@pytest.fixture(scope="module")
def recipe(name):
    return json.loads((checkpoint_dir(name) / RECIPE_FILE).read_text(encoding="utf-8"))


def test_the_builtin_name_is_the_folder_of_the_package(name):
    assert resolve_source("p", f"builtin:{name}") == str(checkpoint_dir(name))
    assert (checkpoint_dir(name) / "model.safetensors").stat().st_size < 8 * 2**20


def test_the_team_of_the_recipes_is_the_first():
    assert resolve_source("p", BUILTIN_TEAM) == str(checkpoint_dir())


def test_transformers_loads_it_as_a_standard_architecture(loaded):
    model, tokenizer = loaded
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.head_dim == 32  # the least that vLLM runs on a CPU
    assert model.dtype == torch.float32
    assert len(tokenizer) == model.config.vocab_size


def test_the_head_is_the_embedding(loaded, name):
    from safetensors import safe_open

    model, _ = loaded
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    with safe_open(checkpoint_dir(name) / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118


def test_generate_samples_from_the_whole_distribution_by_default(loaded):
    model, tokenizer = loaded
    defaults = model.generation_config
    assert (defaults.do_sample, defaults.temperature, defaults.top_k, defaults.top_p) == (True, 1.0, 0, 1.0)
    assert (defaults.eos_token_id, defaults.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_its_recipe_is_the_code_s(name, recipe, loaded):
    model, tokenizer = loaded
    curriculum, settings = CURRICULA[name], recipe["settings"]
    assert settings["seed"] == 0
    assert settings["phases"] == json.loads(json.dumps([dataclasses.asdict(phase) for phase in curriculum.phases]))
    assert settings["role_weights"] == curriculum.role_weights
    assert settings["num_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert settings["vocab_size"] == len(tokenizer)
    assert set(recipe["measured"]) == set(curriculum.measurements)


def test_its_architecture_is_the_code_s(loaded):
    model, tokenizer = loaded
    expected, ours = tiny_config(tokenizer).to_dict(), model.config.to_dict()
    added = ("architectures", "_name_or_path", "transformers_version")  # by saving and loading
    assert {key: ours[key] for key in expected if key not in added} == {
        key: value for key, value in expected.items() if key not in added
    }


def test_it_keeps_to_the_format_and_is_right_only_part_of_the_time(shipped_policy):
    env = SingleAgent(Arithmetic(level=2, split="test"))
    members = [env.reset(options={"task_index": index}).members[0] for index in range(64)]
    requests = [
        GenerationRequest(request_id=str(index), prompt=member.prompt, max_new_tokens=member.max_new_tokens, seed=index)
        for index, member in enumerate(members)
    ]
    texts = [item.text for item in TransformersEngine(shipped_policy).generate(requests, Sampling())]
    readings = [env.tasks.parse_answer(text) for text in texts]
    golds = [env.tasks.task(index).gold for index in range(64)]
    assert sum(isinstance(reading, Parsed) for reading in readings) >= 0.9 * 64
    accuracy = sum(reading == Parsed(gold) for reading, gold in zip(readings, golds, strict=True)) / 64
    assert 0.1 <= accuracy <= 0.5


def skip_without_sandbox():
    """Programs are run, which not every machine allows."""
    try:
        open_sandbox("namespaces")
    except SandboxError as error:
        pytest.skip(str(error))


def test_its_measured_rates_are_those_of_its_weights(name, load_shipped, recipe):
    # The likeliest tokens of the recorded setting, played again: the file was measured on these weights.
    if name == "tiny-coders":
        skip_without_sandbox()
    curriculum = CURRICULA[name]
    greedy = next(setting for setting, how in curriculum.measurements.items() if how.temperature == 0)
    rates = measure(load_shipped(name), curriculum, greedy, curriculum.num_measured, 0)
    assert rates == pytest.approx(recipe["measured"][greedy], abs=0.01)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_the_recipe_writes_the_shipped_settings(made, name, file):
    folder, _ = made
    ours, shipped = (json.loads((where / file).read_text(encoding="utf-8")) for where in (folder, checkpoint_dir(name)))
    own = {"transformers_version": "", "vocab_size": 0}
    assert ours | own == shipped | own
