"""The shipped policies, and a run of a recipe short enough for a test."""

from __future__ import annotations

import dataclasses

import pytest

from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.arithmetic.experts import TeamHabits
from srpo_train.tiny.curriculum import Phase

_BRIEF = {"level_weights": {1: 0.1, 2: 0.6, 3: 0.3}, "learning_rate": 1e-3, "batch_size": 4, "num_episodes": 12}
BRIEF = dataclasses.replace(
    ARITHMETIC,
    phases=(
        Phase(name="first", habits=TeamHabits(), num_steps=3, **_BRIEF),
        Phase(name="second", habits=TeamHabits(bare_guess=1.0), num_steps=2, **_BRIEF),
    ),
)


@pytest.fixture(scope="session")
def make_brief():
    """A function that makes a barely trained policy in a folder and returns the report."""
    from srpo_train.tiny.make import make_tiny_policy

    return lambda folder, seed=0: make_tiny_policy(folder, BRIEF, seed, num_measured=2)


@pytest.fixture(scope="session")
def made(make_brief, tmp_path_factory):
    """Such a folder with its report; tests must leave it as it is."""
    folder = tmp_path_factory.mktemp("made") / "policy"
    return folder, make_brief(folder)


@pytest.fixture(scope="session")
def load_shipped():
    """A function that returns the policy of a shipped checkpoint; tests must leave it as it is."""
    import functools

    from srpo_train.policies import Policy

    return functools.cache(lambda name: Policy.load("team", f"builtin:{name}", device="cpu"))


@pytest.fixture(scope="session")
def shipped_policy(load_shipped):
    """The policy of the arithmetic team."""
    return load_shipped("tiny-team")


@pytest.fixture(scope="session")
def shipped_tokenizer(shipped_policy):
    return shipped_policy.tokenizer
