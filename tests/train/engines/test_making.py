from __future__ import annotations

import pytest

from srpo_envs.errors import ConfigError, MissingExtraError
from srpo_train.config import EngineConfig, load_recipe, parse_recipe
from srpo_train.engines.making import make_engines
from srpo_train.engines.transformers import TransformersEngine

RECIPE = {
    "name": "demo",
    "env": {"id": "srpo_envs/ArithmeticSolverVerifier-v0"},
    "policies": {"team": {"model": "builtin:tiny-team"}},
}


def test_each_policy_gets_an_engine_of_the_kind_asked_for(tiny_policy):
    engines = make_engines([tiny_policy], EngineConfig(max_batch_tokens=100))
    assert list(engines) == ["tiny"]
    assert isinstance(engines["tiny"], TransformersEngine)
    assert engines["tiny"].policy_id == "tiny"


def test_without_vllm_the_extra_is_named(tiny_policy, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"srpo\[vllm\]"):
        make_engines([tiny_policy], EngineConfig.model_validate({"kind": "vllm"}))


def test_the_resolved_recipe_shows_the_settings_of_vllm(tmp_path):
    recipe = parse_recipe(RECIPE | {"engine": {"kind": "vllm", "vllm": {"sleep": True}}})
    assert (recipe.engine.vllm.sleep, recipe.engine.vllm.max_num_seqs) == (True, 256)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml") == recipe
    assert parse_recipe(RECIPE | {"engine": {"kind": "vllm"}}).engine.vllm.gpu_memory_utilization == 0.4


def test_settings_of_an_engine_that_is_not_used_are_refused():
    with pytest.raises(ConfigError, match=r'engine: vllm: kind = "transformers" would not read these settings'):
        parse_recipe(RECIPE | {"engine": {"vllm": {"sleep": True}}})


def test_an_unknown_setting_of_vllm_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"engine\.vllm\.max_seqs: unknown key.*max_num_seqs"):
        parse_recipe(RECIPE | {"engine": {"kind": "vllm", "vllm": {"max_seqs": 3}}})
