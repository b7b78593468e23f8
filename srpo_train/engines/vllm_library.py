"""Everything about importing vLLM: its switches, which must be set before, and what it changes in this process."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo

from srpo_envs.errors import MissingExtraError

_SWITCHES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process: weights reach it without a copy
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def import_vllm() -> Any:
    """Return the vLLM package, set up for use in the trainer's process.

    Switches that are already set in the environment stay as they are, but for the first.

    Raises:
        MissingExtraError: vLLM is not installed, or does not work with what is.
    """
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
    except (ImportError, RuntimeError) as error:  # a torchvision of another torch fails with RuntimeError
        raise MissingExtraError("vllm", "vllm") from error
    return vllm


class _Living:
    """The `LLM`s of this process: vLLM tears down what all of them share when it ends any of them."""

    def __init__(self) -> None:
        self._in_use: list[Any] = []
        self._left: list[Any] = []

    def __len__(self) -> int:
        return len(self._in_use)

    def add(self, llm: Any) -> None:
        """Keep one, so that it does not end by being forgotten."""
        self._in_use.append(llm)

    def leave(self, llm: Any) -> None:
        """End one, if it is the last; otherwise it ends with the last."""
        self._in_use.remove(llm)
        self._left.append(llm)
        if not self._in_use:
            for ended in self._left:
                ended.llm_engine.engine_core.shutdown()
            self._left.clear()


living = _Living()
"""The `LLM`s of this process."""


def is_cpu() -> bool:
    """Whether vLLM runs on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def can_sleep() -> bool:
    """Whether vLLM can give its memory back on this platform."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_sleep_mode_available())


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Undo what making an `LLM` does to torch in this process, which belongs to the trainer.

    vLLM seeds the global generators, and on a CPU puts a function that does nothing in place of
    `torch.set_num_threads`. On a CPU small functions of its would also be compiled, which takes a compiler and longer
    than they ever save a small model.
    """
    if is_cpu():
        torch._dynamo.config.disable = True
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
