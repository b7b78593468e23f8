"""Rows end to end in one line, without padding: each token takes part in the model once, and sees its own row alone.

Positions begin at 0 in every row, and attention is kept within the row. How depends on the model's attention:

- ``flash_attention_2`` and ``_3`` find the rows by their positions and have kernels for rows of any lengths.
- ``sdpa``, the choice where flash attention is not installed, has none. A mask of blocks would compute the square of
  the whole line. Here the queries of rows of much the same length are put side by side for the attention alone, which
  then needs no mask; every other layer, most of the work, sees the line.
- Any other gets a mask of blocks from transformers: right, and slow for long lines.

Models that carry something from token to token beside attention, or that find positions in another way, would let rows
see each other. So a model packs only after two rows together have given what each gives alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from srpo_envs.errors import ConfigError
from srpo_train.batching import MemberRow, PackedRows, pack_rows

logger = logging.getLogger(__name__)

Packing = Literal["auto"] | bool
"""Whether rows are packed; see ``optim.packing``."""

IMPLEMENTATION = "srpo_packed"
"""Name under which transformers knows this attention; with anything but a packed line it is ``sdpa``."""

_SHORTEST = 0.8
"""Rows share a batch of attention while each has at least this share of its longest row's tokens."""

_PROBES = ([0, 1, 1], [1, 0], [1, 1])
"""Rows that are compared packed and alone: unequal lengths, and equal ones."""


def packed_inputs(model: nn.Module, rows: PackedRows) -> dict[str, Any]:
    """Return what a forward pass over a packed line is given; the model must be one that `packs`."""
    inputs: dict[str, Any] = {"input_ids": rows.input_ids_1S, "position_ids": rows.position_ids_1S, "use_cache": False}
    if _attention_of(model) == IMPLEMENTATION:
        # A mask of four axes goes through to attention as it is. Its numbers are where the rows end, on the CPU, where
        # they are read; layers that are computed again in the backward pass get it again.
        inputs["attention_mask"] = rows.ends[None, None, None, :]
    return inputs


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' ``sdpa`` does, within each row of a packed line.

    Args:
        module: The attention layer.
        query: [1, H, S, D] queries of a packed line, or [B, H, Q, D] of anything else.
        key: [1, G, S, D] keys, or [B, G, L, D].
        value: [1, G, S, D] values, or [B, G, L, D].
        attention_mask: [1, 1, 1, M] int64, where each row of a packed line ends, or whatever ``sdpa`` takes.
        sliding_window: Most keys a query looks at.
        kwargs: Passed on.

    Returns:
        [1, S, H, D], or [B, Q, H, D], and None, as transformers expects.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    sdpa: Any = sdpa_attention_forward
    attend = functools.partial(sdpa, module, **kwargs)
    if attention_mask is None or attention_mask.dtype != torch.int64:
        output: tuple[Tensor, None] = attend(query, key, value, attention_mask)
        return output
    outputs = []
    for first, lengths in _alike(attention_mask.flatten().tolist()):
        place_BL, real_N = _places(first, lengths, query.device)
        parts = [_rows_of(tensor, first, lengths, place_BL) for tensor in (query, key, value)]
        output_BLHD, _ = attend(*parts, _window_mask(max(lengths), sliding_window, query.device))
        output_NHD = output_BLHD.flatten(0, 1)
        outputs.append(output_NHD if real_N is None else output_NHD.index_select(0, real_N))
    return torch.cat(outputs)[None], None


def resolve_packing(policy_id: str, model: nn.Module, packing: Packing) -> bool:
    """Return whether a policy's rows are packed, and prepare its model for it.

    Args:
        policy_id: Named in errors.
        model: A transformers causal language model or a PEFT model around one.
        packing: What is wanted; ``auto`` packs where attention does it well.

    Raises:
        ConfigError: packing is asked for, and rows of a line would see each other.
    """
    if packing == "auto":
        return packs(model) and _attention_of(model) in (IMPLEMENTATION, "flash_attention_2", "flash_attention_3")
    if packing and not packs(model):
        raise ConfigError(
            f"policy {policy_id!r}: rows of {type(model).__name__} cannot be packed, since they would see each other "
            '(a recurrent state, positions that cannot be given); set optim.packing = "auto" or false'
        )
    return packing


_PACKS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def packs(model: nn.Module) -> bool:
    """Prepare a model for packed lines, once, and return whether it computes the same in them."""
    if model not in _PACKS:
        _PACKS[model] = _prepare(model)
    return _PACKS[model]


def _prepare(model: nn.Module) -> bool:
    causal = _causal(model)
    is_known = set(getattr(causal.config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}
    if not is_known or getattr(causal, "base_model", causal) is causal:
        return False
    before = causal.config._attn_implementation
    if before == "sdpa" and causal._can_set_attn_implementation():
        _register()
        causal.set_attn_implementation(IMPLEMENTATION)
    if _computes_the_same(causal):
        return True
    if _attention_of(model) != before:
        causal.set_attn_implementation(before)
    return False


@torch.no_grad()
def _computes_the_same(causal: Any) -> bool:
    """Compare packed rows with each alone."""
    rows = [MemberRow(event_index=0, member_index=0, policy_id="", prompt_ids=ids, token_ids=()) for ids in _PROBES]
    device = next(causal.parameters()).device
    try:
        with torch.random.fork_rng(devices=[]):
            packed = causal.base_model(**packed_inputs(causal, pack_rows(rows, device))).last_hidden_state[0]
            alone = [
                causal.base_model(input_ids=torch.tensor([ids], device=device), use_cache=False) for ids in _PROBES
            ]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        logger.info("%s: a packed line cannot be computed (%s)", type(causal).__name__, error)
        return False
    expected = torch.cat([output.last_hidden_state[0] for output in alone])
    tolerance = 1e-3 if packed.dtype in (torch.float32, torch.float64) else 3e-2
    return bool((packed - expected).abs().max() <= tolerance * expected.abs().max())


def _alike(ends: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Cut the rows of a line into runs of much the same length: where each begins, and the lengths of its rows."""
    first, start, lengths = 0, 0, list[int]()
    for end in ends:
        length = end - start
        if lengths and not _SHORTEST * max(*lengths, length) <= min(*lengths, length):
            yield first, lengths
            first, lengths = start, []
        lengths.append(length)
        start = end
    if lengths:
        yield first, lengths


def _places(first: int, lengths: Sequence[int], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return [B, L] where in the line each row's tokens lie, and [N] which of B * L are real; None if all are."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None, None
    length_B = torch.tensor(lengths)
    start_B = first + length_B.cumsum(0) - length_B
    is_real_BL = torch.arange(longest) < length_B[:, None]
    # What lies on the right of a row is not looked at by its tokens, so any token will do for it.
    place_BL = torch.where(is_real_BL, start_B[:, None] + torch.arange(longest), start_B[:, None])
    real_N = is_real_BL.flatten().nonzero().squeeze(1)
    return place_BL.to(device, non_blocking=True), real_N.to(device, non_blocking=True)


def _rows_of(line_1HSD: Tensor, first: int, lengths: Sequence[int], place_BL: Tensor | None) -> Tensor:
    """Return [B, H, L, D]: a run of rows of the line, side by side."""
    line_SHD = line_1HSD[0].transpose(0, 1)  # as the layer made it, each token's numbers side by side
    if place_BL is None:
        rows_BLHD: Tensor = line_SHD[first : first + sum(lengths)].unflatten(0, (len(lengths), lengths[0]))
    else:
        rows_BLHD = line_SHD.index_select(0, place_BL.flatten()).unflatten(0, place_BL.shape)
    return rows_BLHD.transpose(1, 2)


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return [1, 1, L, L] which keys each query looks at; None where those are all before it."""
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    behind = place[:, None] - place
    return ((behind >= 0) & (behind < window))[None, None]


def _causal(model: nn.Module) -> Any:
    wrapper: Any = model
    return wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else wrapper


def _attention_of(model: nn.Module) -> str | None:
    attention: str | None = _causal(model).config._attn_implementation
    return attention


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
