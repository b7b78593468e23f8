"""The sandboxes that judges and task families share: opened when first needed, one of each kind in a process."""

from __future__ import annotations

import threading

from srpo_envs.errors import SandboxError
from srpo_envs.sandbox.sandbox import Isolation, Sandbox

_sandboxes: dict[tuple[Isolation, tuple[str, ...]], Sandbox] = {}
_lock = threading.Lock()


def open_sandbox(isolation: Isolation, packages: tuple[str, ...] = ()) -> Sandbox:
    """Return the process's sandbox of this kind; it ends with the process.

    Args:
        isolation: ``namespaces``, or knowingly the weaker ``rlimits``.
        packages: Importable packages that programs may import beside the standard library.

    Raises:
        SandboxError: programs cannot be shut in on this machine; asked again, it tries again.
    """
    with _lock:
        if (isolation, packages) not in _sandboxes:
            try:
                _sandboxes[isolation, packages] = Sandbox(isolation=isolation, packages=packages)
            except SandboxError as error:
                if isolation == "rlimits":
                    raise
                raise SandboxError(f"{error}. For an environment that is the argument isolation='rlimits'") from error
        return _sandboxes[isolation, packages]
