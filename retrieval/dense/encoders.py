"""Texts to vectors by E5-style encoders: a prefix, a transformer, pooling, length 1.

The defaults are Search-R1's: e5-base-v2 with ``query: `` and ``passage: ``, the mean of the token vectors, 256 tokens.
torch and transformers are imported when an encoder is loaded, not with this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from srpo_envs.errors import ConfigError, EncoderLoadError, MissingExtraError, RetrieverError, near_miss

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Vectors = npt.NDArray[np.float32]
"""[N, D] float32, one row per text."""
Pooling = Literal["mean", "cls", "last"]
Dtype = Literal["float32", "bfloat16", "float16"]

_UNUSED_WEIGHTS = "pooler."
"""BERT's head for next-sentence prediction: many checkpoints lack it, and no pooling here reads it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSettings:
    """Which encoder, and how texts become vectors.

    Raises:
        ConfigError: a value is out of range; names it.

    Example:
        ``EncoderSettings(model="intfloat/e5-small-v2", device="cuda", dtype="bfloat16", batch_size=512)``
    """

    model: str = "intfloat/e5-base-v2"
    """Hub id, or directory in transformers format."""
    query_prefix: str = "query: "
    """Put before every query."""
    passage_prefix: str = "passage: "
    """Put before the contents of every passage."""
    pooling: Pooling = "mean"
    """How token vectors become one: their mean, the first (``cls``) or the last, padding left out."""
    is_normalised: bool = True
    """Whether vectors are scaled to length 1, so that inner product is cosine."""
    max_length: int = 256
    """Tokens of a text that are read, special tokens and prefix included; the rest is cut off."""
    batch_size: int = 64
    """Texts in one forward pass."""
    device: str = "auto"
    """A torch device; ``auto`` is CUDA where there is one and the CPU otherwise."""
    dtype: Dtype = "float32"
    """Type of the weights; vectors are float32 always."""

    def __post_init__(self) -> None:
        for name, known in (("pooling", get_args(Pooling)), ("dtype", get_args(Dtype))):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"encoder {name}: unknown value {value!r}{near_miss(str(value), known)}")
        for name in ("max_length", "batch_size"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"encoder {name}: expected at least 1, got {value}")


class TextEncoder:
    """An encoder in memory. Several threads may use it; their batches take turns.

    Args:
        settings: what to load and how to encode.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        EncoderLoadError: weights or tokenizer are missing, damaged or cannot be reached.
        ConfigError: the device is unknown or absent, or `max_length` is more than the model can read.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self._device = _resolve_device(settings.device)
        self._model, self._tokenizer = _load(settings)
        _check_length(settings, self._model, self._tokenizer)
        self.dimension: int = self._model.config.hidden_size
        """Numbers in a vector."""
        self.fingerprint = _fingerprint(settings, self._model, self._tokenizer)
        """What decides the vectors of any text: weights, vocabulary and settings, wherever the model is stored."""
        self._model.to(self._device)  # type: ignore[arg-type]  # the stub of a decorated method
        self._lock = threading.Lock()  # side by side, forward passes would only fight for the same cores

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Return [N, D], one vector per query, in their order.

        Raises:
            RetrieverError: the model failed, for example for want of memory.
        """
        return self._encode([self.settings.query_prefix + query for query in queries])

    def encode_passages(self, contents: Sequence[str], on_batch: Callable[[int], None] | None = None) -> Vectors:
        """Return [N, D], one vector per passage, in their order.

        Args:
            contents: What is read of each passage, see `retrieval.corpus.contents_of`.
            on_batch: Told after each batch how many passages it had.

        Raises:
            RetrieverError: the model failed, for example for want of memory.
        """
        return self._encode([self.settings.passage_prefix + content for content in contents], on_batch)

    def _encode(self, texts: Sequence[str], on_batch: Callable[[int], None] | None = None) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        # Like lengths together waste no padding; the longest first, so that too little memory shows at once.
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        for start in range(0, len(order), self.settings.batch_size):
            numbers = order[start : start + self.settings.batch_size]
            vectors[numbers] = self._encode_batch([texts[number] for number in numbers])
            if on_batch is not None:
                on_batch(len(numbers))
        return vectors

    def _encode_batch(self, texts: list[str]) -> Vectors:
        import torch

        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # tokenizers refuse lone surrogates
        try:
            with self._lock, torch.inference_mode():
                tokens = self._tokenizer(
                    texts, padding=True, truncation=True, max_length=self.settings.max_length, return_tensors="pt"
                ).to(self._device)
                hidden = self._model(**tokens).last_hidden_state.float()
                pooled = pool(hidden, tokens["attention_mask"], self.settings.pooling)
                if self.settings.is_normalised:
                    pooled = torch.nn.functional.normalize(pooled, dim=-1)
                vectors: Vectors = pooled.cpu().numpy()
        except RuntimeError as error:  # torch's class for everything, memory included
            raise RetrieverError(
                f"encoder {self.settings.model!r} failed on {len(texts)} texts on {self._device}: {error}; "
                "if memory ran out, give a smaller batch_size"
            ) from error
        if not np.isfinite(vectors).all():
            raise RetrieverError(
                f"encoder {self.settings.model!r} gave numbers that are not finite in {self.settings.dtype}; "
                "use dtype 'float32'"
            )
        return vectors


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector per text from those of its tokens.

    Args:
        hidden: [N, T, D], padded on the right.
        mask: [N, T], 1 on tokens and 0 on padding.
        pooling: see `EncoderSettings.pooling`.

    Returns:
        [N, D].
    """
    if pooling == "cls":
        return hidden[:, 0]
    num_tokens = mask.sum(dim=1)
    if pooling == "last":
        return hidden[range(len(hidden)), num_tokens - 1]
    return (hidden * mask[:, :, None]).sum(dim=1) / num_tokens[:, None]


def _resolve_device(name: str) -> str:
    torch = _import_torch()
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"encoder device: {name!r} is not a torch device; use 'auto', 'cpu' or 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"encoder device: {name!r} was asked for, but torch sees no CUDA; use 'auto'")
    return name


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "dense") from error
    return torch


def _load(settings: EncoderSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return model and tokenizer on the CPU."""
    torch = _import_torch()
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "dense") from error
    path = Path(settings.model).expanduser()
    source = str(path) if path.is_dir() else settings.model
    try:
        with _silent() if path.is_dir() else contextlib.nullcontext():  # a download takes long and shows its progress
            tokenizer = AutoTokenizer.from_pretrained(source, padding_side="right")
            loaded: Any = AutoModel.from_pretrained(
                source, dtype=getattr(torch, settings.dtype), output_loading_info=True
            )
    # Loading crosses several libraries and perhaps a network, each with its own error classes; the cause stays chained.
    except Exception as error:
        reason = " ".join(str(error).split())  # the libraries break their messages into lines
        raise EncoderLoadError(
            f"encoder {settings.model!r} cannot be loaded; give an existing directory in transformers format, or a hub "
            f"id that can be downloaded or is in the local cache ({reason})"
        ) from error
    model, report = loaded
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith(_UNUSED_WEIGHTS)):
        # transformers would fill these with random numbers and only warn.
        raise EncoderLoadError(
            f"encoder {settings.model!r} lacks {len(missing)} weights, the first is {missing[0]!r}; it is damaged or "
            "of another architecture than its config.json says"
        )
    model.config.use_cache = False  # decoders would keep keys and values that no later token reads
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token does
    return model.eval(), tokenizer


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide the progress bars of transformers, which would tear up the caller's own display."""
    from transformers.utils import logging

    bars: Any = logging
    was_enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()


def _check_length(settings: EncoderSettings, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", settings.max_length))
    if settings.max_length > longest:
        raise ConfigError(
            f"encoder max_length: {settings.model!r} reads at most {longest} tokens, got {settings.max_length}"
        )


def _fingerprint(settings: EncoderSettings, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    torch = _import_torch()
    # Names of weights and their order are left out: they change between versions of transformers, the numbers do not.
    weights = sorted(
        hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
        for name, tensor in model.state_dict().items()
        if not name.startswith(_UNUSED_WEIGHTS)
    )
    described = {**identity(settings), "weights": weights, "vocabulary": tokenizer.get_vocab()}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def identity(settings: EncoderSettings) -> dict[str, Any]:
    """Return the settings that decide what a vector means: neither where the model lies nor how fast it runs."""
    return {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if name not in ("model", "batch_size", "device")
    }
