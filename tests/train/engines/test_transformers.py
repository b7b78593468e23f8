from __future__ import annotations

import dataclasses

import pytest
import torch

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.engines import GenerationRequest, Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy

PROMPTS = ["0+1=?", "a*b>cd 0123456789=?", "g"]


def make_requests(count: int = 9, *, limit: int = 24, stop=(), first_seed: int = 0) -> list[GenerationRequest]:
    """Requests over three prompts of different lengths, each asked several times."""
    return [
        GenerationRequest(
            request_id=f"ep/e0/{number}",
            prompt=PROMPTS[number % len(PROMPTS)],
            max_new_tokens=limit,
            seed=first_seed + number,
            stop=stop,
        )
        for number in range(count)
    ]


def sample(policy, requests, sampling=None, **bounds):
    return TransformersEngine(policy, **bounds).generate(requests, sampling or Sampling())


def tokens_of(generations) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


TRUNCATED = Sampling(top_k=5, top_p=0.9, with_kept=True)


def recomputed_logprobs(policy, generation, temperature: float = 1.0) -> torch.Tensor:
    """One forward pass over the stored tokens of one response, without cache, padding or batch."""
    prompt, response = generation.prompt_token_ids, generation.token_ids
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logits = logits.float() / temperature
    for place, left in enumerate(generation.kept_token_ids):
        removed = torch.ones(logits.shape[-1], dtype=torch.bool).index_fill(0, torch.tensor(left), False)
        logits[place, removed] = -torch.inf
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(response)[:, None])[:, 0]


@pytest.fixture
def own_policy(tiny_checkpoint):
    """A policy that a test may change."""
    return Policy.load("own", tiny_checkpoint, device="cpu")


# --- sampled tokens are the record --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7), TRUNCATED], ids=str)
def test_logprobs_equal_those_recomputed_from_the_stored_tokens(tiny_policy, sampling):
    for generation in sample(tiny_policy, make_requests(), sampling):
        expected = recomputed_logprobs(tiny_policy, generation, sampling.temperature)
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, rtol=0, atol=1e-5)


def test_stored_tokens_are_those_sampled_even_where_their_text_encodes_differently(tiny_policy):
    # br-001: with this vocabulary a + b reads back as ab.
    generations = sample(tiny_policy, make_requests(30))
    encode = tiny_policy.tokenizer
    differing = [
        generation
        for generation in generations
        if tuple(encode(generation.text, add_special_tokens=False)["input_ids"]) != generation.token_ids
    ]
    assert len(differing) >= 10
    for generation in differing:
        log_ratio = recomputed_logprobs(tiny_policy, generation).sum() - sum(generation.logprobs)
        assert abs(log_ratio) < 1e-4


def test_every_response_has_as_many_logprobs_as_tokens_and_its_own_text(tiny_policy):
    # br-002, br-008: nothing is shifted or padded, so the tokens decode to exactly the text.
    for generation in sample(tiny_policy, make_requests(30)):
        assert len(generation.logprobs) == len(generation.token_ids) > 0
        assert tiny_policy.decode(generation.token_ids) == generation.text


def test_each_request_keeps_the_prompt_tokens_the_model_saw(tiny_policy):
    for request, generation in zip(make_requests(), sample(tiny_policy, make_requests()), strict=True):
        assert generation.request_id == request.request_id
        assert generation.prompt_token_ids == tiny_policy.encode_prompt(request.prompt)


def test_a_template_that_is_not_append_only_gives_each_event_its_own_prompt(own_policy):
    # br-003, br-005, br-006: the template drops thinking and adds a line break, so the second prompt does not extend
    # the first one and its response; both records still recompute.
    own_policy.tokenizer.chat_template = (
        "{%- for message in messages -%}<|user|>{{ message['content'].split('</think>')[-1] }}{{ '\n' }}{%- endfor -%}"
        "<|assistant|>"
    )
    (first,) = sample(own_policy, make_requests(1))
    history = dataclasses.replace(make_requests(1)[0], prompt="<think>a</think>" + PROMPTS[0] + first.text)
    (second,) = sample(own_policy, [history])
    extension = first.prompt_token_ids + first.token_ids
    assert second.prompt_token_ids[: len(extension)] != extension
    for generation in (first, second):
        expected = recomputed_logprobs(own_policy, generation)
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, rtol=0, atol=1e-5)


# --- ends ---------------------------------------------------------------------------------------------------------


def test_a_response_ends_with_its_first_end_of_sequence_token_or_at_its_limit(tiny_policy):
    # br-009: the padding token is the end-of-sequence token here; br-010: a cut response has no end.
    generations = sample(tiny_policy, make_requests(60))
    assert {generation.finish_reason for generation in generations} == {"stop", "length"}
    for generation in generations:
        ends = [token in tiny_policy.eos_ids for token in generation.token_ids]
        if generation.finish_reason == "stop":
            assert ends == [False] * (len(ends) - 1) + [True]
        else:
            assert not any(ends)
            assert len(ends) == 24


@pytest.mark.parametrize("stop", [("a",), (">", "b"), ("b>",), ("é", "\n"), ("<think>",)], ids=repr)
def test_a_stop_text_ends_the_response_and_stays_in_it(tiny_policy, stop):
    # br-017: equal seeds give equal tokens, so the response is the first prefix of the unstopped one with a stop text.
    stopped_rows = 0
    for free, held in zip(
        sample(tiny_policy, make_requests(60)), sample(tiny_policy, make_requests(60, stop=stop)), strict=True
    ):
        prefixes = [free.token_ids[:count] for count in range(1, len(free.token_ids) + 1)]
        reached = [prefix for prefix in prefixes if any(text in tiny_policy.decode(prefix) for text in stop)]
        assert held.token_ids == (reached[0] if reached else free.token_ids)
        assert held.finish_reason == ("stop" if reached else free.finish_reason)
        assert held.text == tiny_policy.decode(held.token_ids)
        stopped_rows += bool(reached)
    assert stopped_rows >= 3


def test_a_prompt_longer_than_the_context_aborts_alone(tiny_policy):
    # br-039. The context holds 128 tokens; the template adds 3 to the prompt.
    fine, long = make_requests(2)
    long = dataclasses.replace(long, prompt="a" * 125)
    answered, aborted = sample(tiny_policy, [fine, long])
    assert tokens_of([answered]) == tokens_of(sample(tiny_policy, [fine]))
    assert (aborted.finish_reason, aborted.token_ids, aborted.text) == ("abort", (), "")
    assert "128 tokens" in aborted.abort_reason
    assert len(aborted.prompt_token_ids) == 128


def test_a_response_that_would_leave_the_context_is_cut_by_length(tiny_policy):
    request = dataclasses.replace(make_requests(1)[0], prompt="a" * 122)  # 125 tokens with the template
    (generation,) = sample(tiny_policy, [request])
    assert len(generation.token_ids) == 3
    assert generation.finish_reason == "length"


# --- seeds --------------------------------------------------------------------------------------------------------


def test_a_response_does_not_depend_on_order_or_neighbours(tiny_policy):
    requests = make_requests(12)
    together = tokens_of(sample(tiny_policy, requests))
    assert tokens_of(sample(tiny_policy, requests[::-1])) == together[::-1]
    assert [tokens_of(sample(tiny_policy, [request]))[0] for request in requests] == together


def test_a_token_budget_changes_nothing_but_the_batches(tiny_policy):
    requests = make_requests(12)
    whole = tokens_of(sample(tiny_policy, requests))
    assert tokens_of(sample(tiny_policy, requests, max_batch_tokens=120)) == whole
    assert tokens_of(sample(tiny_policy, requests, max_batch_size=1)) == whole


def test_a_smaller_limit_gives_a_prefix(tiny_policy):
    long, short = sample(tiny_policy, make_requests(limit=24)), sample(tiny_policy, make_requests(limit=5))
    assert tokens_of(short) == [tokens[:5] for tokens in tokens_of(long)]


def test_members_of_one_set_draw_different_streams_and_a_second_call_does_not_rewind(tiny_policy):
    # br-026: equal prompts, different seeds.
    engine = TransformersEngine(tiny_policy)
    members = [dataclasses.replace(request, prompt=PROMPTS[0]) for request in make_requests(8)]
    later = [dataclasses.replace(member, seed=member.seed + 100) for member in members]
    responses = tokens_of(engine.generate(members, Sampling())) + tokens_of(engine.generate(later, Sampling()))
    assert len(set(responses)) == 16
    assert tokens_of(engine.generate(members, Sampling())) == responses[:8]


def test_global_random_state_is_neither_read_nor_moved(tiny_policy):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = tokens_of(sample(tiny_policy, make_requests()))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert tokens_of(sample(tiny_policy, make_requests())) == first


def test_first_tokens_follow_the_model_s_distribution(tiny_policy):
    num_draws = 4000
    requests = [
        GenerationRequest(request_id=str(seed), prompt=PROMPTS[1], max_new_tokens=1, seed=seed)
        for seed in range(num_draws)
    ]
    generations = sample(tiny_policy, requests)
    with torch.no_grad():
        ids = torch.tensor([generations[0].prompt_token_ids])
        expected = num_draws * tiny_policy.model(input_ids=ids).logits[0, -1].softmax(-1)
    observed = torch.bincount(torch.tensor([g.token_ids[0] for g in generations]), minlength=len(expected))
    common = expected >= 5  # where the chi-square approximation holds
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    # A chi-square variable exceeds its mean by 3.5 standard deviations less than once in 500; the seeds are fixed.
    assert common.sum() >= 10
    assert statistic < common.sum() + 3.5 * (2 * common.sum()) ** 0.5


# --- against transformers -----------------------------------------------------------------------------------------


def test_greedy_responses_equal_those_of_generate(tiny_policy):
    generations = sample(tiny_policy, make_requests(3), Sampling(temperature=0))
    for generation in generations:
        ids = torch.tensor([generation.prompt_token_ids])
        expected = tiny_policy.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=0
        )[0, ids.shape[1] :]
        assert generation.token_ids == tuple(expected.tolist())


def test_eager_attention_samples_the_same(tiny_checkpoint, tiny_policy):
    eager = Policy.load("eager", tiny_checkpoint, device="cpu", attention="eager")
    assert tokens_of(sample(eager, make_requests())) == tokens_of(sample(tiny_policy, make_requests()))


def test_bfloat16_logprobs_are_close_to_recomputed_ones(tiny_checkpoint):
    policy = Policy.load("half", tiny_checkpoint, device="cpu", dtype="bfloat16")
    generations = sample(policy, make_requests())
    difference = torch.cat([torch.tensor(g.logprobs) - recomputed_logprobs(policy, g) for g in generations])
    # bfloat16 has 8 bits: logits of about 8 are off by up to 1/32, and cache and batch change the order of sums.
    assert 0 < difference.abs().max() < 0.3


# --- work ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def forward_shapes(own_policy):
    """Shape of the token ids of every forward pass."""
    shapes = []

    def record(module, arguments, named):
        shapes.append(tuple(named["input_ids"].shape))

    handle = own_policy.model.register_forward_pre_hook(record, with_kwargs=True)
    yield shapes
    handle.remove()


def test_identical_prompts_are_computed_once(own_policy, forward_shapes):
    generations = sample(own_policy, make_requests(9))
    longest = max(len(generation.prompt_token_ids) for generation in generations)
    assert forward_shapes[0] == (3, longest)
    assert forward_shapes[1][1] == 1


def test_finished_rows_leave_the_batch(own_policy, forward_shapes):
    generations = sample(own_policy, make_requests(40))
    lengths = sorted(len(generation.token_ids) for generation in generations)
    assert lengths[0] < lengths[-1]
    for step, (rows, _) in enumerate(forward_shapes[1:], start=1):
        running = sum(length > step for length in lengths)
        assert running <= rows <= running / 0.9


def test_no_forward_pass_follows_the_last_token(own_policy, forward_shapes):
    (generation,) = sample(own_policy, make_requests(1))
    assert len(forward_shapes) == len(generation.token_ids)


# --- the policy ---------------------------------------------------------------------------------------------------


def test_an_update_is_seen_by_the_next_call_and_the_version_is_written(own_policy):
    engine = TransformersEngine(own_policy)
    before = engine.generate(make_requests(), Sampling())
    with torch.no_grad():
        own_policy.model.model.norm.weight.mul_(-1)
    own_policy.version += 1
    after = engine.generate(make_requests(), Sampling())
    assert tokens_of(after) != tokens_of(before)
    assert {generation.policy_version for generation in before} == {0}
    assert {generation.policy_version for generation in after} == {1}


def test_gradient_checkpointing_samples_the_same_and_stays_on(tiny_checkpoint, tiny_policy):
    policy = Policy.load("saving", tiny_checkpoint, device="cpu", gradient_checkpointing=True)
    assert tokens_of(sample(policy, make_requests())) == tokens_of(sample(tiny_policy, make_requests()))
    assert policy.model.training


def test_logits_that_are_not_numbers_are_an_engine_error(own_policy):
    with torch.no_grad():
        own_policy.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match=r"'own'.*not finite"):
        sample(own_policy, make_requests())
    assert own_policy.model.config._attn_implementation == "sdpa"


def test_a_failing_model_is_an_engine_error(own_policy, monkeypatch):
    def fail(*arguments, **named):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(own_policy.model, "forward", fail)
    with pytest.raises(EngineError, match="max_batch_tokens"):
        sample(own_policy, make_requests())


def test_no_requests_give_no_generations(tiny_policy):
    assert sample(tiny_policy, []) == []


@pytest.mark.parametrize("bounds", [{"max_batch_tokens": 0}, {"max_batch_size": 0}])
def test_bounds_below_one_are_refused(tiny_policy, bounds):
    with pytest.raises(ConfigError, match="at least 1"):
        TransformersEngine(tiny_policy, **bounds)


# --- other architectures ------------------------------------------------------------------------------------------


def small(config_name: str, vocab_size: int, **changes):
    """A small random model of another architecture."""
    import transformers

    common = {
        "vocab_size": vocab_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
    }
    config = getattr(transformers, config_name)(**common | changes)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("config_name", "changes"),
    [
        ("Qwen3Config", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "head_dim": 8}),
        ("LlamaConfig", {"num_key_value_heads": 4}),
        ("GPT2Config", {"bos_token_id": None, "eos_token_id": None}),
    ],
    ids=["sliding window", "a key-value head for each query head", "learned positions"],
)
def test_other_architectures_sample_what_they_recompute(tiny_policy, config_name, changes):
    model = small(config_name, len(tiny_policy.tokenizer), **changes)
    policy = Policy(policy_id="other", model=model, tokenizer=tiny_policy.tokenizer)
    for generation in sample(policy, make_requests()):
        expected = recomputed_logprobs(policy, generation)
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, rtol=0, atol=2e-5)
