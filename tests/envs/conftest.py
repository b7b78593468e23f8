"""One sandbox for all tests; where none can be made, the tests say why they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from srpo_envs.errors import SandboxError
from srpo_envs.sandbox import Sandbox, shared


@pytest.fixture(scope="session")
def boxed() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(num_workers=4)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox


@pytest.fixture
def runs_programs(boxed: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let task families run programs in the sandbox of the tests."""
    monkeypatch.setitem(shared._sandboxes, ("namespaces", ()), boxed)
