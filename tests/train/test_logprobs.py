"""Token log-probabilities against the model's own full logits."""

from __future__ import annotations

import copy
import logging
import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from srpo_envs.errors import ConfigError
from srpo_train.batching import MemberRow, pad_rows
from srpo_train.policies import logprobs as logprobs_module
from srpo_train.policies.logprobs import HeadForm, ModelScorer, head_form, head_logprobs, token_logprobs

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.3,
}


def build(config_class, model_class, **changes):
    torch.manual_seed(0)
    return model_class(config_class(**(SHAPE | changes)))


def qwen(**changes):
    return build(Qwen3Config, Qwen3ForCausalLM, **changes)


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()


ARCHITECTURES = {
    "qwen3, tied": lambda: qwen(tie_word_embeddings=True),
    "qwen3, untied": lambda: qwen(tie_word_embeddings=False),
    "gemma2, soft-capped logits": lambda: build(Gemma2Config, Gemma2ForCausalLM, final_logit_softcapping=2.0),
    "cohere, multiplied logits": lambda: build(CohereConfig, CohereForCausalLM, logit_scale=0.25),
    "granite, divided logits": lambda: build(GraniteConfig, GraniteForCausalLM, logits_scaling=3.0),
    "phi, head with bias": lambda: build(PhiConfig, PhiForCausalLM).eval(),
    "gpt2": gpt2,
}


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(1)

    def draw(length):
        return torch.randint(2, 61, (length,), generator=generator).tolist()

    lengths = [(3, 5), (1, 7), (6, 0), (2, 1)]
    return [
        MemberRow(event_index=0, member_index=j, policy_id="p", prompt_ids=draw(p), token_ids=draw(r))
        for j, (p, r) in enumerate(lengths)
    ]


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 3 tokens by 8 words, so that every loop runs several times and ends in a short tile."""
    monkeypatch.setattr(logprobs_module, "_TILE", {"cpu": (3, 3 * 8 * 4)})


def full_logits_reference(model, rows, temperature):
    """One row at a time, without padding, from the full logits: [T] log-probs and entropies per row."""
    scored = []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
        distribution = (logits.float() / temperature).log_softmax(-1)
        chosen = distribution.gather(1, torch.tensor(list(row.token_ids), dtype=torch.int64)[:, None]).squeeze(1)
        scored.append((chosen, -(distribution.exp() * distribution).sum(-1)))
    return scored


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_equal_those_of_the_full_logits(name, temperature, rows, small_tiles):
    model = ARCHITECTURES[name]()
    assert head_form(model) is not None
    scores = token_logprobs(model, pad_rows(rows, pad_token_id=1), temperature=temperature, with_entropy=True)
    for index, (chosen, entropy) in enumerate(full_logits_reference(model, rows, temperature)):
        torch.testing.assert_close(scores.logprobs_MT[index, : len(chosen)], chosen, rtol=0, atol=1e-5)
        torch.testing.assert_close(scores.entropy_MT[index, : len(chosen)], entropy, rtol=0, atol=1e-5)
        assert not scores.logprobs_MT[index, len(chosen) :].any()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_equal_those_of_the_full_logits(name, rows, small_tiles):
    model = ARCHITECTURES[name]()
    expected = copy.deepcopy(model)
    padded = pad_rows(rows)
    weight = torch.linspace(-1, 1, padded.token_ids_MT.numel()).view(padded.token_ids_MT.shape)
    scores = token_logprobs(model, padded, temperature=0.7, with_entropy=True)
    ((scores.logprobs_MT + 0.5 * scores.entropy_MT) * weight).sum().backward()
    for index, (chosen, entropy) in enumerate(full_logits_reference(expected, rows, 0.7)):
        ((chosen + 0.5 * entropy) * weight[index, : len(chosen)]).sum().backward()
    for (path, actual), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            actual.grad, wanted.grad, rtol=1e-4, atol=1e-5, msg=lambda text, p=path: f"{p}: {text}"
        )


@pytest.mark.parametrize("form", [HeadForm(), HeadForm(scale=0.7), HeadForm(scale=1.3, softcap=1.5)])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_targets", [1, 3])
def test_head_gradcheck(form, with_entropy, has_bias, num_targets, small_tiles):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 3), (9, 3), (9,))
    )
    target = torch.tensor([[0, 8, 0], [8, 1, 2], [3, 4, 5], [7, 6, 0]])[:, :num_targets]

    def score(hidden, weight, bias):
        result = head_logprobs(hidden, weight, bias if has_bias else None, target, form, 0.8, None, with_entropy)
        return result if with_entropy else result[0]

    assert torch.autograd.gradcheck(score, (hidden, weight, bias) if has_bias else (hidden, weight, bias.detach()))


def test_head_log_probs_of_a_hand_made_case():
    # logits (0, ln 2, ln 5): sum of exponentials 8, so log-probs -ln 8, ln(2/8), ln(5/8);
    # entropy 1/8 ln 8 + 1/4 ln 4 + 5/8 ln 1.6 = 0.2599302 + 0.3465736 + 0.2937523 = 0.9002561
    logits = torch.tensor([1.0, 2.0, 5.0]).log()
    logprob, entropy = head_logprobs(
        torch.ones(3, 1), logits[:, None], None, torch.arange(3)[:, None], with_entropy=True
    )
    assert logprob[:, 0].tolist() == pytest.approx([-2.0794415, -1.3862944, -0.4700036])
    assert entropy.tolist() == pytest.approx([0.9002561] * 3)


# --- what top-k and top-p left ------------------------------------------------------------------------------------


def kept_rows(rows) -> list[MemberRow]:
    """The rows, each token drawn from itself and some others; the last row from the whole vocabulary."""
    generator = random.Random(3)
    kept = [
        tuple(
            tuple(sorted({token, *generator.sample(range(1, 60), generator.randint(0, 6))})) for token in row.token_ids
        )
        for row in rows
    ]
    return [replace(row, kept_token_ids=left) for row, left in zip(rows[:-1], kept[:-1], strict=True)] + [rows[-1]]


def reference_within_kept(model, rows, temperature):
    """The obvious way: logits outside the kept tokens are minus infinity."""
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].float() / temperature
        if row.kept_token_ids is not None:
            outside = torch.full_like(logits, -torch.inf)
            for place, left in enumerate(row.kept_token_ids):
                outside[place, list(left)] = 0.0
            logits = logits + outside
        target = torch.tensor(list(row.token_ids), dtype=torch.int64)[:, None]
        yield logits.log_softmax(-1).gather(1, target).squeeze(1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_within_what_was_kept_equal_those_of_masked_logits_with_their_gradients(name, rows, small_tiles):
    model = ARCHITECTURES[name]()
    expected = copy.deepcopy(model)
    kept = kept_rows(rows)
    padded = pad_rows(kept)
    weight = torch.linspace(-1, 1, padded.token_ids_MT.numel()).view(padded.token_ids_MT.shape)
    scores = token_logprobs(model, padded, temperature=0.7).logprobs_MT
    (scores * weight).sum().backward()
    for index, wanted in enumerate(reference_within_kept(expected, kept, 0.7)):
        torch.testing.assert_close(scores[index, : len(wanted)], wanted, rtol=0, atol=1e-5)
        (wanted * weight[index, : len(wanted)]).sum().backward()
    for (path, actual), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            actual.grad, wanted.grad, rtol=1e-4, atol=1e-5, msg=lambda text, p=path: f"{p}: {text}"
        )


def test_a_token_that_was_alone_has_log_prob_zero_and_no_gradient():
    model = qwen()
    row = MemberRow(
        event_index=0, member_index=0, policy_id="p", prompt_ids=[5, 6], token_ids=[7, 8], kept_token_ids=[(7,), (8,)]
    )
    scores = token_logprobs(model, pad_rows([row])).logprobs_MT
    scores.sum().backward()
    assert scores.abs().max() < 1e-6
    assert all(parameter.grad.abs().max() < 1e-6 for parameter in model.parameters())


def test_a_model_of_unknown_head_is_scored_within_what_was_kept_too(rows, monkeypatch):
    model, kept = qwen(), kept_rows(rows)
    monkeypatch.setattr(logprobs_module, "head_form", lambda model: None)
    scores = token_logprobs(model, pad_rows(kept)).logprobs_MT
    for index, wanted in enumerate(reference_within_kept(model, kept, 1.0)):
        torch.testing.assert_close(scores[index, : len(wanted)], wanted, rtol=0, atol=1e-5)


def test_large_logits_do_not_overflow(small_tiles):
    logits = torch.cat([torch.tensor([500.0, 498.0]), torch.full((20,), -500.0)])
    target = torch.tensor([[0], [21]])
    logprob, entropy = head_logprobs(torch.ones(2, 1), logits[:, None], None, target, with_entropy=True)
    # ln(1 + e^-2) = 0.1269280; entropy = 0.1269280 + 2 * e^-2 / (1 + e^-2) = 0.1269280 + 2 * 0.1192029
    assert logprob[:, 0].tolist() == pytest.approx([-0.1269280, -1000.1269], abs=1e-4)  # float32 near 500 resolves 3e-5
    assert entropy.tolist() == pytest.approx([0.3653338] * 2, abs=1e-4)


def test_a_pad_id_that_equals_eos_changes_no_score(rows):
    """br-009, down to the model: the pad id is neither attended to nor scored."""
    model = qwen()
    scores = [token_logprobs(model, pad_rows(rows, pad_token_id=pad)).logprobs_MT for pad in (0, 1, 60)]
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])


def test_gradient_checkpointing_changes_nothing(rows):
    plain, checkpointed = qwen().train(), qwen().train()
    checkpointed.gradient_checkpointing_enable()
    for model in (plain, checkpointed):
        token_logprobs(model, pad_rows(rows)).logprobs_MT.sum().backward()
    for actual, wanted in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, wanted.grad)


def test_bfloat16_models_are_scored_in_float32(rows, small_tiles):
    model = qwen().bfloat16()
    scores = token_logprobs(model, pad_rows(rows))
    assert scores.logprobs_MT.dtype == torch.float32
    for index, (chosen, _) in enumerate(full_logits_reference(model, rows, 1.0)):
        torch.testing.assert_close(scores.logprobs_MT[index, : len(chosen)], chosen, rtol=0, atol=0.1)
    scores.logprobs_MT.sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_frozen_head_gets_no_gradient_and_the_rest_is_the_same(rows):
    free, frozen = qwen(tie_word_embeddings=False), qwen(tie_word_embeddings=False)
    frozen.lm_head.weight.requires_grad_(False)
    for model in (free, frozen):
        token_logprobs(model, pad_rows(rows)).logprobs_MT.sum().backward()
    assert frozen.lm_head.weight.grad is None
    torch.testing.assert_close(frozen.model.embed_tokens.weight.grad, free.model.embed_tokens.weight.grad)


def test_only_one_tile_of_logits_is_ever_held(rows, monkeypatch):
    largest = 0
    original = torch.Tensor.new_empty

    def watch(self, size, **options):
        nonlocal largest
        largest = max(largest, size if isinstance(size, int) else torch.Size(size).numel())
        return original(self, size, **options)

    monkeypatch.setattr(logprobs_module, "_TILE", {"cpu": (3, 3 * 8 * 4)})
    monkeypatch.setattr(torch.Tensor, "new_empty", watch)
    token_logprobs(qwen(), pad_rows(rows)).logprobs_MT.sum().backward()
    assert largest == 3 * 8


class _OddHead(Qwen3ForCausalLM):
    """A model with a step after its head that no configuration field tells of."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output


def test_an_unknown_step_after_the_head_is_noticed_and_scored_from_full_logits(rows, caplog):
    model = build(Qwen3Config, _OddHead)
    with caplog.at_level(logging.WARNING, logger="srpo_train.policies.logprobs"):
        scores = token_logprobs(model, pad_rows(rows), with_entropy=True)
        token_logprobs(model, pad_rows(rows))
    assert [record.getMessage() for record in caplog.records] == [
        "_OddHead: unknown output head, log-probs use its full logits and more memory"
    ]
    for index, (chosen, entropy) in enumerate(full_logits_reference(model, rows, 1.0)):
        torch.testing.assert_close(scores.logprobs_MT[index, : len(chosen)], chosen, rtol=0, atol=1e-5)
        torch.testing.assert_close(scores.entropy_MT[index, : len(chosen)], entropy, rtol=0, atol=1e-5)


def test_a_head_that_is_more_than_a_linear_layer_is_not_taken_for_one():
    class AdaptedLinear(nn.Linear):
        pass

    model = qwen(tie_word_embeddings=False)
    model.lm_head = AdaptedLinear(16, 61, bias=False)
    assert head_form(model) is None


def test_looking_at_the_head_leaves_the_random_state_alone():
    state = torch.random.get_rng_state()
    head_form(GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=8, n_embd=8, n_layer=1, n_head=1)).train())
    torch.random.set_rng_state(state)
    model = qwen(attention_dropout=0.5).train()
    state = torch.random.get_rng_state()
    assert head_form(model) == HeadForm()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_scorer_is_the_model_with_its_settings(rows):
    model = qwen()
    scores = ModelScorer(model=model, temperature=0.7, with_entropy=True, pad_token_id=1, chunk_size=2)(rows)
    expected = token_logprobs(model, pad_rows(rows), temperature=0.7, with_entropy=True)
    torch.testing.assert_close(scores.logprobs_MT, expected.logprobs_MT)
    torch.testing.assert_close(scores.entropy_MT, expected.entropy_MT)


def test_settings_that_mean_nothing_are_refused(rows):
    for settings in ({"temperature": 0.0}, {"chunk_size": 0}):
        with pytest.raises(ConfigError, match="must be positive"):
            token_logprobs(qwen(), pad_rows(rows), **settings)
