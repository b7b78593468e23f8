"""Which engine `srpo eval` and `srpo play` sample with."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from srpo_train.cli import app
from srpo_train.cli._worlds import EngineKind, PolicySource, load_engines
from srpo_train.config import EngineConfig, load_recipe
from srpo_train.engines import making

RECIPES = Path(__file__).parents[3] / "recipes"
SERVED = ["engine={kind = 'served', served = {servers = {solver = ['http://a'], judge = ['http://b']}}}"]


@pytest.fixture
def config_of(monkeypatch: pytest.MonkeyPatch):
    """The engine settings that a source's policies would be sampled with."""
    asked: list[EngineConfig] = []
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(making, "make_engines", lambda policies, config: asked.append(config))

    def ask(kind: EngineKind, *changes: str, has_vllm: bool = True) -> EngineConfig:
        found = {"vllm": object() if has_vllm else None}
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *_: found[name] if name in found else find_spec(name)
        )
        recipe = load_recipe(RECIPES / "tiny-arithmetic-vllm.toml", changes)
        load_engines(
            PolicySource(name="run", specs=recipe.policy_specs(), roles=recipe.role_table, recipe=recipe), kind
        )
        return asked.pop()

    return ask


def test_a_recipe_s_own_engine_is_used_with_its_settings(config_of) -> None:
    config = config_of("recipe")
    assert (config.kind, config.vllm.max_num_seqs) == ("vllm", 128)
    assert config_of("vllm") == config
    small = config_of("recipe", "engine={kind = 'transformers', max_batch_tokens = 77}")
    assert (small.kind, small.max_batch_tokens) == ("transformers", 77)


def test_an_engine_that_is_asked_for_comes_before_the_recipe_s(config_of) -> None:
    assert config_of("transformers") == EngineConfig()
    assert config_of("vllm", "engine={kind = 'transformers'}") == EngineConfig.model_validate({"kind": "vllm"})


def test_what_cannot_be_had_here_gives_way_to_transformers_and_is_told(config_of, caplog) -> None:
    assert config_of("recipe", has_vllm=False) == EngineConfig()
    assert "not with the recipe's engine 'vllm'" in caplog.text
    assert config_of("recipe", *SERVED) == EngineConfig()  # its servers are those of its training
    assert "not with the recipe's engine 'served'" in caplog.text


def test_an_unknown_engine_is_refused_in_one_line() -> None:
    source = ["builtin:tiny-team", "--env", "ArithmeticSolverVerifier-v0", "--engine", "vlm"]
    for command in (["eval", *source], ["play", source[2], "--policy", source[0], *source[3:]]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2, result.output
        assert "--engine vlm: expected recipe, transformers or vllm" in result.stderr
