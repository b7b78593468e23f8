"""vLLM in this process, for real. Needs an environment of its own: `make test-vllm`."""

from __future__ import annotations

import dataclasses
import importlib.util
import time

import pytest
import torch
from conformance_table import documented, found

from srpo_envs.errors import EngineError
from srpo_train.config import VllmConfig
from srpo_train.engines import GenerationRequest, Sampling
from srpo_train.engines.conformance import CHECKS, check_engine
from srpo_train.engines.conformance_policy import PROMPTS, conformance_policy
from srpo_train.engines.publishing import weights_of

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here; `make test-vllm` runs this file where it is", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own

GREEDY = Sampling(temperature=0.0)


def make_requests(count: int = 6, *, limit: int = 16) -> list[GenerationRequest]:
    return [
        GenerationRequest(request_id=f"ep/e0/{seed}", prompt=PROMPTS[seed % 3], max_new_tokens=limit, seed=seed)
        for seed in range(count)
    ]


def tokens_of(generations) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


def perturb(policy, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.3 * parameter.std() * torch.randn(parameter.shape, generator=generator))


def greedy_tokens(policy, generation) -> tuple[int, ...]:
    """The policy's own greedy response to a generation's prompt."""
    tokens = list(generation.prompt_token_ids)
    with torch.no_grad():
        while len(tokens) - len(generation.prompt_token_ids) < 16:
            tokens.append(int(policy.model(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] in policy.eos_ids:
                break
    return tuple(tokens[len(generation.prompt_token_ids) :])


@pytest.fixture
def policy():
    return conformance_policy()


@pytest.fixture(scope="module")
def served():
    """An engine that tests must leave able to work, and its policy."""
    from srpo_train.engines.vllm import VllmEngine

    policy = conformance_policy()
    engine = VllmEngine.open(policy)
    yield engine, policy
    engine.close()


@pytest.fixture
def open_engine(policy):
    """Opens engines that tests may spoil."""
    from srpo_train.engines.vllm import VllmEngine

    opened = []

    def open_one(options: VllmConfig | None = None) -> VllmEngine:
        opened.append(VllmEngine.open(policy, options))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()


def test_it_keeps_every_promise_of_an_engine(policy):
    from srpo_train.engines.vllm import VllmEngine

    report = check_engine(lambda: VllmEngine.open(policy), policy)
    report.require()
    assert {result.name for result in report.results if result.outcome == "kept"} == {c.__name__ for c in CHECKS}
    assert documented("`VllmEngine`") == found(report)


def test_it_keeps_them_without_the_weight_transfer_interface(policy, monkeypatch):
    from srpo_train.engines import vllm_host
    from srpo_train.engines.vllm import VllmEngine

    monkeypatch.setattr(vllm_host, "transfer_options", dict)
    weights = ("publication", "whole_publication", "publication_under_way")
    checks = [check for check in CHECKS if check.__name__ in weights]
    check_engine(lambda: VllmEngine.open(policy), policy, checks=checks).require()


def test_a_published_update_decides_greedy_decoding_and_the_version(served):
    engine, policy = served
    begun = engine.published_version
    before = engine.generate(make_requests(3), GREEDY)
    perturb(policy)
    stale = engine.generate(make_requests(3), GREEDY)
    assert tokens_of(stale) == tokens_of(before)  # a copy: nothing reaches it by itself
    engine.publish(begun + 7, weights_of(policy))
    after = engine.generate(make_requests(3), GREEDY)
    assert tokens_of(after) == [greedy_tokens(policy, generation) for generation in after]
    assert tokens_of(after) != tokens_of(before)
    assert [g.policy_version for g in (*before, *after)] == [begun] * 3 + [begun + 7] * 3


def test_two_policies_in_one_process_have_weights_of_their_own(served, policy, open_engine):
    perturb(policy, seed=1)
    second = open_engine()
    for engine, own in (served, (second, policy)):
        for generation in engine.generate(make_requests(3), GREEDY):
            assert generation.token_ids == greedy_tokens(own, generation)


def test_what_vllm_stamps_with_another_version_is_refused(served):
    engine, policy = served
    engine._host._llm.update_weight_version("999")  # as if somebody else had pushed
    refused = engine.generate(make_requests(2), Sampling())
    assert {generation.finish_reason for generation in refused} == {"abort"}
    assert f"sampled by version 999, while version {engine.published_version} is published" in refused[0].abort_reason
    engine.publish(engine.published_version + 1, weights_of(policy))
    fresh = engine.generate(make_requests(2), Sampling())
    assert {generation.policy_version for generation in fresh} == {engine.published_version}


def test_a_token_that_the_model_lacks_is_an_abort_for_good(served, monkeypatch):
    engine, policy = served
    monkeypatch.setattr(policy, "encode_prompt", lambda text: (1, 10**6))
    (refused,) = engine.generate(make_requests(1), Sampling())
    assert refused.finish_reason == "abort"
    assert refused.is_hopeless


def test_a_push_that_fails_names_rank_and_tensor_and_ends_the_engine(policy, open_engine, monkeypatch):
    engine = open_engine()

    def fail(llm, weights) -> None:
        tensors = iter(weights)
        next(tensors), next(tensors)
        raise RuntimeError("the link is down")

    monkeypatch.setattr("srpo_train.engines.vllm_host.transfer", fail)
    with pytest.raises(
        EngineError, match=r"version 1 failed: rank 0 at 'model\.layers.*' \(2 of \d+ tensors\): the link"
    ):
        engine.publish(1, weights_of(policy))
    assert engine.published_version == 0
    with pytest.raises(EngineError, match="cannot be used any more"):
        engine.generate(make_requests(1), Sampling())


def test_a_push_that_hangs_names_rank_and_tensor_within_its_time(policy, open_engine, monkeypatch):
    engine = open_engine(VllmConfig(publish_timeout_s=2.0))

    def hang(llm, weights) -> None:
        next(iter(weights))
        time.sleep(30)

    monkeypatch.setattr("srpo_train.engines.vllm_host.transfer", hang)
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 0 at 'model\.embed_tokens\.weight' \(1 of .*no answer within 2 s"):
        engine.publish(1, weights_of(policy))
    assert time.monotonic() - begun < 10


def test_logits_that_are_not_numbers_end_the_engine(policy, open_engine):
    engine = open_engine()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(float("nan"))
    engine.publish(1, weights_of(policy))
    with pytest.raises(EngineError, match="not finite"):
        engine.generate(make_requests(1), Sampling())


def test_a_smaller_context_of_vllm_is_the_engine_s_and_the_process_stays_as_it_was(open_engine):
    torch.manual_seed(1)
    state, set_num_threads = torch.random.get_rng_state(), torch.set_num_threads
    engine = open_engine(VllmConfig(max_model_len=64))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.set_num_threads is set_num_threads
    short = dataclasses.replace(make_requests(1)[0], prompt="a" * 40, max_new_tokens=60)
    long = dataclasses.replace(make_requests(2)[1], prompt="a" * 64)
    answered, aborted = engine.generate([short, long], Sampling())
    assert len(answered.prompt_token_ids) + len(answered.token_ids) <= 64
    assert "64" in aborted.abort_reason


def test_half_precision_logprobs_are_close_to_the_trainer_s():
    from srpo_train.engines.vllm import VllmEngine

    policy = conformance_policy(torch.bfloat16)
    checks = [check for check in CHECKS if check.__name__ in ("logprobs", "closing")]
    check_engine(lambda: VllmEngine.open(policy), policy, checks=checks).require()
