"""A tiny random policy, shared by the tests of policies and engines.

Its vocabulary is small on purpose: random responses then contain stop texts, end-of-sequence tokens and pieces that
encode differently when their text is read again (``a`` + ``b`` becomes ``ab``), which real models do rarely.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import build_model, build_tokenizer


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """A directory in transformers format."""
    directory = tmp_path_factory.mktemp("tiny_checkpoint")
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("?")]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_policy(tiny_checkpoint):
    """The policy of that directory, in float32 on the CPU; tests must leave it as it is."""
    from srpo_train.policies import Policy

    return Policy.load("tiny", tiny_checkpoint, device="cpu")


@pytest.fixture(scope="session")
def dropout_policy():
    """A policy whose model was configured with attention dropout."""
    from srpo_train.policies import Policy

    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), attention_dropout=0.5)
    return Policy(policy_id="dropout", model=model, tokenizer=tokenizer)
