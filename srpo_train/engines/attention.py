"""Attention for one new token per row, without copying the shared keys and values.

With grouped-query attention several query heads read one key-value head. Where there is a padding mask, transformers
first repeats the cached keys and values for every query head, a copy of the whole cache in every layer at every token.
For a single query token the heads of a group can instead stand in the place of query positions: the same products, no
copy. On the embedded policy's shape (2 query heads per key-value head, 256 rows) this doubles the decoding rate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from srpo_train.policies import packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "srpo_grouped_decode"
"""Name under which transformers knows this attention."""


@contextlib.contextmanager
def grouped_decode_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model that uses ``sdpa`` decode with grouped heads inside the body; other models stay as they are."""
    config = model.config
    before = config._attn_implementation
    if before not in ("sdpa", packing.IMPLEMENTATION) or config.sub_configs:
        yield
        return
    _register()
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def grouped_decode(
    module: torch.nn.Module,
    query_BHQD: Tensor,
    key_BGLD: Tensor,
    value_BGLD: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' ``sdpa`` does; a single query token takes the path without repeated keys and values.

    Args:
        module: The attention layer.
        query_BHQD: [B, H, Q, D] queries of H heads; head h reads key-value head h // (H / G).
        key_BGLD: [B, G, L, D] cached keys.
        value_BGLD: [B, G, L, D] cached values.
        attention_mask: [B, 1, Q, L] bool or additive, or None.
        dropout: Passed on.
        scaling: Factor on the products; None is D ** -0.5.
        kwargs: Passed on.

    Returns:
        [B, Q, H, D] and None, as transformers expects.
    """
    batch, heads, num_queries, head_dim = query_BHQD.shape
    groups = key_BGLD.shape[1]
    if num_queries != 1 or heads == groups:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query_BHQD, key_BGLD, value_BGLD, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    folded_BGRD = query_BHQD.reshape(batch, groups, heads // groups, head_dim)
    output_BGRD = torch.nn.functional.scaled_dot_product_attention(
        folded_BGRD, key_BGLD, value_BGLD, attn_mask=attention_mask, scale=scaling
    )
    return output_BGRD.reshape(batch, 1, heads, head_dim), None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, grouped_decode)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
