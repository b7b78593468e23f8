"""The shipped policy, and a run of the recipe short enough for a test."""

from __future__ import annotations

import pytest

from srpo_train.tiny.experts import Habits
from srpo_train.tiny.warm_start import Phase

BRIEF = (
    Phase(name="first", habits=Habits(), num_steps=3, learning_rate=1e-3, batch_size=4, num_episodes=12),
    Phase(name="second", habits=Habits(bare_guess=1.0), num_steps=2, learning_rate=1e-3, batch_size=4, num_episodes=12),
)


@pytest.fixture(scope="session")
def make_brief():
    """A function that makes a barely trained policy in a folder and returns the report."""
    from srpo_train.tiny.make import make_tiny_policy

    return lambda folder, seed=0: make_tiny_policy(folder, seed, phases=BRIEF, num_measured=2)


@pytest.fixture(scope="session")
def made(make_brief, tmp_path_factory):
    """Such a folder with its report; tests must leave it as it is."""
    folder = tmp_path_factory.mktemp("made") / "policy"
    return folder, make_brief(folder)


@pytest.fixture(scope="session")
def shipped_policy():
    """The policy of the shipped checkpoint; tests must leave it as it is."""
    from srpo_train.policies import Policy

    return Policy.load("team", "builtin:tiny-team", device="cpu")


@pytest.fixture(scope="session")
def shipped_tokenizer(shipped_policy):
    return shipped_policy.tokenizer
