"""A policy: one set of parameters with its tokenizer, its chat template and a version number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from srpo_train.policies.loading import read_checkpoint, resolve_device, resolve_dtype, resolve_source, silent

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(eq=False, kw_only=True)
class Policy:
    """Parameters that answer for one or more roles.

    Dropout is switched off for good: the surrogate compares log-probs of two forward passes over the same tokens, and
    random masks would make the set ratio differ from 1 before any update.

    Example:
        ``Policy.load("solver", "builtin:tiny-team").encode_prompt("Compute 3+4.")``
    """

    policy_id: str
    """Name of the parameters; recipes map roles to it."""
    model: PreTrainedModel
    """A transformers causal language model."""
    tokenizer: PreTrainedTokenizerBase
    """The tokenizer that belongs to the model."""
    version: int = 0
    """Number of weight publications; whoever updates the weights raises it."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables given to the chat template, such as ``{"enable_thinking": False}``."""

    def __post_init__(self) -> None:
        """Make forward passes deterministic."""
        _disable_dropout(self.model)
        self.model.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))

    @classmethod
    def load(
        cls,
        policy_id: str,
        source: str | Path,
        *,
        dtype: str = "float32",
        device: str = "auto",
        gradient_checkpointing: bool = False,
        attention: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        version: int = 0,
    ) -> Policy:
        """Load a policy from a directory, the model hub or the package itself.

        Args:
            policy_id: Name of the parameters.
            source: A local directory in transformers format, a hub id, or ``builtin:<name>``.
            dtype: ``float32``, ``bfloat16`` or ``float16``.
            device: A torch device, or ``auto`` for CUDA where there is one and the CPU otherwise.
            gradient_checkpointing: Recompute activations in the backward pass: less memory, about a third more time.
            attention: Attention implementation of transformers (``sdpa``, ``eager``, ``flash_attention_2`` ...); None
                takes the library's choice.
            chat_template_kwargs: Variables given to the chat template.
            version: Weight publications so far, when a run resumes.

        Raises:
            ConfigError: the dtype, device or builtin name is unknown.
            PolicyLoadError: there is no such checkpoint, it is incomplete, or the hub cannot be reached.
            MissingExtraError: transformers is not installed.
        """
        torch_dtype, torch_device = resolve_dtype(policy_id, dtype), resolve_device(policy_id, device)
        location = resolve_source(policy_id, source)
        model, tokenizer = read_checkpoint(policy_id, location, torch_dtype, attention)
        torch.nn.Module.to(model, torch_device)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return cls(
            policy_id=policy_id,
            model=model,
            tokenizer=tokenizer,
            version=version,
            chat_template_kwargs=dict(chat_template_kwargs or {}),
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.device

    @property
    def num_parameters(self) -> int:
        """Scalars in the model, tied weights counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and response together; None when the model names no limit."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit else None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: the tokenizer's and every one the generation config lists, ascending."""
        generation_config = getattr(self.model, "generation_config", None)
        listed = getattr(generation_config, "eos_token_id", None)
        ids = set(listed) if isinstance(listed, (list, tuple)) else {listed}
        ids.add(self.tokenizer.eos_token_id)
        return tuple(sorted(int(token) for token in ids if token is not None))

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt: one user message through the chat template, ready for the answer.

        A tokenizer without a chat template (a base model) encodes the text as it is, with the special tokens it adds
        by itself (for example a beginning-of-sequence token).
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return tuple(self.tokenizer(text)["input_ids"])
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
            **self.chat_template_kwargs,
        )
        # The template writes every special token itself; adding the tokenizer's own would double the first one.
        return tuple(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: tuple[int, ...] | list[int]) -> str:
        """Return the text of sampled tokens without special tokens, otherwise untouched."""
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return cast(str, text)

    @contextlib.contextmanager
    def sampling_mode(self) -> Iterator[None]:
        """Run the body without gradients and in evaluation mode.

        Needed around generation with gradient checkpointing: in training mode transformers drops the key-value cache
        of checkpointed layers.
        """
        was_training = self.model.training
        self.model.train(False)
        try:
            # no_grad rather than inference_mode: some rotary embeddings update their own buffers in a forward pass,
            # and an inference tensor left there cannot take part in a later backward pass.
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

    def save(self, directory: str | Path) -> None:
        """Write weights, configuration, generation configuration and tokenizer in transformers format.

        The directory is loadable by `from_pretrained` and by vLLM. Weights are safetensors; tied weights are written
        once. Writing is not atomic: a caller that needs this writes beside and renames.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        with silent():
            self.model.save_pretrained(target)
            self.tokenizer.save_pretrained(target)


def _disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the attributes attention layers read."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
