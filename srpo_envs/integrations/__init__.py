"""Our environments inside other libraries, and other libraries' tasks inside our workflows: one module per library.

Nothing here is imported by `srpo_envs` itself; import the module of a library where that library is installed.
``docs/integrations.md`` says for each what works, what does not, and which version that was tested with.
"""

from __future__ import annotations

from srpo_envs.errors import MissingPackageError

__all__ = ["missing"]


def missing(package: str) -> MissingPackageError:
    """Return the error of an integration whose library is not installed."""
    return MissingPackageError(f"this integration needs {package!r}: run pip install {package!r}")
