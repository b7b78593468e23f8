"""The embedded policies: standard decoders of 0.1 million parameters that play every role of a team and have to learn.

`checkpoint_dir` is the folder of a shipped one; recipes call them ``builtin:tiny-team``,
``builtin:tiny-searchers``, ``builtin:tiny-workflows`` and ``builtin:tiny-coders``.
`srpo_train.tiny.make` is what made them.
"""

from __future__ import annotations

from pathlib import Path

from srpo_train.policies.loading import BUILTIN_PREFIX, resolve_source

__all__ = ["checkpoint_dir"]


def checkpoint_dir(name: str = "tiny-team") -> Path:
    """Return the folder of a shipped checkpoint, which ``from_pretrained`` loads without a network.

    Args:
        name: ``tiny-team``, ``tiny-searchers``, ``tiny-workflows`` or ``tiny-coders``.

    Raises:
        ConfigError: there is no such checkpoint.
        PolicyLoadError: this installation left it out.
    """
    return Path(resolve_source(name, f"{BUILTIN_PREFIX}{name}"))
