from __future__ import annotations

import pytest
import torch

from srpo_train.engines.attention import grouped_decode, grouped_decode_attention


class Layer(torch.nn.Module):
    """What transformers' attention functions read of a layer."""

    num_key_value_groups = 3
    is_causal = True


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attend_by_head(query, key, value, mask):
    """softmax(q k / sqrt(D)) v, one head at a time; 6 query heads read 2 key-value heads, three each."""
    outputs = []
    for head in range(6):
        scores = query[:, head] @ key[:, head // 3].transpose(-1, -2) / 8**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, 0], float("-inf"))
        outputs.append(scores.softmax(-1) @ value[:, head // 3])
    return torch.stack(outputs, dim=2)


@pytest.mark.parametrize("is_padded", [True, False])
def test_one_token_attends_as_head_by_head(is_padded):
    query, key, value = random(2, 6, 1, 8, seed=0), random(2, 2, 5, 8, seed=1), random(2, 2, 5, 8, seed=2)
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])[:, None, None, :] if is_padded else None
    output, weights = grouped_decode(Layer(), query, key, value, mask, scaling=8**-0.5)
    torch.testing.assert_close(output, attend_by_head(query, key, value, mask), rtol=1e-12, atol=1e-12)
    assert weights is None


def test_one_token_reads_keys_and_values_without_repeating_them(monkeypatch):
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, value, **named):
        seen.append((query.shape[1:3], key.shape[1], value.shape[1]))
        return attend(query, key, value, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    query, key, value = random(2, 6, 1, 8, seed=0), random(2, 2, 5, 8, seed=1), random(2, 2, 5, 8, seed=2)
    grouped_decode(Layer(), query, key, value, torch.ones(2, 1, 1, 5, dtype=torch.bool))
    assert seen == [((2, 3), 2, 2)]


def test_several_tokens_attend_causally_as_in_transformers():
    query, key, value = random(2, 6, 5, 8, seed=0), random(2, 2, 5, 8, seed=1), random(2, 2, 5, 8, seed=2)
    output, _ = grouped_decode(Layer(), query, key, value, None, scaling=8**-0.5)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(output, attend_by_head(query, key, value, causal), rtol=1e-12, atol=1e-12)


def test_the_model_gets_its_own_attention_back_after_an_error(tiny_policy):
    with pytest.raises(KeyError), grouped_decode_attention(tiny_policy.model):
        assert tiny_policy.model.config._attn_implementation != "sdpa"
        raise KeyError
    assert tiny_policy.model.config._attn_implementation == "sdpa"
