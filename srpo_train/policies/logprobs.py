"""Log-probabilities of sampled tokens without the batch's full-vocabulary logits.

The decoder's hidden states are taken at response positions only and go through the output head in tiles of some tokens
times a part of the vocabulary. A tile's logits live in one buffer that the next tile reuses, in the forward and again
in the backward pass, so memory is one tile, whatever the batch and the vocabulary.

Letters: M rows, T padded response tokens, N response tokens of all rows in one line, H hidden size, V vocabulary,
C tokens and W words of one tile,
Y tokens whose log-probabilities are wanted at one position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from srpo_envs.errors import ConfigError
from srpo_train.batching import MemberRow, PackedRows, PaddedRows, pack_rows, pad_rows
from srpo_train.policies.packing import packed_inputs
from srpo_train.throughput.flops import ModelFlops
from srpo_train.throughput.recorder import RECORDER, Work

logger = logging.getLogger(__name__)

# Tokens and float32 bytes of one tile. On a CPU a tile stays near the caches; a GPU needs large ones to be busy. Each
# tile reads its part of the head and adds to its gradient once, so few tokens per tile would be slow on both.
_TILE = {"cpu": (1024, 8 << 20), "cuda": (4096, 512 << 20)}


def tile_bytes(device_type: str) -> int:
    """Return the float32 bytes of one tile of logits on a kind of device, such as ``cuda``."""
    return _TILE.get(device_type, _TILE["cpu"])[1]


class TokenLogprobs(NamedTuple):
    """What scoring a batch of rows gives."""

    logprobs_MT: Tensor
    """[M, T] float32 (float64 for a float64 model), 0 on padding."""
    entropy_MT: Tensor | None
    """[M, T] entropy in nats of each response token's distribution, 0 on padding; None when not asked for."""


@dataclass(frozen=True)
class HeadForm:
    """How a model turns hidden states into logits: ``softcap * tanh(scale * linear(h) / softcap)``.

    Example:
        >>> HeadForm(scale=0.0625)
        HeadForm(scale=0.0625, softcap=None)
    """

    scale: float = 1.0
    """Factor on the linear output."""
    softcap: float | None = None
    """Bound of the logits, None for none."""


@dataclass(frozen=True, kw_only=True)
class ModelScorer:
    """A policy as a function from member rows to their token log-probabilities.

    Example:
        >>> scorer = ModelScorer(model=model, temperature=1.0)
        >>> scorer(rows).logprobs_MT.shape
    """

    model: nn.Module
    """A transformers causal language model, or a PEFT model around one."""
    temperature: float = 1.0
    """Divides the logits, as when sampling."""
    with_entropy: bool = False
    """Also compute entropies, differentiable like the log-probabilities."""
    pad_token_id: int = 0
    """Fills padding; any id."""
    chunk_size: int | None = None
    """Response tokens per tile; None picks by device."""
    active: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a model that several policies share compute as the one that is scored."""
    score: Callable[..., TokenLogprobs] | None = None
    """What takes the place of `token_logprobs`, for a model that does not compute by itself."""
    device: torch.device | None = None
    """Where rows go; None takes the place of the parameters."""
    packing: bool = False
    """Put rows end to end rather than pad them; the model must be one that `packing.packs`."""
    flops: ModelFlops | None = None
    """What the model makes of a token, to count the operations of every pass; None counts none."""

    def __call__(self, rows: Sequence[MemberRow]) -> TokenLogprobs:
        """Pad or pack the rows and score them."""
        device = self.device or next(self.model.parameters()).device
        tensors = pack_rows(rows, device) if self.packing else pad_rows(rows, self.pad_token_id, device)
        self._count(rows)
        with self.active():
            return (self.score or token_logprobs)(
                self.model,
                tensors,
                temperature=self.temperature,
                chunk_size=self.chunk_size,
                with_entropy=self.with_entropy,
            )

    def _count(self, rows: Sequence[MemberRow]) -> None:
        """Add the pass to what the process has done; where gradients are wanted, a backward pass follows."""
        lengths, num_scored = [row.num_tokens for row in rows], sum(len(row.token_ids) for row in rows)
        num_slots = sum(lengths) if self.packing else len(lengths) * max(lengths)
        work = Work(num_tokens=sum(lengths), num_slots=num_slots)
        is_training = torch.is_grad_enabled()
        if self.flops:
            count = self.flops.training if is_training else self.flops.forward
            work.model_flops, work.hardware_flops = count(lengths, num_scored)
        RECORDER.count("backward" if is_training else "score", work)


def token_logprobs(
    model: nn.Module,
    rows: PaddedRows | PackedRows,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Log-probability of every response token given what precedes it in its row.

    Equal to gathering from ``log_softmax(logits.float() / temperature)`` of the whole model, with gradients to match;
    where the rows say what top-k and top-p had left, from the log-softmax over that. Entropies are those of the whole
    distribution.
    A model whose head is not a plain linear layer, or that changes its logits in a way not known here, is scored from
    its full logits instead; a warning is logged once.

    Args:
        model: a transformers causal language model or a PEFT model around one, in any floating type.
        rows: right-padded or packed rows on the model's device.
        temperature: divides the logits; positive.
        chunk_size: response tokens per tile; None picks by device.
        with_entropy: also return entropies.

    Returns:
        Log-probabilities for all response tokens, sampled or not (the token mask is applied by the objective).

    Raises:
        ConfigError: the temperature or the chunk size is not positive.
    """
    if not temperature > 0 or (chunk_size is not None and chunk_size < 1):
        raise ConfigError(f"log-probs: temperature and chunk_size must be positive, got {temperature}, {chunk_size}")
    row_N, token_N = rows.is_response_MT.nonzero(as_tuple=True)
    place_N = rows.places(row_N, rows.prompt_length_M[row_N] - 1 + token_N)
    target_NY = rows.token_ids_MT[row_N, token_N, None]
    if rows.kept_NY is not None:
        target_NY = torch.cat([target_NY, rows.kept_NY.clamp(min=0)], dim=1)
    inputs = _inputs(model, rows)
    form = head_form(model)
    if form is None:
        logprob_NY, entropy_N = _score_logits(model(**inputs).logits[place_N], target_NY, temperature, with_entropy)
    else:
        causal, head = _unwrap(model)
        hidden_NH = causal.base_model(**inputs).last_hidden_state[place_N]
        logprob_NY, entropy_N = head_logprobs(
            hidden_NH, head.weight, head.bias, target_NY, form, temperature, chunk_size, with_entropy
        )
    logprob_N = logprob_NY[:, 0]
    if rows.kept_NY is not None:
        logprob_N = logprob_N - _log_mass(logprob_NY[:, 1:], rows.kept_NY)
    shape = rows.token_ids_MT.shape
    blank_MT = logprob_N.new_zeros(shape)
    logprobs_MT = blank_MT.index_put((row_N, token_N), logprob_N)
    return TokenLogprobs(logprobs_MT, blank_MT.index_put((row_N, token_N), entropy_N) if with_entropy else None)


def _inputs(model: nn.Module, rows: PaddedRows | PackedRows) -> dict[str, Any]:
    """What the model is given for its forward pass."""
    if isinstance(rows, PackedRows):
        return packed_inputs(model, rows)
    # No attention mask: padding is on the right, where a causal model's real tokens do not look, and without a mask
    # attention takes its faster form. What the model computes at padding is never read.
    return {"input_ids": rows.input_ids_MS, "use_cache": False}


def _log_mass(logprob_NY: Tensor, kept_NY: Tensor) -> Tensor:
    """Log-probability of being among the kept tokens; 0 where none are named, which stands for all."""
    is_named_NY = kept_NY >= 0
    absent_NY = torch.full_like(logprob_NY, -torch.inf)
    absent_NY[:, 0] = 0.0  # read only where not even the first is named
    return torch.where(is_named_NY, logprob_NY, absent_NY).logsumexp(dim=1)


def head_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    target_NY: Tensor,
    form: HeadForm | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of targets, and entropies, under a linear head; only one tile's logits exist at a time.

    `target_NY` holds the [N, Y] tokens asked for at each position.

    Differentiable once in ``hidden_NH``, ``weight_VH`` and ``bias_V``; backward forms each tile's logits anew.

    Returns:
        [N, Y] log-probabilities and [N] entropies (zeros unless asked for), at least float32.
    """
    tokens, tile_bytes = _TILE.get(hidden_NH.device.type, _TILE["cpu"])
    tokens = min(chunk_size or tokens, max(len(hidden_NH), 1))
    head = _Head(form or HeadForm(), temperature, with_entropy, tokens, max(1, tile_bytes // (4 * tokens)))
    scored: tuple[Tensor, Tensor] = _TiledHead.apply(hidden_NH, weight_VH, bias_V, target_NY, head)  # type: ignore[no-untyped-call]
    return scored


# --- which head a model has ---------------------------------------------------------------------------------------

_FORMS: WeakKeyDictionary[nn.Module, HeadForm | None] = WeakKeyDictionary()


def head_form(model: nn.Module) -> HeadForm | None:
    """Find how a model makes logits of hidden states; None when that is not a form known here.

    The form is read from the configuration, then checked once per model against the model's own logits on two tokens,
    so that an architecture with an unknown extra step is noticed rather than scored wrongly.
    """
    if model not in _FORMS:
        _FORMS[model] = _verified_form(model)
        if _FORMS[model] is None:
            logger.warning(
                "%s: unknown output head, log-probs use its full logits and more memory", type(model).__name__
            )
    return _FORMS[model]


def _verified_form(model: nn.Module) -> HeadForm | None:
    causal, head = _unwrap(model)
    # An adapter on the head has a weight too, but its output is more than weight times hidden state.
    if type(head) is not nn.Linear or getattr(causal, "base_model", causal) is causal:
        return None
    config = causal.config.get_text_config()
    divisor = getattr(config, "logits_scaling", None) or 1.0
    factor = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
    form = HeadForm(scale=factor / divisor, softcap=getattr(config, "final_logit_softcapping", None))
    return form if _reproduces(form, model, causal, head) else None


@torch.no_grad()
def _reproduces(form: HeadForm, model: nn.Module, causal: Any, head: Any) -> bool:
    """Compare a form with one forward pass; one pass, so that dropout is the same on both sides."""
    seen: list[Tensor] = []
    hook = causal.base_model.register_forward_hook(lambda module, args, output: seen.append(output.last_hidden_state))
    try:
        with torch.random.fork_rng():
            logits = model(input_ids=torch.tensor([[0, 1]], device=head.weight.device), use_cache=False).logits
    except AttributeError:  # the base model returns no last_hidden_state
        return False
    finally:
        hook.remove()
    if not seen:  # the model goes past its base model's own forward pass
        return False
    expected = _finish_logits(head(seen[0]).float(), form, 1.0)
    tolerance = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    return bool((expected - logits.float()).abs().max() <= tolerance * logits.abs().max())


def _unwrap(model: nn.Module) -> tuple[Any, Any]:
    """Return the causal model inside any PEFT wrapper (adapters stay active, they are injected), and its head."""
    wrapper: Any = model
    causal = wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else wrapper
    return causal, causal.get_output_embeddings()


def _score_logits(
    logits_NV: Tensor, target_NY: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Score from full logits, for heads of unknown form."""
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    logprob_NV = (logits_NV.to(dtype) / temperature).log_softmax(dim=-1)
    entropy_N = -(logprob_NV.exp() * logprob_NV).sum(dim=1) if with_entropy else logprob_NV.new_zeros(len(logprob_NV))
    return logprob_NV.gather(1, target_NY), entropy_N


# --- the tiled head -----------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """What the tiled head is told besides tensors."""

    form: HeadForm
    temperature: float
    with_entropy: bool
    tile_tokens: int
    tile_words: int


class _Tile(NamedTuple):
    """Finished or raw logits of some tokens over a part of the vocabulary."""

    tokens: slice
    words: slice
    logits_CW: Tensor

    def locate(self, target_NY: Tensor) -> tuple[Tensor, Tensor]:
        """Return [C, Y] columns of each token's targets, clamped into the tile, and [C, Y] whether they lie there."""
        column_CY = target_NY[self.tokens] - self.words.start
        is_here_CY = (column_CY >= 0) & (column_CY < self.logits_CW.shape[1])
        return column_CY.clamp(0, self.logits_CW.shape[1] - 1), is_here_CY


class _TiledHead(torch.autograd.Function):
    """Log-softmax of a linear head at given targets, tile by tile, with the logits formed again in backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, target_NY: Tensor, head: _Head
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
        target_logit_NY = hidden_NH.new_zeros(target_NY.shape, dtype=dtype)
        mean_logit_N = hidden_NH.new_zeros(len(hidden_NH), dtype=dtype)
        normalizer_N = torch.full_like(mean_logit_N, -torch.inf)
        for tile in _tiles(hidden_NH, weight_VH, bias_V, head):
            _finish_logits(tile.logits_CW, head.form, head.temperature)
            column_CY, is_here_CY = tile.locate(target_NY)
            found_CY = tile.logits_CW.gather(1, column_CY)
            target_logit_NY[tile.tokens] = torch.where(is_here_CY, found_CY, target_logit_NY[tile.tokens])
            normalizer_C, mean_C = _summarize(tile.logits_CW, head.with_entropy)
            total_C = torch.logaddexp(normalizer_N[tile.tokens], normalizer_C)
            mean_logit_N[tile.tokens] += (mean_C - mean_logit_N[tile.tokens]) * (normalizer_C - total_C).exp()
            normalizer_N[tile.tokens] = total_C
        entropy_N = normalizer_N - mean_logit_N if head.with_entropy else torch.zeros_like(normalizer_N)
        ctx.head = head
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_NY, normalizer_N, entropy_N)
        return target_logit_NY - normalizer_N[:, None], entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprob_NY: Tensor, grad_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_NY, normalizer_N, entropy_N = ctx.saved_tensors
        # Sums over many tiles need float32, whatever the weights are stored in.
        inputs = (hidden_NH, weight_VH, bias_V)
        sum_NH, sum_VH, sum_V = (
            torch.zeros_like(tensor, dtype=normalizer_N.dtype) if is_wanted else None
            for tensor, is_wanted in zip(inputs, ctx.needs_input_grad[:3], strict=True)
        )
        for tile in _tiles(hidden_NH, weight_VH, bias_V, ctx.head):
            grad_CW = _logit_gradient(
                tile, target_NY, normalizer_N, entropy_N, grad_logprob_NY, grad_entropy_N, ctx.head
            )
            if sum_V is not None:
                sum_V[tile.words] += grad_CW.sum(dim=0)
            grad_CW = grad_CW.to(weight_VH.dtype)
            if sum_NH is not None:
                _add_product(sum_NH[tile.tokens], grad_CW, weight_VH[tile.words])
            if sum_VH is not None:
                _add_product(sum_VH[tile.words], grad_CW.t(), hidden_NH[tile.tokens])
        sums = zip((sum_NH, sum_VH, sum_V), inputs, strict=True)
        return *(None if total is None else total.to(tensor.dtype) for total, tensor in sums), None, None


def _tiles(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, head: _Head) -> Iterator[_Tile]:
    """Yield each tile's raw logits, at least float32, in one buffer that the next tile overwrites.

    The product is taken in the weights' own type, as the model takes it.
    """
    num_tokens, num_words = len(hidden_NH), len(weight_VH)
    dtype = torch.promote_types(weight_VH.dtype, torch.float32)
    buffer = weight_VH.new_empty(min(head.tile_tokens, num_tokens) * min(head.tile_words, num_words), dtype=dtype)
    for start in range(0, num_tokens, head.tile_tokens):
        tokens = slice(start, min(start + head.tile_tokens, num_tokens))
        for first in range(0, num_words, head.tile_words):
            words = slice(first, min(first + head.tile_words, num_words))
            shape = (tokens.stop - start, words.stop - first)
            logits_CW = buffer[: shape[0] * shape[1]].view(shape)
            if dtype == weight_VH.dtype and bias_V is None:
                torch.mm(hidden_NH[tokens], weight_VH[words].t(), out=logits_CW)
            else:
                bias_W = None if bias_V is None else bias_V[words]
                logits_CW.copy_(nn.functional.linear(hidden_NH[tokens], weight_VH[words], bias_W))
            yield _Tile(tokens, words, logits_CW)


def _finish_logits(logits: Tensor, form: HeadForm, temperature: float) -> Tensor:
    """Apply scale, soft cap and temperature in place."""
    if form.softcap is not None:
        return logits.mul_(form.scale / form.softcap).tanh_().mul_(form.softcap / temperature)
    factor = form.scale / temperature
    return logits if factor == 1.0 else logits.mul_(factor)


def _summarize(logits_CW: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp and, if asked for, softmax-weighted mean of each line's logits; overwrites the logits."""
    largest_C = logits_CW.amax(dim=1)
    shifted_CW = logits_CW.sub_(largest_C[:, None])
    if not with_entropy:
        normalizer_C = shifted_CW.exp_().sum(dim=1).log_().add_(largest_C)
        return normalizer_C, torch.zeros_like(normalizer_C)
    exponential_CW = shifted_CW.exp()
    sum_C = exponential_CW.sum(dim=1)
    mean_C = exponential_CW.mul_(shifted_CW).sum(dim=1) / sum_C
    return sum_C.log() + largest_C, mean_C + largest_C


def _logit_gradient(
    tile: _Tile,
    target_NY: Tensor,
    normalizer_N: Tensor,
    entropy_N: Tensor,
    grad_logprob_NY: Tensor,
    grad_entropy_N: Tensor,
    head: _Head,
) -> Tensor:
    """Gradient with respect to the tile's raw logits, written over them.

    With z the finished logits, p their softmax and H its entropy: ``d log p_y / d z = 1_y - p`` and
    ``d H / d z = -p (log p + H)``; scale, soft cap and temperature follow by the chain rule.
    """
    factor = head.form.scale / head.temperature
    logits_CW = _finish_logits(tile.logits_CW, head.form, head.temperature)
    slope_CW = None
    if head.form.softcap is not None:
        slope_CW = (logits_CW * (head.temperature / head.form.softcap)).square_().neg_().add_(1.0)
    pull_CY = grad_logprob_NY[tile.tokens] * factor
    pull_C = pull_CY.sum(dim=1)
    logprob_CW = logits_CW.sub_(normalizer_N[tile.tokens, None])
    if head.with_entropy:
        weight_CW = (logprob_CW + entropy_N[tile.tokens, None]).mul_(grad_entropy_N[tile.tokens, None] * factor)
        grad_CW = logprob_CW.exp_().mul_(weight_CW.add_(pull_C[:, None]).neg_())
    else:
        grad_CW = logprob_CW.exp_().mul_(-pull_C[:, None])
    column_CY, is_here_CY = tile.locate(target_NY)
    grad_CW.scatter_add_(1, column_CY, torch.where(is_here_CY, pull_CY, 0.0))
    return grad_CW if slope_CW is None else grad_CW.mul_(slope_CW)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to a float32 sum without rounding the product to the factors' type first."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        total += torch.mm(left, right, out_dtype=total.dtype)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
