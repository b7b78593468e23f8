"""Tests of data sets read them anew, for each puts another hub or another package in their place."""

from __future__ import annotations

import pytest

from srpo_envs.tasks import loading


@pytest.fixture(autouse=True)
def nothing_is_loaded_yet():
    loading._load.cache_clear()
