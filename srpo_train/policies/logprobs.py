"""Log-probabilities of sampled tokens without the batch's full-vocabulary logits.

The decoder's hidden states are taken at response positions only and go through the output head in chunks: a chunk's
logits live in one buffer that the next chunk reuses, in the forward and again in the backward pass. Memory is one chunk
times the vocabulary, whatever the batch.

Letters: M rows, T padded response tokens, N response tokens of all rows in one line, H hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from srpo_envs.errors import ConfigError
from srpo_train.batching import MemberRow, PaddedRows, pad_rows

logger = logging.getLogger(__name__)

# Logits held at once. Each chunk reads the head's weights and writes their gradient once, so chunks must not be small.
_CHUNK_BYTES = {"cpu": 128 << 20, "cuda": 512 << 20}


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
    """Response tokens whose logits are held at once; None picks by device."""

    def __call__(self, rows: Sequence[MemberRow]) -> TokenLogprobs:
        """Pad the rows and score them."""
        padded = pad_rows(rows, self.pad_token_id, next(self.model.parameters()).device)
        return token_logprobs(
            self.model,
            padded,
            temperature=self.temperature,
            chunk_size=self.chunk_size,
            with_entropy=self.with_entropy,
        )


def token_logprobs(
    model: nn.Module,
    padded: PaddedRows,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Log-probability of every response token given what precedes it in its row.

    Equal to gathering from ``log_softmax(logits.float() / temperature)`` of the whole model, with gradients to match.
    A model whose head is not a plain linear layer, or that changes its logits in a way not known here, is scored from
    its full logits instead; a warning is logged once.

    Args:
        model: a transformers causal language model or a PEFT model around one, in any floating type.
        padded: right-padded rows on the model's device.
        temperature: divides the logits; positive.
        chunk_size: response tokens whose logits are held at once; None picks by device.
        with_entropy: also return entropies.

    Returns:
        Log-probabilities for all response tokens, sampled or not (the token mask is applied by the objective).

    Raises:
        ConfigError: the temperature or the chunk size is not positive.
    """
    if not temperature > 0 or (chunk_size is not None and chunk_size < 1):
        raise ConfigError(f"log-probs: temperature and chunk_size must be positive, got {temperature}, {chunk_size}")
    row_N, token_N = padded.is_response_MT.nonzero(as_tuple=True)
    position_N = padded.prompt_length_M[row_N] - 1 + token_N
    target_N = padded.token_ids_MT[row_N, token_N]
    inputs = {"input_ids": padded.input_ids_MS, "attention_mask": padded.attention_mask_MS, "use_cache": False}
    form = head_form(model)
    if form is None:
        logits_NV = model(**inputs).logits[row_N, position_N]
        logprob_N, entropy_N = _score_logits(logits_NV, target_N, temperature, with_entropy)
    else:
        causal, head = _unwrap(model)
        hidden_NH = causal.base_model(**inputs).last_hidden_state[row_N, position_N]
        logprob_N, entropy_N = head_logprobs(
            hidden_NH, head.weight, head.bias, target_N, form, temperature, chunk_size, with_entropy
        )
    shape = padded.token_ids_MT.shape
    blank_MT = logprob_N.new_zeros(shape)
    logprobs_MT = blank_MT.index_put((row_N, token_N), logprob_N)
    return TokenLogprobs(logprobs_MT, blank_MT.index_put((row_N, token_N), entropy_N) if with_entropy else None)


def head_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    form: HeadForm | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of targets, and entropies, under a linear head; only one chunk's logits exist at a time.

    Differentiable once in ``hidden_NH``, ``weight_VH`` and ``bias_V``; backward forms each chunk's logits anew.

    Returns:
        [N] log-probabilities and [N] entropies (zeros unless asked for), at least float32.
    """
    if chunk_size is None:
        chunk_size = max(1, _CHUNK_BYTES.get(hidden_NH.device.type, 128 << 20) // (4 * weight_VH.shape[0]))
    head = _Head(form or HeadForm(), temperature, chunk_size, with_entropy)
    scored: tuple[Tensor, Tensor] = _ChunkedHead.apply(hidden_NH, weight_VH, bias_V, target_N, head)  # type: ignore[no-untyped-call]
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
    expected = _finish_logits(head(seen[0]).float(), form, 1.0)
    tolerance = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    return bool((expected - logits.float()).abs().max() <= tolerance * logits.abs().max())


def _unwrap(model: nn.Module) -> tuple[Any, Any]:
    """Return the causal model inside any PEFT wrapper (adapters stay active, they are injected), and its head."""
    wrapper: Any = model
    causal = wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else wrapper
    return causal, causal.get_output_embeddings()


def _score_logits(logits_NV: Tensor, target_N: Tensor, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Score from full logits, for heads of unknown form."""
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    logprob_NV = (logits_NV.to(dtype) / temperature).log_softmax(dim=-1)
    logprob_N = logprob_NV.gather(1, target_N[:, None]).squeeze(1)
    entropy_N = -(logprob_NV.exp() * logprob_NV).sum(dim=1) if with_entropy else torch.zeros_like(logprob_N)
    return logprob_N, entropy_N


# --- the chunked head ---------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """What the chunked head is told besides tensors."""

    form: HeadForm
    temperature: float
    chunk_size: int
    with_entropy: bool


class _ChunkedHead(torch.autograd.Function):
    """Log-softmax of a linear head at given targets, chunk by chunk, with the logits formed again in backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, target_N: Tensor, head: _Head
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
        logprob_N, normalizer_N, entropy_N = hidden_NH.new_zeros((3, len(hidden_NH)), dtype=dtype)
        for chunk, logits_CV in _logit_chunks(hidden_NH, weight_VH, bias_V, head.chunk_size):
            logits_CV = _finish_logits(logits_CV, head.form, head.temperature)
            target_logit_C = logits_CV.gather(1, target_N[chunk, None]).squeeze(1)
            normalizer_N[chunk], entropy_N[chunk] = _normalize(logits_CV, head.with_entropy)
            logprob_N[chunk] = target_logit_C - normalizer_N[chunk]
        ctx.head = head
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, normalizer_N, entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprob_N: Tensor, grad_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_N, normalizer_N, entropy_N = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        # Sums over thousands of chunks need float32, whatever the weights are stored in.
        grad_hidden_NH = torch.zeros_like(hidden_NH) if wanted[0] else None
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=normalizer_N.dtype) if wanted[1] else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=normalizer_N.dtype) if wanted[2] else None
        for chunk, logits_CV in _logit_chunks(hidden_NH, weight_VH, bias_V, ctx.head.chunk_size):
            grad_CV = _logit_gradient(
                logits_CV,
                target_N[chunk, None],
                normalizer_N[chunk, None],
                entropy_N[chunk, None],
                grad_logprob_N[chunk, None],
                grad_entropy_N[chunk, None],
                ctx.head,
            )
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(dim=0)
            grad_CV = grad_CV.to(weight_VH.dtype)
            if grad_hidden_NH is not None:
                torch.mm(grad_CV, weight_VH, out=grad_hidden_NH[chunk])
            if grad_weight_VH is not None:
                _add_product(grad_weight_VH, grad_CV.t(), hidden_NH[chunk])
        return grad_hidden_NH, _cast(grad_weight_VH, weight_VH), _cast(grad_bias_V, bias_V), None, None


def _logit_chunks(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, chunk_size: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield each chunk's raw logits, at least float32, in one buffer that the next chunk overwrites.

    The product is taken in the weights' own type, as the model takes it.
    """
    dtype = torch.promote_types(weight_VH.dtype, torch.float32)
    buffer_CV = weight_VH.new_empty((min(chunk_size, len(hidden_NH)), len(weight_VH)), dtype=dtype)
    for start in range(0, len(hidden_NH), chunk_size):
        chunk = slice(start, min(start + chunk_size, len(hidden_NH)))
        logits_CV = buffer_CV[: chunk.stop - start]
        if dtype == weight_VH.dtype and bias_V is None:
            torch.mm(hidden_NH[chunk], weight_VH.t(), out=logits_CV)
        else:
            logits_CV.copy_(nn.functional.linear(hidden_NH[chunk], weight_VH, bias_V))
        yield chunk, logits_CV


def _finish_logits(logits: Tensor, form: HeadForm, temperature: float) -> Tensor:
    """Apply scale, soft cap and temperature in place."""
    if form.softcap is not None:
        return logits.mul_(form.scale / form.softcap).tanh_().mul_(form.softcap / temperature)
    factor = form.scale / temperature
    return logits if factor == 1.0 else logits.mul_(factor)


def _normalize(logits_CV: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp and entropy (0 unless asked for) of each line; overwrites the logits."""
    largest_C = logits_CV.amax(dim=1)
    if not with_entropy:
        normalizer_C = logits_CV.sub_(largest_C[:, None]).exp_().sum(dim=1).log_().add_(largest_C)
        return normalizer_C, torch.zeros_like(normalizer_C)
    shifted_CV = logits_CV.sub_(largest_C[:, None])
    exponential_CV = shifted_CV.exp()
    sum_C = exponential_CV.sum(dim=1)
    mean_shifted_C = torch.einsum("cv,cv->c", exponential_CV, shifted_CV) / sum_C
    return sum_C.log() + largest_C, sum_C.log() - mean_shifted_C


def _logit_gradient(
    logits_CV: Tensor,
    target_C1: Tensor,
    normalizer_C1: Tensor,
    entropy_C1: Tensor,
    grad_logprob_C1: Tensor,
    grad_entropy_C1: Tensor,
    head: _Head,
) -> Tensor:
    """Gradient with respect to the raw logits, written over them.

    With z the finished logits, p their softmax and H its entropy: ``d log p_y / d z = 1_y - p`` and
    ``d H / d z = -p (log p + H)``; scale, soft cap and temperature follow by the chain rule.
    """
    factor = head.form.scale / head.temperature
    logits_CV = _finish_logits(logits_CV, head.form, head.temperature)
    slope_CV = None
    if head.form.softcap is not None:
        slope_CV = (logits_CV * (head.temperature / head.form.softcap)).square_().neg_().add_(1.0)
    logprob_CV = logits_CV.sub_(normalizer_C1)
    pull_C1 = -grad_logprob_C1 * factor
    if head.with_entropy:
        surprise_CV = (logprob_CV + entropy_C1).mul_(-grad_entropy_C1 * factor)
        grad_CV = logprob_CV.exp_().mul_(surprise_CV.add_(pull_C1))
    else:
        grad_CV = logprob_CV.exp_().mul_(pull_C1)
    grad_CV.scatter_add_(1, target_C1, -pull_C1)
    return grad_CV if slope_CV is None else grad_CV.mul_(slope_CV)


def _add_product(sum_VH: Tensor, left_VC: Tensor, right_CH: Tensor) -> None:
    if sum_VH.dtype == left_VC.dtype:
        sum_VH.addmm_(left_VC, right_CH)
    else:
        sum_VH += left_VC @ right_CH


def _cast(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.to(like.dtype)
