"""How many floating-point operations a model makes of rows of tokens: exact for matrix products, nothing else counted.

A model is measured once, by a forward pass of two tokens that is watched: which matrices a token meets (the experts a
token is sent to, the adapter that is active), how wide each layer's attention is, and where a gradient would flow. So
every architecture of transformers is counted by what it does rather than by a formula for its name, and a frozen base
below an adapter, through whose first layers no gradient goes, is counted as autograd computes it.

Two operations are one multiplication with its addition. Embedding look-ups, norms and activation functions are not
counted, as is usual. Attention counts the pairs of tokens a causal model looks at, ``S (S + 1) / 2`` of a row of S
tokens and fewer in a window: half of what formulas give that count the whole square. A backward pass makes one product
for the gradient of each input and one for that of each weight, as far as they are wanted.

*Model* operations are what the mathematics asks for. *Hardware* operations add what is computed again to save memory:
the layers under gradient checkpointing, and the output head, whose logits `srpo_train.policies.logprobs` forms anew.
Padding is in neither.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_PROBE = (0, 1)
"""Tokens of the forward pass that is watched."""
_MEASURED = "srpo_measured"
"""Name under which transformers knows the attention that is watched."""


class Products(NamedTuple):
    """Operations a token makes in matrices, by the pass that makes them."""

    forward: float = 0.0
    """Forward pass."""
    input_gradient: float = 0.0
    """Backward pass, for the gradients of inputs."""
    weight_gradient: float = 0.0
    """Backward pass, for the gradients of weights."""

    @property
    def training(self) -> float:
        """Forward and backward."""
        return sum(self)


class AttentionFlops(NamedTuple):
    """Attention of one layer."""

    forward: float
    """Operations of a query and a key that look at each other, over all heads, in a forward pass."""
    backward: float
    """In a backward pass; twice as many, unless queries, keys or values want no gradient."""
    window: int | None
    """Most keys a query looks at; None for all before it."""


class RowFlops(NamedTuple):
    """Operations of some rows."""

    model: float
    """What the mathematics asks for."""
    hardware: float
    """What is made."""


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """What a model makes of a token, of a pair of tokens, and of a token whose distribution is asked for.

    Example:
        >>> flops = ModelFlops(body=Products(100.0, 100.0, 100.0), head=Products(20.0, 20.0, 20.0), attention=())
        >>> flops.forward([3], num_scored=2).model
        340.0
    """

    body: Products
    """Of every token, below the head."""
    head: Products
    """Of a token whose next one is scored or sampled."""
    attention: tuple[AttentionFlops, ...]
    """Layer by layer."""
    recomputes_layers: bool = False
    """Whether the backward pass computes the layers' activations again."""
    recomputes_head: bool = True
    """Whether it forms the logits again."""

    def forward(self, lengths: Iterable[int], num_scored: int, *, count: Callable[..., int] | None = None) -> RowFlops:
        """Return the operations of a forward pass over rows.

        Args:
            lengths: Tokens of each row.
            num_scored: Tokens, of all rows together, at which the head is applied.
            count: Counts the pairs of a row in place of `causal_pairs`.
        """
        lengths = list(lengths)
        attention = self._attention(lengths, count or causal_pairs, lambda layer: layer.forward)
        total = self.body.forward * sum(lengths) + self.head.forward * num_scored + attention
        return RowFlops(total, total)

    def training(self, lengths: Iterable[int], num_scored: int, *, count: Callable[..., int] | None = None) -> RowFlops:
        """Return the operations of a forward and a backward pass over rows; arguments as in `forward`."""
        lengths, pairs = list(lengths), count or causal_pairs
        attention = self._attention(lengths, pairs, lambda layer: layer.forward + layer.backward)
        total = self.body.training * sum(lengths) + self.head.training * num_scored + attention
        again = self.head.forward * num_scored if self.recomputes_head else 0.0
        if self.recomputes_layers:
            again += self.body.forward * sum(lengths) + self._attention(lengths, pairs, lambda layer: layer.forward)
        return RowFlops(total, total + again)

    def sampling(self, rows: Sequence[tuple[Sequence[int], int]]) -> RowFlops:
        """Return the operations of sampling responses with a cache, where equal prompts are computed once.

        Args:
            rows: Prompt tokens and number of sampled tokens of each response.
        """
        prompts = {tuple(prompt) for prompt, _ in rows}
        shared = self.forward([len(prompt) for prompt in prompts], 0).model
        repeated = self.forward([len(prompt) for prompt, _ in rows], 0).model
        # The last sampled token is read by nobody.
        whole = self.forward([len(prompt) + max(num - 1, 0) for prompt, num in rows], sum(num for _, num in rows))
        total = whole.model - repeated + shared
        return RowFlops(total, total)

    def _attention(
        self, lengths: Sequence[int], count: Callable[..., int], cost: Callable[[AttentionFlops], float]
    ) -> float:
        by_window: dict[int | None, float] = {}
        for layer in self.attention:
            by_window[layer.window] = by_window.get(layer.window, 0.0) + cost(layer)
        return sum(price * sum(count(length, window) for length in lengths) for window, price in by_window.items())


def causal_pairs(length: int, window: int | None = None) -> int:
    """Return the pairs of query and key in a causal row: each token sees itself and what is before it, in a window."""
    inside = length if window is None else min(length, window)
    return inside * (inside + 1) // 2 + (length - inside) * inside


_FOUND: WeakKeyDictionary[nn.Module, ModelFlops] = WeakKeyDictionary()


def flops_of(model: nn.Module) -> ModelFlops:
    """Return what `measure_flops` finds, once; for models whose adapters and trained parameters stay the same."""
    if model not in _FOUND:
        _FOUND[model] = measure_flops(model)
    return _FOUND[model]


def measure_flops(model: nn.Module) -> ModelFlops:
    """Watch a forward pass of two tokens; the model may be on torch's meta device.

    Args:
        model: A transformers causal language model or a PEFT model around one, with its adapter active.
    """
    wrapper: Any = model
    causal = wrapper.get_base_model() if hasattr(wrapper, "get_base_model") else wrapper
    head = causal.get_output_embeddings()
    device = next(causal.parameters()).device
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), _unchecked(causal):
        with _watched(causal.base_model) as body, _watched_attention(causal) as attention:
            ids = torch.tensor([_PROBE], device=device)
            hidden = causal.base_model(input_ids=ids, use_cache=False)[0]
        with _watched(head) as top:
            head(hidden)
    if not attention:
        logger.warning("%s: its attention cannot be watched, so its operations are not counted", type(causal).__name__)
    return ModelFlops(
        body=_per_token(body),
        head=_per_token(top),
        attention=tuple(attention),
        recomputes_layers=bool(getattr(causal, "is_gradient_checkpointing", False)),
        recomputes_head=type(head) is nn.Linear,
    )


def _per_token(calls: Sequence[Products]) -> Products:
    return Products(*(sum(column) / len(_PROBE) for column in zip(*calls, strict=True))) if calls else Products()


@contextlib.contextmanager
def _unchecked(causal: PreTrainedModel) -> Iterator[None]:
    """Leave checkpointing out of the watched pass, where nothing is worth saving and hooks would fire twice."""
    was_training = causal.training
    causal.train(False)
    try:
        yield
    finally:
        causal.train(was_training)


@contextlib.contextmanager
def _watched(part: nn.Module) -> Iterator[list[Products]]:
    """Collect the products of every matrix below a module that is called in the body."""
    calls: list[Products] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        calls.append(_products(module, args))

    handles = [module.register_forward_pre_hook(note) for module in part.modules() if _matrices(module)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    """Return what a module of its own multiplies with: a weight, or stacked weights of experts; not an embedding."""
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Embedding):
        return []
    stacked = [parameter for parameter in own.values() if parameter.ndim == 3]
    if stacked and not isinstance(module, nn.Conv1d):
        return stacked
    weight = own.get("weight")
    return [weight] if weight is not None and weight.ndim >= 2 else []


def _products(module: nn.Module, args: tuple[Any, ...]) -> Products:
    """Operations of one call of a module with matrices."""
    inputs: Tensor = args[0]
    matrices = _matrices(module)
    if isinstance(module, nn.Conv1d):  # [B, C, S]: the kernel is applied at every place
        uses = inputs.numel() / inputs.shape[1]
    else:
        uses = inputs.numel() / inputs.shape[-1]
        if matrices[0].ndim == 3:  # [experts, ...], of which each token takes those that its routing names
            uses *= args[1].shape[-1] / len(matrices[0])
    forward = 2.0 * uses * sum(matrix.numel() for matrix in matrices)
    trained = 2.0 * uses * sum(matrix.numel() for matrix in matrices if matrix.requires_grad)
    return Products(forward, forward if inputs.requires_grad else 0.0, trained)


@contextlib.contextmanager
def _watched_attention(causal: PreTrainedModel) -> Iterator[list[AttentionFlops]]:
    """Collect what each call of attention looks like in the body."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    layers: list[AttentionFlops] = []

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        width, value_width = query.shape[1] * query.shape[-1], query.shape[1] * value.shape[-1]
        scores_gradient = value_width if query.requires_grad or key.requires_grad else 0
        backward = width * (query.requires_grad + key.requires_grad) + value_width * value.requires_grad
        layers.append(
            AttentionFlops(
                2.0 * (width + value_width), 2.0 * (backward + scores_gradient), kwargs.get("sliding_window")
            )
        )
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output

    AttentionInterface.register(_MEASURED, attend)  # without a kind of mask: two tokens need none
    before = causal.config._attn_implementation
    if not causal._can_set_attn_implementation():
        yield layers
        return
    causal.set_attn_implementation(_MEASURED)
    try:
        yield layers
    finally:
        causal.set_attn_implementation(before)
