"""The embedded policy: a standard decoder of 0.1 million parameters that can play every role and still has to learn.

`checkpoint_dir` is the shipped checkpoint (recipes call it ``builtin:tiny-team``); `srpo_train.tiny.make` is the recipe
that made it.
"""

from __future__ import annotations

from pathlib import Path

from srpo_train.policies.loading import resolve_source

__all__ = ["checkpoint_dir"]


def checkpoint_dir() -> Path:
    """Return the folder of the shipped checkpoint, which ``from_pretrained`` loads without a network.

    Raises:
        PolicyLoadError: this installation left the checkpoint out.
    """
    return Path(resolve_source("tiny-team", "builtin:tiny-team"))
