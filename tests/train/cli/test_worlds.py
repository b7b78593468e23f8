"""What the command line makes of the name of a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.cli._worlds import PolicySource, find_agent, find_policies, load_engines
from srpo_train.config import load_recipe


@pytest.mark.parametrize(
    ("name", "source", "model"),
    [
        ("http://127.0.0.1:8000/v1?model=qwen&max_concurrent=8", "http://127.0.0.1:8000/v1?model=qwen", "qwen"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("agent:mine:solve", "agent:mine:solve", "agent:mine:solve"),
        ("builtin:tiny-team", "builtin:tiny-team", "builtin:tiny-team"),
    ],
)
def test_settings_of_an_endpoint_are_no_part_of_what_is_evaluated(name, source, model) -> None:
    found = find_policies(name)
    assert (found.source, found.model, found.step) == (source, model, None)


@pytest.mark.parametrize(("name", "words"), [("math:pi", "got float"), ("math:tau2", "no attribute"), ("math", "math")])
def test_an_agent_that_is_no_function_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_agent(name)


def test_a_recipe_names_its_models_and_has_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        'name = "x"\n[env]\nid = "ArithmeticSingleAgent-v0"\n'
        '[policies.a]\nmodel = "one/model"\n[policies.b]\nmodel = "another/model"\n[roles]\n"*" = "a"\nsolver = "b"\n'
    )
    found = find_policies(str(path))
    assert (found.source, found.model) == (str(path), "another/model, one/model")
    assert found.roles == {"*": "a", "solver": "b"}
    with pytest.raises(ConfigError, match="has no checkpoints"):
        find_policies(str(path), step=3)
    with pytest.raises(ConfigError, match=r"none.toml: no such recipe"):
        find_policies(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("written", "asked", "expected"),
    [
        ("", "transformers", ("transformers", None)),
        ("", "vllm", ("vllm", 256)),
        ('[engine]\nkind = "vllm"\nvllm.max_num_seqs = 7\n', "vllm", ("vllm", 7)),
        ('[engine]\nkind = "vllm"\nvllm.max_num_seqs = 7\n', "transformers", ("transformers", None)),
    ],
)
def test_the_engine_is_the_one_asked_for_with_the_recipes_settings_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written, asked, expected
) -> None:
    import srpo_train.engines.making
    import srpo_train.policies.team

    made = []
    monkeypatch.setattr(srpo_train.policies.team.Team, "load", lambda *_: "the team")
    monkeypatch.setattr(srpo_train.engines.making, "make_engines", lambda team, config: made.append((team, config)))
    path = tmp_path / "small.toml"
    path.write_text(
        f'name = "x"\n[env]\nid = "ArithmeticSingleAgent-v0"\n[policies.a]\nmodel = "builtin:tiny-team"\n{written}'
    )
    load_engines(PolicySource(name="x", recipe=load_recipe(path)), asked)
    ((team, config),) = made
    assert team == "the team"
    assert (config.kind, config.vllm and config.vllm.max_num_seqs) == expected
