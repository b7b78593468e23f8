"""Copies of a policy in other processes: only the published weights ever sample, whoever dies."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from ray_lines import LocalLine  # noqa: E402

from srpo_envs.errors import EngineError, WorkerLostError  # noqa: E402
from srpo_train.cluster.copies import CopiesEngine, CopyHost, StaleWeightsError, deal_by_prompt, pack, unpack  # noqa: E402
from srpo_train.engines.base import GenerationRequest, Sampling  # noqa: E402
from srpo_train.engines.publishing import PublishingEngine, weights_of  # noqa: E402
from srpo_train.engines.transformers import TransformersEngine  # noqa: E402
from srpo_train.policies import Policy  # noqa: E402


@pytest.fixture
def policy(tiny_policy):
    """A policy whose weights a test may change."""
    return Policy(policy_id="tiny", model=copy.deepcopy(tiny_policy.model), tokenizer=tiny_policy.tokenizer)


@pytest.fixture
def make_line(tiny_checkpoint):
    def make(name="engine of tiny 0"):
        spec = {"source": str(tiny_checkpoint), "device": "cpu"}
        return LocalLine(name, lambda: CopyHost("tiny", spec, max_batch_tokens=4096))

    return make


def requests(number=6, num_prompts=3):
    return [
        GenerationRequest(request_id=f"r{index}", prompt="ab" * (1 + index % num_prompts), max_new_tokens=8, seed=index)
        for index in range(number)
    ]


def engine_over(policy, *lines, **options):
    engine = CopiesEngine(policy, lines, store=lambda packed: packed, **options)
    engine.publish(policy.version, weights_of(policy))
    return engine


def update(policy, engine=None):
    """Move the weights as an update does, and publish them."""
    generator = torch.Generator().manual_seed(policy.version)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1
    if engine:
        engine.publish(policy.version, weights_of(policy))


def tokens(generations):
    return [(generation.request_id, generation.token_ids, generation.policy_version) for generation in generations]


def expected(policy, asked):
    return tokens(TransformersEngine(policy).generate(asked, Sampling()))


def test_a_copy_samples_what_the_policy_itself_would(policy, make_line):
    engine = engine_over(policy, make_line())
    assert isinstance(engine, PublishingEngine)
    for _ in range(2):
        assert engine.generate(requests(), Sampling()) != []
        found = engine.generate(requests(), Sampling())
        here = TransformersEngine(policy).generate(requests(), Sampling())
        assert tokens(found) == tokens(here)
        assert [generation.logprobs for generation in found] == [generation.logprobs for generation in here]
        assert engine.published_version == policy.version
        update(policy, engine)


def test_several_copies_share_the_requests_and_keep_their_order(policy, make_line):
    lines = [make_line("a"), make_line("b")]
    update(policy)
    engine = engine_over(policy, *lines)
    assert tokens(engine.generate(requests(12), Sampling())) == expected(policy, requests(12))
    assert [line.asked for line in lines] == [["take", "generate"]] * 2


def test_a_copy_that_dies_hands_its_requests_to_the_others_and_is_given_the_weights_again(policy, make_line):
    lines = [make_line("a"), make_line("b")]
    engine = engine_over(policy, *lines)
    update(policy, engine)
    lines[0].deaths = ["generate"]
    assert tokens(engine.generate(requests(12), Sampling())) == expected(policy, requests(12))
    assert lines[0].asked.count("take") == 3
    engine.generate(requests(12), Sampling())
    assert lines[0].asked[-1] == "generate"


def test_a_restarted_copy_never_answers_with_the_weights_it_was_loaded_with(policy, make_line):
    only = make_line()
    engine = engine_over(policy, only)
    update(policy, engine)
    only.host = only._make_host()
    with pytest.raises(StaleWeightsError, match="has the weights ''"):
        only.send("ask", "generate", engine._label, requests(), Sampling())()
    assert tokens(engine.generate(requests(), Sampling())) == expected(policy, requests())


def test_a_copy_that_dies_while_it_takes_weights_gets_them_when_it_is_back(policy, make_line):
    lines = [make_line("a"), make_line("b")]
    engine = engine_over(policy, *lines)
    lines[1].deaths = ["take"]
    update(policy, engine)
    assert tokens(engine.generate(requests(12), Sampling())) == expected(policy, requests(12))
    assert lines[1].asked[-2:] == ["take", "generate"]


def test_no_copy_for_too_long_is_a_failure_of_the_engine(policy, make_line):
    only = make_line()
    engine = engine_over(policy, only, outage_s=0.2)
    only.is_gone = True
    with pytest.raises(EngineError, match=r"no copy answered for 0\.2 s \(engine of tiny 0 is lost\)"):
        engine.generate(requests(), Sampling())


def test_weights_that_do_not_fit_move_nothing(policy, make_line):
    only = make_line()
    engine = engine_over(policy, only)
    with pytest.raises(EngineError, match="1 missing"):
        engine.publish(1, list(weights_of(policy))[1:])
    assert only.asked == ["take"]
    assert engine.published_version == 0


def test_an_error_of_the_model_is_no_lost_copy(policy, make_line):
    only = make_line()
    engine = engine_over(policy, only)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(torch.nan)
    engine.publish(1, weights_of(policy))
    with pytest.raises(EngineError) as caught:
        engine.generate(requests(), Sampling())
    assert not isinstance(caught.value, WorkerLostError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_out_as_they_went_in(dtype):
    tensor = (torch.arange(24).reshape(4, 6) % 5).to(dtype).T
    packed = pack({"a": tensor, "scalar": torch.tensor(3.0)})
    for _, _, data in packed.values():
        data.setflags(write=False)  # as Ray's shared memory is
    assert torch.equal(unpack(packed)["a"], tensor)
    assert unpack(packed)["scalar"] == 3.0


def test_requests_with_one_prompt_stay_together_unless_one_copy_would_do_all_the_work():
    shares = deal_by_prompt(requests(12, num_prompts=6), ["a", "b"])
    assert {name: len(share) for name, share in shares.items()} == {"a": 6, "b": 6}
    assert not {request.prompt for request in shares["a"]} & {request.prompt for request in shares["b"]}
    assert {len(share) for share in deal_by_prompt(requests(64, num_prompts=1), ["a", "b"]).values()} == {28, 36}
