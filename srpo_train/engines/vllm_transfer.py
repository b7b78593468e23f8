"""How tensors get into vLLM's model: its weight-transfer interface, with reloading as the fallback.

vLLM's interface leaves the transport to an engine that is registered under a name. Ours needs none: in one process the
worker takes the trainer's tensors as they are. Workers in processes of their own read them from a file instead.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from srpo_train.engines.publishing import PushProgress

BACKEND = "srpo"
"""Name of our end in vLLM's registry of weight-transfer engines, for vLLM in this process."""
SERVED_BACKEND = "srpo_buckets"
"""The same for servers."""

_SHARED_MEMORY = Path("/dev/shm")


def transfer_options() -> dict[str, Any]:
    """Return the arguments of `LLM` that the weight-transfer interface needs; none where this vLLM lacks it."""
    try:
        from vllm.config import WeightTransferConfig

        register(BACKEND, "WeightReceiver")
    except ImportError:
        return {}
    return {"weight_transfer_config": WeightTransferConfig(backend=BACKEND)}


def register(backend: str, receiver: str) -> None:
    """Give vLLM a class of `srpo_train.engines.vllm_receiver` under a name; once for each process.

    Raises:
        ImportError: this vLLM has no weight-transfer interface.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if backend not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(backend, "srpo_train.engines.vllm_receiver", receiver)


def transfer(llm: Any, weights: PushProgress) -> None:
    """Put tensors into the model through vLLM's weight-transfer interface."""
    llm.start_weight_update()
    llm.update_weights({"update_info": {"weights": weights}})
    llm.finish_weight_update()


def reload(llm: Any, weights: PushProgress) -> None:
    """Put tensors into the model of a worker in this process, without the weight-transfer interface."""
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})


def reload_from_file(llm: Any, weights: PushProgress) -> None:
    """Put tensors into the models of workers in other processes, through a file that lies in memory where it can."""
    from safetensors.torch import save_file

    place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="srpo-weights-", dir=place) as folder:
        path = Path(folder) / "weights.safetensors"
        # Tied tensors share their memory, which the format refuses.
        copies = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights}
        save_file(copies, path)
        weights.follow(Path(folder))
        llm.collective_rpc(functools.partial(_reload_worker, path=path))


def stamp(llm: Any, version: int) -> None:
    """Let vLLM write a version on what it samples from now on; without effect where this vLLM cannot."""
    if hasattr(llm, "update_weight_version"):
        llm.update_weight_version(str(version))


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file, read one by one as they are asked for."""

    def __init__(self, path: Path) -> None:
        import safetensors

        opened: Any = safetensors.safe_open
        self._file = opened(path, framework="pt")
        self._names: list[str] = list(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _reload_worker(worker: Any, path: Path) -> None:
    """Take a push; runs in each worker."""
    progress = PushProgress(StoredTensors(path), worker.rank, path.parent)
    try:
        worker.reload_weights(weights_iterator=progress)
    except Exception as error:  # whatever it is, the trainer has to know where
        raise RuntimeError(f"{progress}: {error}") from error
