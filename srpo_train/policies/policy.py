"""A policy: one set of parameters with its tokenizer, its chat template and a version number."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from srpo_envs.errors import ConfigError
from srpo_train.config import AdapterConfig
from srpo_train.policies import lora
from srpo_train.policies.loading import read_checkpoint, resolve_device, resolve_dtype, resolve_source, silent
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.policies.packing import Packing, resolve_packing
from srpo_train.policies.shared_base import Bases, Share, SharedBase
from srpo_train.throughput.flops import ModelFlops, flops_of, measure_flops

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from srpo_train.distributed.sharding import ShardedModel


@dataclass(eq=False, kw_only=True)
class Policy:
    """Parameters that answer for one or more roles.

    Dropout is switched off for good: the surrogate compares log-probs of two forward passes over the same tokens, and
    random masks would make the set ratio differ from 1 before any update.

    The parameters are a model of the policy's own or a share of a frozen one that other policies use too: a LoRA
    adapter over it, or just the base. Then the model computes as this policy only inside `active`, which
    `sampling_mode` and `scorer` enter by themselves.

    Example:
        ``Policy.load("solver", "builtin:tiny-team").encode_prompt("Compute 3+4.")``
    """

    policy_id: str
    """Name of the parameters; recipes map roles to it."""
    model: PreTrainedModel
    """A transformers causal language model; with a `share`, the base."""
    tokenizer: PreTrainedTokenizerBase
    """The tokenizer that belongs to the model."""
    version: int = 0
    """Number of weight publications; whoever updates the weights raises it."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables given to the chat template, such as ``{"enable_thinking": False}``."""
    share: Share | None = None
    """The policy's part of a base that others use too; None when the model is its own."""
    shards: ShardedModel | None = None
    """The model spread over the processes of a run; None when this process has it whole."""
    is_trainable: bool = True
    """A policy that is not trained plays and is scored; it gets no gradient and no optimiser."""

    def __post_init__(self) -> None:
        """Make forward passes deterministic."""
        disable_dropout(self.model)
        self.model.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))

    @classmethod
    def load(
        cls,
        policy_id: str,
        source: str | Path,
        *,
        base: str | Path | None = None,
        adapter: AdapterConfig | None = None,
        trainable: bool = True,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "auto",
        gradient_checkpointing: bool = False,
        attention: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        version: int = 0,
        bases: Bases | None = None,
    ) -> Policy:
        """Load a policy from a directory, the model hub or the package itself.

        Args:
            policy_id: Name of the parameters.
            source: A local directory in transformers format, a directory with a LoRA adapter in peft's format, a hub
                id, or ``builtin:<name>``.
            base: The model below a stored adapter; None takes the one the adapter's files name.
            adapter: Put a new LoRA adapter over the source, which stays frozen.
            trainable: Whether it is to be trained; a frozen model is a shared one.
            seed: Decides, with the policy's id, the first weights of a new adapter.
            dtype: ``float32``, ``bfloat16`` or ``float16``.
            device: A torch device, or ``auto`` for CUDA where there is one and the CPU otherwise.
            gradient_checkpointing: Recompute activations in the backward pass: less memory, about a third more time.
                Where one of the policies on a base asks for it, all do it.
            attention: Attention implementation of transformers (``sdpa``, ``eager``, ``flash_attention_2`` ...); None
                takes the library's choice.
            chat_template_kwargs: Variables given to the chat template.
            version: Weight publications so far, when a run resumes.
            bases: The bases that are in memory already; what is loaded joins them.

        Raises:
            ConfigError: the dtype, device or builtin name is unknown, or the adapter does not fit the source.
            PolicyLoadError: there is no such checkpoint, it is incomplete, or the hub cannot be reached.
            MissingExtraError: transformers, or peft for an adapter, is not installed.
        """
        location = resolve_source(policy_id, source)
        if adapter or not trainable or lora.is_adapter(location):
            bases = Bases() if bases is None else bases
            below = _model_below(policy_id, location, base)
            shared = bases.load(policy_id, below, dtype=dtype, device=device, attention=attention)
            share = _take_share(policy_id, shared, location, adapter, is_trainable=trainable, seed=seed)
            model, tokenizer = shared.model, shared.tokenizer
        else:
            share = None
            torch_dtype, torch_device = resolve_dtype(policy_id, dtype), resolve_device(policy_id, device)
            model, tokenizer = read_checkpoint(policy_id, location, torch_dtype, attention)
            nn.Module.to(model, torch_device)
        if gradient_checkpointing and trainable:
            if share:
                share.base.recompute_activations()
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return cls(
            policy_id=policy_id,
            model=model,
            tokenizer=tokenizer,
            version=version,
            chat_template_kwargs=dict(chat_template_kwargs or {}),
            share=share,
            is_trainable=trainable,
        )

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.shards.device if self.shards else self.model.device

    @property
    def num_parameters(self) -> int:
        """Scalars the policy computes with, tied weights counted once and those of other policies not at all."""
        if self.share:
            return self.share.base.num_parameters + sum(parameter.numel() for parameter in self.share.parameters())
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def trainable_parameters(self) -> list[nn.Parameter]:
        """What an optimiser may change: the model, the adapter over a base, or nothing of a frozen policy."""
        if not self.is_trainable:
            return []
        parameters = self.share.parameters() if self.share else self.model.parameters()
        return [parameter for parameter in parameters if parameter.requires_grad]

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

    def active(self) -> AbstractContextManager[None]:
        """Let the model compute as this policy in the body; for a model of its own that is always so."""
        return self.share.active() if self.share else contextlib.nullcontext()

    @functools.cached_property
    def flops(self) -> ModelFlops:
        """What the model makes of a token, found by a forward pass of the whole model."""
        if self.share is None:
            return flops_of(self.model)
        with self.active():
            return measure_flops(self.model)

    def scorer(self, *, temperature: float = 1.0, with_entropy: bool = False, packing: Packing = False) -> ModelScorer:
        """Return the policy as a function from member rows to token log-probabilities.

        Raises:
            ConfigError: packing is asked for, and the model's rows would see each other.
        """
        return ModelScorer(
            model=self.model,
            temperature=temperature,
            with_entropy=with_entropy,
            active=self.active,
            score=self.shards.score if self.shards else None,
            device=self.device if self.shards else None,
            packing=resolve_packing(self.policy_id, self.model, packing),
            flops=self.flops,
        )

    @contextlib.contextmanager
    def sampling_mode(self) -> Iterator[None]:
        """Run the body as this policy, without gradients and in evaluation mode.

        Needed around generation with gradient checkpointing: in training mode transformers drops the key-value cache
        of checkpointed layers.
        """
        was_training = self.model.training
        self.model.train(False)
        try:
            # no_grad rather than inference_mode: some rotary embeddings update their own buffers in a forward pass,
            # and an inference tensor left there cannot take part in a later backward pass.
            with self.active(), torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

    def save(self, directory: str | Path) -> None:
        """Write a model with its configurations in transformers format, an adapter in peft's, and the tokenizer.

        The directory is loadable by `from_pretrained` of transformers or of `PeftModel`, and by vLLM. Weights are
        safetensors; tied weights are written once. Writing is not atomic: a caller that needs this writes beside and
        renames.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        with silent():
            if owner := self.share or self.shards:
                owner.save(target)
            else:
                self.model.save_pretrained(target)
            self.tokenizer.save_pretrained(target)

    @torch.no_grad()
    def restore(self, directory: str | Path) -> None:
        """Take back the weights that `save` wrote, in place, so that optimisers and engines keep what they hold.

        Raises:
            PolicyLoadError: the checkpoint is not there or not of this policy.
        """
        if self.share:
            self.share.restore(self.policy_id, Path(directory))
            return
        stored, _ = read_checkpoint(self.policy_id, str(directory), self.model.dtype, None)
        for parameter, saved in zip(self.model.parameters(), stored.parameters(), strict=True):
            parameter.copy_(saved)


def _model_below(policy_id: str, location: str, base: str | Path | None) -> str | Path:
    """Return where the model is: below the adapter that is stored at a location, or there itself."""
    if not lora.is_adapter(location):
        return location
    return base or lora.base_of(policy_id, location)


def _take_share(
    policy_id: str, shared: SharedBase, location: str, adapter: AdapterConfig | None, *, is_trainable: bool, seed: int
) -> Share:
    if not lora.is_adapter(location):
        return shared.new_adapter(policy_id, adapter, seed) if adapter else shared.alone()
    if adapter:
        raise ConfigError(
            f"policy {policy_id!r}: {location!r} holds an adapter already, and a second one over it is not supported; "
            "leave the adapter settings out to go on with it, or name its base as the model"
        )
    return shared.load_adapter(policy_id, location, is_trainable=is_trainable)


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the attributes attention layers read."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
