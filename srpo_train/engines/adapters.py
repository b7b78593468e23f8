"""LoRA adapters on their way to an engine: files in peft's format."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_train.policies.lora import CONFIG_FILE, WEIGHTS_FILE
from srpo_train.policies.policy import Policy
from srpo_train.policies.shared_base import SharedBase

_KERNEL_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM has kernels."""


class StoredAdapter:
    """An adapter in peft's format.

    Args:
        config: Text of its configuration file.
        tensors: Weights under peft's names.
    """

    def __init__(self, config: str, tensors: dict[str, Tensor]) -> None:
        self._config = config
        self.tensors = tensors
        """Weights under peft's names, as they were stored."""

    @classmethod
    def read(cls, folder: Path) -> StoredAdapter:
        """Read an adapter."""
        return cls((folder / CONFIG_FILE).read_text(encoding="utf-8"), load_file(folder / WEIGHTS_FILE))

    @classmethod
    def of(cls, policy: Policy) -> StoredAdapter:
        """Return the adapter that a policy is."""
        with tempfile.TemporaryDirectory(prefix="srpo-adapter-") as folder:
            policy.save(folder)
            return cls.read(Path(folder))

    @property
    def rank(self) -> int:
        """Its rank; the highest, where layers differ."""
        config: dict[str, Any] = json.loads(self._config)
        ranks: list[int] = [config["r"], *config.get("rank_pattern", {}).values()]
        return max(ranks)

    def write(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write an adapter of the same kind with other weights."""
        folder.mkdir(parents=True)
        (folder / CONFIG_FILE).write_text(self._config, encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)


class NoChange(StoredAdapter):
    """An adapter with which a model is as it is without one: zeros, on one kind of its layers.

    Args:
        base: The model.
    """

    def __init__(self, base: SharedBase) -> None:
        weights = dict(base.linear_weights())
        kind = next(iter(weights)).rpartition(".")[2]
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "target_modules": [kind]}
        tensors: dict[str, Tensor] = {}
        for name, weight in weights.items():
            if name.rpartition(".")[2] == kind:
                num_outputs, num_inputs = weight.shape
                tensors[f"base_model.model.{name}.lora_A.weight"] = torch.zeros(1, num_inputs, dtype=weight.dtype)
                tensors[f"base_model.model.{name}.lora_B.weight"] = torch.zeros(num_outputs, 1, dtype=weight.dtype)
        super().__init__(json.dumps(config), tensors)

    def write(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write the zeros, whatever the base's tensors are."""
        super().write(folder, self.tensors)


def kernel_rank(rank: int) -> int:
    """Return the smallest rank that vLLM has kernels for and that holds adapters of a rank.

    Raises:
        EngineError: there is none.
    """
    fitting = [known for known in _KERNEL_RANKS if known >= rank]
    if not fitting:
        raise EngineError(f"vLLM holds adapters up to rank {_KERNEL_RANKS[-1]}, got {rank}")
    return fitting[0]
