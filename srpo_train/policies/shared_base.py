"""Models that are in memory once however many policies stand on them.

A frozen model never changes, so all who need it may use one copy: policies that are a LoRA adapter each over the same
base, policies that are not trained, and the references of a divergence penalty (for an adapter, its base alone)::

    bases = Bases()
    solver = bases.load("solver", "Qwen/Qwen3-4B", dtype="bfloat16", device="cuda").new_adapter("solver", settings, 0)
    reference = bases.load("reference", "Qwen/Qwen3-4B", dtype="bfloat16", device="cuda").alone()
    solver.base is reference.base            # True
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from srpo_train.collect import derive_seed
from srpo_train.config import AdapterConfig
from srpo_train.policies import lora
from srpo_train.policies.loading import read_checkpoint, resolve_device, resolve_dtype, resolve_source

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class SharedBase:
    """A frozen model and the adapters over it, of which at most one computes at a time.

    Outside of `computing_with` the model is the base alone.

    Args:
        model: Its parameters are frozen here, for good. Adapters are written with its ``name_or_path`` as their base.
        tokenizer: The model's.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        model.requires_grad_(False)
        self.model = model
        self.tokenizer = tokenizer
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._linear_names = lora.linear_names(model)
        self._wrapped: PeftModel | None = None
        self._layers: list[BaseTunerLayer] = []
        self._trained: list[nn.Parameter] = []
        self._current: str | None = None

    def alone(self) -> Share:
        """Return the share of a policy that is the base itself."""
        return Share(base=self, name=None)

    def new_adapter(self, policy_id: str, settings: AdapterConfig, seed: int) -> Share:
        """Add an adapter whose policy equals the base until it is trained.

        Args:
            policy_id: With the seed, it decides the adapter's first weights.
            settings: Rank, targets and the rest.
            seed: The recipe's.

        Raises:
            ConfigError: a target is not a linear layer of the base.
            MissingExtraError: peft is not installed.
        """
        config = lora.new_config(policy_id, settings, self._linear_names)
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(seed, "adapter", policy_id))
            return self._add(config, is_trainable=True)

    def load_adapter(self, policy_id: str, directory: str | Path, *, is_trainable: bool) -> Share:
        """Add a stored adapter.

        Raises:
            PolicyLoadError: the files cannot be read, are not plain LoRA, or do not fit the base.
            MissingExtraError: peft is not installed.
        """
        share = self._add(lora.read_config(policy_id, directory), is_trainable=is_trainable)
        assert self._wrapped is not None and share.name is not None
        lora.load_weights(policy_id, self._wrapped, share.name, directory)
        return share

    @contextlib.contextmanager
    def computing_with(self, name: str | None) -> Iterator[None]:
        """Let one adapter, or none, take part in what the model computes in the body."""
        before = self._current
        self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def recompute_activations(self) -> None:
        """Save memory in backward passes, of all policies on this base."""
        # A layer that is computed again in the backward pass must meet the adapter that was there the first time. The
        # form that is not reentrant needs no gradient of the inputs, so nothing flows through the frozen embedding.
        settings = {"use_reentrant": False, "context_fn": self._recompute_contexts}
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)

    def as_peft(self) -> PeftModel:
        """Return peft's view of the base with all its adapters.

        Raises:
            LookupError: there is no adapter.
        """
        if self._wrapped is None:
            raise LookupError(f"the base {self.model.name_or_path!r} has no adapter")
        return self._wrapped

    def state_dict(self) -> dict[str, Tensor]:
        """Return the base's own tensors under the names they had before there were adapters."""
        tensors: dict[str, Tensor] = self.model.state_dict()
        return {key.replace(".base_layer.", "."): value for key, value in tensors.items() if ".lora_" not in key}

    def linear_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that an adapter can stand on, [outputs, inputs], under the names of their layers."""
        for name, tensor in self.state_dict().items():
            layer = name.removesuffix(".weight")
            if layer != name and layer.rpartition(".")[2] in self._linear_names:
                yield layer, tensor

    def _add(self, config: LoraConfig, *, is_trainable: bool) -> Share:
        from peft.tuners.tuners_utils import BaseTunerLayer

        # peft's names are part of parameter names, where a policy id may not stand (it may hold a dot).
        name = f"adapter_{len(self._wrapped.peft_config) if self._wrapped else 0}"
        config.base_model_name_or_path = self.model.name_or_path or None
        self._wrapped = lora.add_adapter(self._wrapped, self.model, name, config)
        self._layers = [module for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        share = Share(base=self, name=name)
        if is_trainable:
            self._trained += share.parameters()
        self.model.requires_grad_(False)  # peft lets the newest adapter be trained, whichever they are
        for parameter in self._trained:
            parameter.requires_grad_(True)
        self._switch(self._current)
        return share

    def _switch(self, name: str | None) -> None:
        # Not peft's set_adapter: it freezes what it switches off, which loses gradients of an event whose members use
        # several adapters, and takes longer than a small model's decoding step.
        for layer in self._layers:
            layer._active_adapter = [] if name is None else [name]
        self._current = name

    def _recompute_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), self.computing_with(self._current)


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """What one policy has of a shared base: an adapter over it, or just the base.

    Example:
        >>> share = base.new_adapter("solver", AdapterConfig(rank=8, alpha=16.0), seed=0)
        >>> with share.active():
        ...     logits = share.base.model(input_ids=ids).logits
    """

    base: SharedBase
    """The model and its adapters."""
    name: str | None
    """The adapter's name there; None is the base alone."""

    def active(self) -> AbstractContextManager[None]:
        """Let the model compute as this policy in the body."""
        return self.base.computing_with(self.name)

    def parameters(self) -> list[nn.Parameter]:
        """Return the adapter's parameters; none for the base alone."""
        return [parameter for key, parameter in self.base.model.named_parameters() if f".{self.name}." in key]

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is this policy's own: the adapter's tensors under peft's names, or the base's."""
        return lora.adapter_weights(self.base.as_peft(), self.name) if self.name else self.base.state_dict()

    def save(self, directory: Path) -> None:
        """Write the adapter in peft's format, or the base in that of transformers."""
        if self.name:
            lora.write_adapter(self.base.as_peft(), self.name, directory)
        else:
            self.base.model.save_pretrained(directory, state_dict=self.base.state_dict())

    def restore(self, policy_id: str, directory: Path) -> None:
        """Fill the adapter with what `save` wrote; the base alone never changes.

        Raises:
            PolicyLoadError: the file cannot be read, or its weights are not those of the adapter.
        """
        if self.name:
            lora.load_weights(policy_id, self.base.as_peft(), self.name, directory)


class Bases:
    """Shared bases by what they are: the same source, number format, device and attention give the same object."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, torch.dtype, torch.device, str | None], SharedBase] = {}

    def load(
        self, policy_id: str, source: str | Path, *, dtype: str, device: str, attention: str | None = None
    ) -> SharedBase:
        """Return the base, read if it is asked for for the first time.

        Raises:
            ConfigError: the dtype, device or builtin name is unknown.
            PolicyLoadError: it cannot be loaded.
        """
        location = resolve_source(policy_id, source)
        key = (location, resolve_dtype(policy_id, dtype), resolve_device(policy_id, device), attention)
        if key not in self._loaded:
            model, tokenizer = read_checkpoint(policy_id, location, key[1], attention)
            nn.Module.to(model, key[2])
            self._loaded[key] = SharedBase(model, tokenizer)
        return self._loaded[key]
