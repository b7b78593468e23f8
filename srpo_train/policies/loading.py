"""Where a policy's weights come from: a directory, the model hub, or the package itself."""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from srpo_envs.errors import ConfigError, MissingExtraError, PolicyLoadError, near_miss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUILTIN_PREFIX = "builtin:"
_BUILTIN_NAMES = ("tiny-team", "tiny-searchers", "tiny-workflows", "tiny-coders")
BUILTIN_CHECKPOINTS = {name: f"tiny/checkpoints/{name}" for name in _BUILTIN_NAMES}
"""Checkpoints that ship inside the package, by the name that follows ``builtin:``."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_source(policy_id: str, source: str | Path) -> str:
    """Return what `from_pretrained` is given for a source: a directory or a hub id.

    Raises:
        ConfigError: a builtin checkpoint has an unknown name.
        PolicyLoadError: the source is a path and there is no such directory.
    """
    text = str(source)
    if text.startswith(BUILTIN_PREFIX):
        return str(_builtin_directory(policy_id, text.removeprefix(BUILTIN_PREFIX)))
    path = Path(text).expanduser()
    if path.is_dir():
        return str(path)
    if isinstance(source, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise PolicyLoadError(
            f"policy {policy_id!r}: expected a directory in transformers format at {text!r}, found none; "
            "give an existing directory, a hub id such as 'Qwen/Qwen3-0.6B', or 'builtin:tiny-team'"
        )
    return text


def resolve_dtype(policy_id: str, name: str) -> torch.dtype:
    """Return the torch type of a name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in DTYPES:
        raise ConfigError(f"policy {policy_id!r}: unknown dtype {name!r}{near_miss(name, DTYPES)}")
    return DTYPES[name]


def resolve_device(policy_id: str, name: str) -> torch.device:
    """Return the torch device of a name; ``auto`` is CUDA where there is one and the CPU otherwise.

    Raises:
        ConfigError: the name is not a device, or it is CUDA and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        problem = f"policy {policy_id!r}: {name!r} is not a torch device"
        raise ConfigError(f"{problem}; use 'auto', 'cpu' or 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"policy {policy_id!r}: device {name!r} was asked for, but torch sees no CUDA; use 'auto'")
    return device


def read_checkpoint(
    policy_id: str, location: str, dtype: torch.dtype, attention: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return model and tokenizer of a directory or hub id.

    Raises:
        PolicyLoadError: something is missing, damaged or cannot be reached; the library's error is its cause.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "train") from error
    is_local = Path(location).is_dir()
    try:
        with silent() if is_local else contextlib.nullcontext():  # a download may take minutes and shows its progress
            tokenizer = AutoTokenizer.from_pretrained(location)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                location, dtype=dtype, attn_implementation=attention, output_loading_info=True
            )
    # Loading crosses four libraries and perhaps a network, each with its own error classes; the cause stays chained.
    except Exception as error:
        reason = " ".join(str(error).split())  # the libraries break their messages into lines
        problem = f"policy {policy_id!r}: cannot load {location!r}"
        raise PolicyLoadError(f"{problem}; {_remedy(is_local)} ({reason})") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        # transformers would fill these with random numbers and only warn.
        raise PolicyLoadError(
            f"policy {policy_id!r}: the checkpoint {location!r} lacks {len(missing)} weights, the first is "
            f"{missing[0]!r}; it is damaged or of another architecture than its config.json says"
        )
    return model, tokenizer


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Hide the progress bars of transformers, which would tear up the trainer's own display."""
    from transformers.utils import logging

    bars: Any = logging
    if not bars.is_progress_bar_enabled():
        yield
        return
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()


def _builtin_directory(policy_id: str, name: str) -> Path:
    if name not in BUILTIN_CHECKPOINTS:
        hint = near_miss(name, BUILTIN_CHECKPOINTS)
        raise ConfigError(f"policy {policy_id!r}: there is no builtin checkpoint {name!r}{hint}")
    path = Path(str(importlib.resources.files("srpo_train"))) / BUILTIN_CHECKPOINTS[name]
    if not (path / "config.json").is_file():
        raise PolicyLoadError(
            f"policy {policy_id!r}: the builtin checkpoint {name!r} is not in this installation; "
            "make it with 'srpo make-tiny-policy' and give its directory as source"
        )
    return path


def _remedy(is_local: bool) -> str:
    if is_local:
        return "the directory needs config.json, safetensors weights and the tokenizer's files"
    return "check the hub id and the connection, or download the model once and give its directory"
