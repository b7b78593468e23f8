"""One sandbox for all tests of a module; where none can be made, the tests say why they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from srpo_envs.errors import SandboxError
from srpo_envs.sandbox import Sandbox


@pytest.fixture(scope="session")
def boxed() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(num_workers=4)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox
