"""Adapters on vLLM servers: several policies, one model below, names that are never used again."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from fake_vllm import FakeVllm  # noqa: E402
from json_server import Answer  # noqa: E402

from srpo_envs.errors import ConfigError, EngineError  # noqa: E402
from srpo_train.config import AdapterConfig, EngineConfig  # noqa: E402
from srpo_train.engines.adapters import NoChange, StoredAdapter, kernel_rank  # noqa: E402
from srpo_train.engines.base import GenerationRequest, Sampling  # noqa: E402
from srpo_train.engines.making import make_engines  # noqa: E402
from srpo_train.engines.publishing import weights_of  # noqa: E402
from srpo_train.engines.transformers import TransformersEngine  # noqa: E402
from srpo_train.policies import Policy  # noqa: E402
from srpo_train.policies.shared_base import SharedBase  # noqa: E402

GREEDY = Sampling(temperature=0)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def requests(number=4):
    return [
        GenerationRequest(request_id=f"r{index}", prompt="abcd"[index % 4], max_new_tokens=10, seed=index)
        for index in range(number)
    ]


def change(policy, seed):
    """Move an adapter, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.share.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1


def publish(engine, policy):
    return engine.publish(policy.version, weights_of(policy))


def tokens(engine, sampling=GREEDY):
    return [generation.token_ids for generation in engine.generate(requests(), sampling)]


@pytest.fixture
def base(tiny_policy):
    return SharedBase(copy.deepcopy(tiny_policy.model), tiny_policy.tokenizer)


@pytest.fixture
def policies(base):
    """Two adapters that differ from the base, and the base."""
    shares = {name: base.new_adapter(name, AdapterConfig(rank=4, alpha=8.0), 0) for name in ("solver", "judge")}
    shares["frozen"] = base.alone()
    made = {
        name: Policy(policy_id=name, model=base.model, tokenizer=base.tokenizer, share=share)
        for name, share in shares.items()
    }
    change(made["solver"], 1)
    change(made["judge"], 2)
    return made


@pytest.fixture
def serve(policies, tiny_policy, tmp_path):
    """Start servers and the engines of all policies on all of them."""
    opened = []

    def start(num_servers=1, *, takes_adapters=True, **settings):
        servers = [FakeVllm(tiny_policy, takes_adapters=takes_adapters) for _ in range(num_servers)]
        opened.extend(server.stop for server in servers)
        urls = [server.url for server in servers]
        served = {"servers": dict.fromkeys(policies, urls), "weights_dir": str(tmp_path), "outage_s": 30.0, **settings}
        config = EngineConfig.model_validate({"kind": "served", "served": served})
        engines = make_engines(policies.values(), config)
        opened[:0] = [engine.close for engine in engines.values()]
        return engines, servers

    yield start
    for close in opened:
        close()


def names(server):
    return sorted(name.rpartition("-")[0] for name in server.adapters)


def test_each_policy_answers_with_its_own_adapter_and_the_base_with_none(serve, policies):
    engines, (server,) = serve()
    answers = {name: tokens(engine) for name, engine in engines.items()}
    assert answers == {name: tokens(TransformersEngine(policy)) for name, policy in policies.items()}
    assert len({str(answer) for answer in answers.values()}) == 3
    assert names(server) == ["frozen@0", "judge@1", "solver@1"]


def test_an_update_is_loaded_under_a_new_name_everywhere_and_the_old_one_is_gone(serve, policies):
    engines, servers = serve(2)
    before = tokens(engines["judge"])
    change(policies["solver"], 3)
    report = publish(engines["solver"], policies["solver"])
    adapter = sum(tensor.nbytes for _, tensor in weights_of(policies["solver"]))
    assert 0 < report.num_bytes - adapter < 16_000  # names and configuration
    assert report.server_s.keys() == {server.url for server in servers}
    assert (report.num_buckets, report.num_unfit) == (1, 0)
    generations = engines["solver"].generate(requests(), GREEDY)
    assert [g.token_ids for g in generations] == tokens(TransformersEngine(policies["solver"]))
    assert {g.policy_version for g in generations} == {2}
    assert tokens(engines["judge"]) == before
    assert [names(server) for server in servers] == [["frozen@0", "judge@1", "solver@2"]] * 2
    assert not any(server.pushes() for server in servers)  # the model below never moves


def test_a_server_that_was_restarted_gets_the_adapters_again(serve, policies):
    engines, (server,) = serve()
    expected = {name: tokens(engine) for name, engine in engines.items()}
    server.restart()
    assert server.adapters == {}
    assert {name: tokens(engine) for name, engine in engines.items()} == expected
    assert names(server) == ["frozen@0", "judge@1", "solver@1"]


def test_what_others_have_under_way_is_not_disturbed_by_a_publication(serve, policies):
    engines, (server,) = serve()
    server.delay_s = 1.0
    engines["judge"].submit(requests(), GREEDY)
    engines["solver"].submit(requests(), GREEDY)
    change(policies["solver"], 3)
    publish(engines["solver"], policies["solver"])
    assert {g.finish_reason for g in engines["solver"].poll(0.0)} == {"abort"}
    done = []
    while len(done) < 4:
        done += engines["judge"].poll(5.0)
    assert {g.finish_reason for g in done} <= {"stop", "length"}


def test_an_adapter_of_an_earlier_run_is_unloaded_and_never_taken_for_ours(serve, policies):
    engines, (server,) = serve()
    server.adapters["solver@2-0badcafe"] = server.adapters[next(iter(server.adapters))]
    server.adapters["solver@x@1-00000000"] = server.adapters["solver@2-0badcafe"]
    change(policies["solver"], 3)
    publish(engines["solver"], policies["solver"])
    assert names(server) == ["frozen@0", "judge@1", "solver@2", "solver@x@1"]
    assert tokens(engines["solver"]) == tokens(TransformersEngine(policies["solver"]))


@pytest.mark.parametrize(
    ("path", "step"), [(LOAD, "load the adapter"), (UNLOAD, "unload the adapter before"), ("/v1/models", "ask for its")]
)
def test_a_push_that_fails_names_server_and_step(serve, policies, path, step):
    engines, (server,) = serve()
    server.planned[path] = [Answer({"error": {"message": "out of memory"}}, status=500)] * 9
    change(policies["solver"], 3)
    with pytest.raises(EngineError, match=rf"publishing version 2 failed: {server.url}: could not {step}.*out of mem"):
        publish(engines["solver"], policies["solver"])


def test_a_part_of_an_adapter_moves_nothing(serve, policies):
    engines, (server,) = serve()
    with pytest.raises(EngineError, match=r"1 missing.*nothing has moved"):
        engines["solver"].publish(2, list(weights_of(policies["solver"]))[1:])
    assert names(server) == ["frozen@0", "judge@1", "solver@1"]


def test_a_server_whose_model_was_changed_gives_no_answers(serve):
    engines, (server,) = serve(outage_s=0.3, max_retries=0)
    server.label = "7-3fe2a90c"
    (generation, *_) = engines["solver"].generate(requests(1), GREEDY)
    assert generation.finish_reason == "abort"
    assert "sampled with the weights ['7-3fe2a90c']" in generation.abort_reason
    with pytest.raises(EngineError, match="the model below its adapters has the weights '7-3fe2a90c'; restart it"):
        engines["solver"].generate(requests(1), GREEDY)


def test_a_server_that_takes_no_adapters_says_how_to_start_it(serve):
    with pytest.raises(EngineError, match=r"could not load the adapter: status 404.*srpo serve-policy --adapters"):
        serve(takes_adapters=False)


def test_a_server_holds_one_model(policies, tiny_policy):
    other = Policy(policy_id="other", model=tiny_policy.model, tokenizer=tiny_policy.tokenizer)
    served = {"servers": {"solver": ["http://a", "http://b"], "other": ["http://b"]}}
    config = EngineConfig.model_validate({"kind": "served", "served": served})
    with pytest.raises(ConfigError, match="'solver' and 'other' have a server in common, which holds one model"):
        make_engines([policies["solver"], other], config)


def test_a_frozen_model_alone_on_its_servers_is_served_whole(policies, tiny_policy, tmp_path):
    server = FakeVllm(tiny_policy)
    served = {"servers": {"frozen": [server.url]}, "weights_dir": str(tmp_path)}
    engines = make_engines([policies["frozen"]], EngineConfig.model_validate({"kind": "served", "served": served}))
    try:
        assert tokens(engines["frozen"]) == tokens(TransformersEngine(policies["frozen"]))
        assert (server.pushes(), server.adapters) == (1, {})
    finally:
        engines["frozen"].close()
        server.stop()


def test_an_adapter_that_changes_nothing_is_small_and_loads(base, tmp_path):
    NoChange(base).write(tmp_path / "zeros", {})
    stored = StoredAdapter.read(tmp_path / "zeros")
    assert stored.rank == 1
    assert {tuple(tensor.shape) for tensor in stored.tensors.values()} == {(1, 32), (64, 1)}
    share = base.load_adapter("zeros", tmp_path / "zeros", is_trainable=False)
    policy = Policy(policy_id="zeros", model=base.model, tokenizer=base.tokenizer, share=share)
    alone = Policy(policy_id="alone", model=base.model, tokenizer=base.tokenizer, share=base.alone())
    assert tokens(TransformersEngine(policy)) == tokens(TransformersEngine(alone))


def test_ranks_are_rounded_up_to_those_that_vllm_has_kernels_for():
    assert [kernel_rank(rank) for rank in (1, 8, 9, 65, 512)] == [8, 8, 16, 128, 512]
    with pytest.raises(EngineError, match="up to rank 512, got 513"):
        kernel_rank(513)
