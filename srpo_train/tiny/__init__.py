"""The embedded policy: a standard decoder of 0.1 million parameters that can play every role and still has to learn.

`checkpoint_dir` is the shipped checkpoint (recipes call it ``builtin:tiny-team``); `srpo_train.tiny.make` is the recipe
that made it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["checkpoint_dir"]


def checkpoint_dir() -> Path:
    """Return the folder of the shipped checkpoint, which ``from_pretrained`` loads without a network."""
    return Path(__file__).parent / "checkpoint"
