"""Adapters in vLLM, for real. Needs an environment of its own: `make test-vllm`."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from conformance_table import documented, found

from srpo_envs.errors import EngineError
from srpo_train.config import VllmConfig
from srpo_train.engines import GenerationRequest, Sampling
from srpo_train.engines.conformance import check_engine
from srpo_train.engines.conformance_checks import company, logprobs, record
from srpo_train.engines.conformance_policy import PROMPTS, conformance_adapter, conformance_policy
from srpo_train.policies import Policy

for package in ("vllm", "peft"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here; `make test-vllm` runs this", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own

GREEDY = Sampling(temperature=0.0)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_requests(count: int = 6) -> list[GenerationRequest]:
    return [
        GenerationRequest(request_id=f"ep/e0/{seed}", prompt=PROMPTS[seed % 3], max_new_tokens=16, seed=seed)
        for seed in range(count)
    ]


def make_adapter(seed: int):
    """The conformance policy's model with a random adapter over it."""
    import peft

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = peft.LoraConfig(
            r=4, lora_alpha=8, target_modules=TARGETS, init_lora_weights=False, task_type="CAUSAL_LM"
        )
        return peft.get_peft_model(conformance_policy().model, config)


def weights_of_adapter(model):
    import peft

    return peft.get_peft_model_state_dict(model).items()


def logprob_gap(model, generation) -> float:
    """Largest difference between a generation's log-probs and those of a model."""
    ids = torch.tensor([generation.prompt_token_ids + generation.token_ids])
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(generation.prompt_token_ids) - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    return float((expected - torch.tensor(generation.logprobs)).abs().max())


def test_an_adapter_keeps_every_promise_of_an_engine():
    from srpo_train.engines.vllm import open_engines

    policy = conformance_adapter()
    base = policy.share.base
    frozen = Policy(policy_id="frozen", model=base.model, tokenizer=base.tokenizer, share=base.alone())
    engines = open_engines([policy, frozen])
    try:
        report = check_engine(lambda: engines["conformance"], policy)
        report.require()
        assert documented("`VllmEngine, an adapter`") == found(report)
        check_engine(lambda: engines["frozen"], frozen, checks=[record, logprobs, company]).require()
    finally:
        engines["frozen"].close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Engines of two adapters and of the base, in one vLLM, and the models they should answer as."""
    from srpo_train.engines.adapters import StoredAdapter
    from srpo_train.engines.vllm import VllmEngine
    from srpo_train.engines.vllm_adapters import BASE_VERSION, AdapterWeights, BaseWeights
    from srpo_train.engines.vllm_host import VllmHost

    base = conformance_policy()
    host = VllmHost.open(base, VllmConfig(), num_adapters=2, lora_rank=4)
    host.push(BASE_VERSION, base.model.state_dict())
    made = {"base": (VllmEngine(base, host, BaseWeights("base")), base.model)}
    for number, name in enumerate(("solver", "judge"), start=1):
        policy, model = conformance_policy(), make_adapter(number)
        policy.policy_id = name
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        engine = VllmEngine(policy, host, AdapterWeights(name, host, number, StoredAdapter.read(folder)))
        engine.publish(0, weights_of_adapter(model))
        made[name] = (engine, model)
    yield made
    for engine, _ in made.values():
        engine.close()


def test_each_policy_answers_with_its_own_adapter(engines):
    for engine, model in engines.values():
        for generation in engine.generate(make_requests(), Sampling()):
            assert logprob_gap(model, generation) < 1e-4


def test_adapters_and_the_base_in_one_batch_do_not_mix(engines):
    for engine, _ in engines.values():
        engine.submit(make_requests(), Sampling())
    for name, (engine, model) in engines.items():
        done = []
        while len(done) < 6:
            done += engine.poll(0.01)
        assert max(logprob_gap(model, generation) for generation in done) < 1e-4, name


def test_a_published_adapter_replaces_its_own_alone(engines):
    solver, _ = engines["solver"]
    judge, judges = engines["judge"]
    before = judge.generate(make_requests(), GREEDY)
    old = solver.generate(make_requests(), GREEDY)
    for version, seed in ((1, 11), (2, 12)):
        trained = make_adapter(seed)
        solver.publish(version, weights_of_adapter(trained))
        answers = solver.generate(make_requests(), GREEDY)
        assert max(logprob_gap(trained, generation) for generation in answers) < 1e-4
        assert {generation.policy_version for generation in answers} == {version}
        assert [g.token_ids for g in answers] != [g.token_ids for g in old]
        old = answers
    engines["solver"] = (solver, trained)
    after = judge.generate(make_requests(), GREEDY)
    assert [g.token_ids for g in after] == [g.token_ids for g in before]
    assert {generation.policy_version for generation in after} == {0}
    assert max(logprob_gap(judges, generation) for generation in after) < 1e-4


def test_what_others_have_under_way_comes_back_as_given_up(engines):
    solver, model = engines["solver"]
    judge, _ = engines["judge"]
    judge.submit(make_requests(), Sampling())
    judge.poll(0.0)
    solver.publish(solver.published_version + 1, weights_of_adapter(model))
    given_up = judge.poll(0.0)
    assert given_up
    assert {generation.finish_reason for generation in given_up} == {"abort"}
    assert not any(generation.is_hopeless for generation in given_up)


def test_a_part_of_an_adapter_is_refused(engines):
    solver, model = engines["solver"]
    version = solver.published_version
    with pytest.raises(EngineError, match=r"'solver'.*1 missing.*nothing has moved"):
        solver.publish(version + 1, list(weights_of_adapter(model))[1:])
    assert solver.published_version == version
    assert logprob_gap(model, solver.generate(make_requests(1), Sampling())[0]) < 1e-4


def test_the_base_of_adapters_stays_as_it_is(engines):
    base, model = engines["base"]
    with pytest.raises(EngineError, match="is the base of adapters"):
        base.publish(1, model.state_dict().items())
