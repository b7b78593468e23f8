"""LoRA adapters in vLLM: several policies over one base, which is there once.

Each policy has an engine of its own; they share a host. An adapter is published under a name that holds its version,
because vLLM keeps what it knows of an adapter, blocks of its prefix cache among it, by name: a name that is used again
may bring back what is long out of date.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_train.engines.adapters import StoredAdapter
from srpo_train.engines.publishing import WeightSpecs
from srpo_train.engines.vllm_host import VllmHost

BASE_VERSION = 0
"""Version under which a base is pushed, once and for all."""


class AdapterWeights:
    """What the engine of an adapter publishes: see `srpo_train.engines.vllm.Weights`.

    Args:
        policy_id: The adapter's policy.
        host: Holds the base.
        number: Place of the adapter there, from 1.
        adapter: The adapter as it is now; every push is held against it.
    """

    def __init__(self, policy_id: str, host: VllmHost, number: int, adapter: StoredAdapter) -> None:
        self._policy_id = policy_id
        self._host = host
        self._number = number
        self._adapter = adapter
        self._specs = WeightSpecs(policy_id, adapter.tensors.items())
        self._folder = tempfile.TemporaryDirectory(prefix="srpo-adapter-")
        self.lora: Any = None
        """vLLM's name for the published version."""

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Load a version of the adapter in the place of the last one, and return its bytes."""
        from vllm.lora.request import LoRARequest

        tensors = self._specs.check(version, weights)
        name = f"{self._policy_id}@{version}"
        folder = Path(self._folder.name) / name
        shutil.rmtree(folder, ignore_errors=True)  # a version may be published again, as when a run is evaluated
        self._adapter.write(folder, tensors)
        before = self.lora
        self._host.load_adapter(LoRARequest(name, self._number, str(folder), load_inplace=before is not None))
        self.lora = LoRARequest(name, self._number, str(folder))
        if before is not None and before.lora_path != str(folder):
            shutil.rmtree(before.lora_path)
        return self._specs.num_bytes

    def stamp(self, version: int) -> str:
        """Return the base's version, which is all that vLLM stamps."""
        return str(BASE_VERSION)

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()


class BaseWeights:
    """What the engine of a policy that is the base itself publishes: nothing, for adapters stand on it."""

    lora = None

    def __init__(self, policy_id: str) -> None:
        self._policy_id = policy_id

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Refuse.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"policy {self._policy_id!r} is the base of adapters in one vLLM, so its weights stay as they are; "
            "nothing has moved"
        )

    def stamp(self, version: int) -> str:
        """Return the base's version."""
        return str(BASE_VERSION)

    def close(self) -> None:
        """Do nothing."""
