"""`srpo_train.plan`: what a recipe will take, checked against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srpo_envs.errors import ConfigError, DatasetError, PolicyLoadError, UnknownIdError
from srpo_train.config import Recipe, load_recipe, parse_recipe
from srpo_train.plan import Plan, make_plan

TINY = 132_800
"""340 x 64 embeddings; 2 layers of 64 x 128 x 2 (queries, output), 64 x 64 x 2 (keys, values), 64 x 160 x 3
(feed-forward), 64 x 2 and 32 x 2 (norms); a last norm of 64."""
ROOT = Path(__file__).parents[2]


def recipe(policies: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    env = {"id": "ArithmeticSolverVerifier-v0", "kwargs": {"num_solvers": 3, "max_events": 5}}
    return parse_recipe({"name": "small", "env": env, "policies": policies or {"team": tiny()}} | sections)


def tiny(**options: Any) -> dict[str, Any]:
    return {"model": "builtin:tiny-team", "device": "cpu", **options}


def sizes(plan: Plan, device: str = "cpu") -> dict[str, int | None]:
    return {item.what: item.num_bytes for item in plan.memory if item.device == device}


def test_the_tiny_policy_by_hand() -> None:
    assert TINY == 340 * 64 + 2 * (2 * 64 * 128 + 2 * 64 * 64 + 3 * 64 * 160 + 2 * 64 + 2 * 32) + 64
    plan = make_plan(
        recipe(optim={"micro_batch_tokens": 512, "max_row_tokens": 256}, engine={"max_batch_tokens": 1000})
    )
    (policy,) = plan.policies
    assert (policy.num_parameters, policy.num_trained, policy.training) == (TINY, TINY, "whole model")
    assert policy.roles == ("solver", "verifier", "aggregator")
    assert sizes(plan) == {
        "weights: team": 4 * TINY,
        "moments: team": 8 * TINY,
        "gradients: team": 4 * TINY,
        # A layer keeps of a token: norms of 2 x 64 + 128 + 64 numbers at 12 bytes, and 4 bytes of 2 x 128 + 128 + 640.
        "activations of a micro-batch: team": 512 * 2 * (12 * 320 + 4 * 1024),
        # Three tiles of 512 tokens x 340 words, gradients of 512 x 64 hidden states and of the 340 x 64 head.
        "logits and head gradient: team": 3 * 4 * 512 * 340 + 4 * 512 * 64 + 4 * 340 * 64,
        "key-value cache at most: team": 1000 * 4 * 2 * 2 * 2 * 32,
    }
    update = 4 * TINY + 512 * 2 * (12 * 320 + 4 * 1024) + 3 * 4 * 512 * 340 + 4 * 512 * 64 + 4 * 340 * 64
    assert plan.peak_bytes("cpu") == 12 * TINY + update
    assert {item.what for item in plan.memory if item.phase == "always"} == {"weights: team", "moments: team"}
    assert plan.checkpoint_bytes == 12 * TINY


def test_policies_make_their_passes_one_after_the_other() -> None:
    small, large = {"micro_batch_tokens": 256, "max_row_tokens": 256}, tiny()
    team = {"a": large, "b": large}
    one, two = make_plan(recipe(optim=small)), make_plan(recipe(team, roles={"solver": "a", "*": "b"}, optim=small))
    passes = [item.num_bytes for item in one.memory if item.phase == "pass"]
    assert len(passes) == 2
    cache = sizes(one)["key-value cache at most: team"]
    assert cache is not None
    assert two.peak_bytes("cpu") == 2 * 12 * TINY + max(2 * 4 * TINY + sum(size or 0 for size in passes), 2 * cache)


def test_half_precision_has_masters_and_checkpointing_keeps_inputs_of_layers_only() -> None:
    options = tiny(dtype="bfloat16", gradient_checkpointing=True)
    plan = make_plan(recipe({"team": options}, optim={"micro_batch_tokens": 100, "max_row_tokens": 300}))
    found = sizes(plan)
    assert found["weights: team"] == 2 * TINY
    assert found["float32 masters: team"] == found["gradients: team"] == 4 * TINY
    layer = 8 * 320 + 2 * 1024
    assert found["activations of a micro-batch: team"] == 300 * (2 * 2 * 64 + layer)


def test_adapters_over_one_base_hold_it_once() -> None:
    pytest.importorskip("peft")
    adapter = {"rank": 8, "targets": ["q_proj", "v_proj"]}
    policies = {"a": tiny(adapter=adapter), "b": tiny(adapter={"rank": 2}), "c": tiny(trainable=False)}
    plan = make_plan(recipe(policies, roles={"solver": "a", "verifier": "b", "aggregator": "c"}))
    trained = {policy.policy_id: policy.num_trained for policy in plan.policies}
    all_linear = 2 * 2 * (2 * (64 + 128) + 2 * (64 + 64) + 3 * (64 + 160))  # rank x layers x (inputs + outputs)
    assert trained == {"a": 8 * 2 * ((64 + 128) + (64 + 64)), "b": all_linear, "c": 0}
    assert sizes(plan)["frozen weights: a, b, c"] == 4 * TINY
    assert [name for name in sizes(plan) if name.endswith(": c")] == ["key-value cache at most: c"]


def test_counts_are_those_of_loaded_policies() -> None:
    pytest.importorskip("peft")
    from srpo_train.policies.team import Team

    own = recipe({"a": tiny(adapter={"rank": 4}), "b": tiny()}, roles={"solver": "a", "*": "b"})
    team = Team.load(own.policy_specs(), own.role_map(["solver", "verifier", "aggregator"]))
    loaded = {policy.policy_id: sum(p.numel() for p in policy.trainable_parameters) for policy in team}
    assert {policy.policy_id: policy.num_trained for policy in make_plan(own).policies} == loaded


def test_a_reference_shares_the_frozen_base() -> None:
    found = sizes(make_plan(recipe(objective={"kl_coef": 0.1})))
    assert found["frozen weights: reference of team"] == found["weights: team"] == 4 * TINY


def test_a_step_is_bounded_by_the_limits_of_events_and_roles() -> None:
    rollout = {"prompts_per_step": 2, "group_size": 3, "oversample": 1, "mode": "asynchronous"}
    plan = make_plan(recipe(rollout=rollout, optim={"num_minibatches": 2, "num_epochs": 3}))
    step = plan.step
    assert (step.num_episodes, step.max_events, step.max_responses) == (8, 40, 40 * 5)
    assert step.max_new_tokens == 40 * (3 * 40 + 8 + 10)
    assert (step.longest_response, step.num_updates) == (40, 6)


def test_vllm_takes_the_first_gpus_for_each_model() -> None:
    policies = {"a": tiny(device="cuda:2"), "b": tiny(device="cuda:3")}
    options = {"tensor_parallel_size": 2, "kv_cache_memory_bytes": 1 << 20, "gpu_memory_utilization": 0.3}
    engine = {"kind": "vllm", "vllm": options}
    plan = make_plan(recipe(policies, roles={"solver": "a", "*": "b"}, engine=engine))
    assert plan.devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert [(engine.policy_ids, engine.places, engine.gpu_share) for engine in plan.engines] == [
        (("a",), ("cuda:0", "cuda:1"), 0.3),
        (("b",), ("cuda:0", "cuda:1"), 0.3),
    ]
    assert plan.peak_bytes("cuda:1") == 2 * (2 * TINY + (1 << 20))


def test_adapters_over_one_base_share_a_vllm() -> None:
    pytest.importorskip("peft")
    policies = {"a": tiny(adapter={"rank": 8}), "b": tiny(trainable=False), "c": tiny()}
    engine = {"kind": "vllm", "vllm": {"dtype": "bfloat16"}}
    plan = make_plan(recipe(policies, roles={"solver": "a", "verifier": "b", "*": "c"}, engine=engine))
    assert [(engine.policy_ids, engine.gpu_share) for engine in plan.engines] == [(("a", "b"), None), (("c",), None)]
    vllm = {name: size for name, size in sizes(plan).items() if name.startswith("vLLM")}
    assert vllm["vLLM weights: a, b"] == vllm["vLLM weights: c"] == 2 * TINY
    assert vllm["vLLM key-value cache: a, b"] == 64 << 20


def test_servers_take_no_memory_here() -> None:
    urls = ["http://gpu-1:8000", "http://gpu-2:8000"]
    plan = make_plan(recipe(engine={"kind": "served", "served": {"servers": {"team": urls}}}))
    assert [engine.places for engine in plan.engines] == [tuple(urls)]
    assert not {item.phase for item in plan.memory} & {"rollout"}


def test_sampling_during_updates_takes_a_second_model_and_copies_of_the_weights() -> None:
    ahead = {"max_lag": 2}
    before, plan = make_plan(recipe()), make_plan(recipe(rollout=ahead, objective={"correction": "event"}))
    added = {"copy that samples: team": 4 * TINY, "weights on their way: team": 3 * 4 * TINY}
    assert sizes(plan) == sizes(before) | added
    assert plan.peak_bytes("cpu") == before.peak_bytes("cpu") + 16 * TINY + sizes(plan)["key-value cache at most: team"]
    streamed = {"rollout": ahead | {"mode": "asynchronous"}, "objective": {"correction": "event"}}
    assert sizes(make_plan(recipe(**streamed)))["weights on their way: team"] == 4 * TINY
    engine = {"kind": "served", "served": {"servers": {"team": ["http://gpu-1:8000"]}}}
    assert "copy that samples: team" not in sizes(make_plan(recipe(**streamed, engine=engine)))


def test_adapters_that_sample_during_updates_share_a_second_base() -> None:
    pytest.importorskip("peft")
    roles, policies = {"solver": "a", "*": "b"}, {name: tiny(adapter={"rank": 4}) for name in ("a", "b")}
    plan = make_plan(recipe(policies, roles=roles, rollout={"max_lag": 1}, objective={"correction": "event"}))
    num_trained = plan.policies[0].num_trained
    found = sizes(plan)
    assert found["copy that samples: a, b"] == found["frozen weights: a, b"] == 4 * TINY
    assert found["copy of the adapter that samples: b"] == 4 * num_trained
    assert found["weights on their way: a"] == 2 * 4 * num_trained


def test_whole_models_cannot_share_a_server_and_frozen_copies_of_one_can() -> None:
    urls = {"a": ["http://gpu-1:8000"], "b": ["http://gpu-1:8000"]}
    engine = {"kind": "served", "served": {"servers": urls}}
    roles = {"solver": "a", "*": "b"}
    for b in (tiny(), tiny(trainable=False)):
        with pytest.raises(ConfigError, match="'a' and 'b' have a server in common, which holds one model"):
            make_plan(recipe({"a": tiny(), "b": b}, roles=roles, engine=engine))
    pytest.importorskip("peft")
    policies = {"a": tiny(adapter={"rank": 4}), "b": tiny(trainable=False)}
    assert [e.policy_ids for e in make_plan(recipe(policies, roles=roles, engine=engine)).engines] == [("a",), ("b",)]


def test_questions_that_are_on_the_hub_only_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    env = {"id": "MathSolverVerifier-v0", "kwargs": {"dataset": "nobody/no-questions", "split": "train"}}
    plan = make_plan(recipe(env=env))
    assert plan.num_tasks is None
    assert "MathSolverVerifier" in plan.notes[0]


def test_a_file_of_questions_that_is_not_there_is_refused(tmp_path: Path) -> None:
    env = {"id": "MathSolverVerifier-v0", "kwargs": {"dataset": "custom", "path": str(tmp_path / "none.jsonl")}}
    with pytest.raises(DatasetError, match=r"none\.jsonl"):
        make_plan(recipe(env=env))


def test_a_sleeping_vllm_is_not_there_in_updates() -> None:
    options = {"kv_cache_memory_bytes": 1 << 30, "sleep": True}
    plan = make_plan(recipe({"team": tiny(device="cuda")}, engine={"kind": "vllm", "vllm": options}))
    assert {item.phase for item in plan.memory if item.what.startswith("vLLM")} == {"rollout"}
    assert plan.peak_bytes("cuda:0") == 12 * TINY + 4 * TINY + (1 << 30)


def test_a_critic_takes_memory_beside_the_policies_and_room_in_checkpoints() -> None:
    # A critic on the tiny model has 64 weights and a bias in place of a head that is tied to the embeddings.
    critic = TINY + 65
    settings = {"objective": {"preset": "ppo"}, "optim": {"micro_batch_tokens": 512, "max_row_tokens": 256}}
    plan = make_plan(recipe(**settings, critic={"dtype": "bfloat16"}))
    assert plan.critic is not None
    assert (plan.critic.num_parameters, plan.critic.num_trained, plan.critic.roles) == (critic, critic, ())
    found = {what: size for what, size in sizes(plan).items() if what.endswith(": critic")}
    assert found == {
        "weights: critic": 2 * critic,
        "float32 masters: critic": 4 * critic,
        "moments: critic": 8 * critic,
        "gradients: critic": 4 * critic,
        # As a policy's, with 2 bytes in place of 4.
        "activations of a micro-batch: critic": 512 * 2 * (8 * 320 + 2 * 1024),
    }
    assert plan.checkpoint_bytes == 12 * TINY + 14 * critic
    assert [engine.policy_ids for engine in plan.engines] == [("team",)]
    assert make_plan(recipe()).critic is None


def test_a_critic_of_a_model_with_a_head_of_its_own_is_smaller_by_that_head() -> None:
    policies = {"team": {"model": "Qwen/Qwen3-8B", "device": "cpu"}}
    critic = make_plan(recipe(policies, objective={"preset": "ppo"})).critic
    assert critic is not None
    assert critic.num_parameters == 8_190_735_360 - 151_936 * 4096 + 4096 + 1


def test_an_unknown_model_leaves_its_sizes_open() -> None:
    plan = make_plan(recipe({"team": {"model": "nobody/nothing-1b", "device": "cpu"}}))
    assert plan.policies[0].num_parameters is None
    assert plan.peak_bytes("cpu") is None
    assert plan.checkpoint_bytes is None
    assert any("nobody/nothing-1b" in note for note in plan.notes)


def test_groups_of_one_are_noted_where_they_leave_nothing_to_compare() -> None:
    (note,) = make_plan(recipe(rollout={"group_size": 1})).notes
    assert "group_size" in note
    assert not make_plan(recipe(rollout={"group_size": 1}, objective={"preset": "ppo"})).notes


def test_vllm_that_is_missing_or_too_short_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    engine = {"kind": "vllm", "vllm": {"max_model_len": 40}}
    missing, short = make_plan(recipe(engine=engine)).notes
    assert "not installed" in missing
    assert "'solver'" in short


def test_a_gpu_that_is_too_small_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srpo_train.plan._device_memory", lambda _: 1 << 20)
    monkeypatch.setattr("srpo_train.plan._is_missing", lambda _: False)
    (note,) = make_plan(recipe({"team": tiny(device="cuda:0")})).notes
    assert note.startswith("cuda:0 has 0.0 GiB")


def test_only_one_vllm_can_sleep() -> None:
    policies = {"a": tiny(device="cuda:0"), "b": tiny(device="cuda:0")}
    engine = {"kind": "vllm", "vllm": {"sleep": True}}
    with pytest.raises(ConfigError, match="only one vLLM"):
        make_plan(recipe(policies, roles={"solver": "a", "*": "b"}, engine=engine))


def test_a_role_that_may_write_more_than_is_trained_is_noted() -> None:
    (note,) = make_plan(recipe(optim={"max_row_tokens": 40})).notes
    assert "'solver'" in note
    assert not make_plan(recipe(optim={"max_row_tokens": 41})).notes


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"env": {"id": "ArithmeticSolverVerifer-v0"}}, UnknownIdError, "ArithmeticSolverVerifier"),
        ({"policies": {"team": {"model": "./nowhere"}}}, PolicyLoadError, "nowhere"),
        ({"policies": {"team": {"model": "builtin:tiny-taem"}}}, ConfigError, "tiny-team"),
        ({"policies": {"team": tiny(device="gpu")}}, ConfigError, "not a torch device"),
        ({"policies": {"team": tiny(adapter={"targets": ["q_prj"]})}}, ConfigError, "q_proj"),
        ({"roles": {"solver": "team", "critic": "team", "*": "team"}}, ConfigError, "critic"),
        ({"objective": {"preset": "srp"}}, UnknownIdError, "srpo"),
        ({"critic": {}}, ConfigError, "read no critic"),
        ({"objective": {"preset": "ppo"}, "critic": {"model": "./nowhere"}}, PolicyLoadError, "nowhere"),
        ({"eval": {"every": 1, "num_tasks": 10_000_000}}, ConfigError, "10000000"),
    ],
)
def test_a_wrong_recipe_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    data = recipe().model_dump(exclude_none=True) | changes
    if "adapter" in str(changes):
        pytest.importorskip("peft")
    with pytest.raises(error, match=words):
        make_plan(parse_recipe(data))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*qwen*.toml")), ids=lambda path: path.stem)
def test_the_papers_recipes_fit_gpus_of_80_gb_and_their_responses_are_trained(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("peft")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    resolved = load_recipe(path)
    plan = make_plan(resolved)
    peak = plan.peak_bytes("cuda:2")
    assert peak is not None
    assert peak < 79 * 2**30
    assert plan.step.longest_response < resolved.optim.max_row_tokens
    options = resolved.engine.vllm
    assert options is not None
    assert options.max_model_len == resolved.optim.max_row_tokens
    assert len(plan.devices) == 3
