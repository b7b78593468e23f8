"""What an engine says of itself beyond the protocol of searching, as far as it does."""

from __future__ import annotations

from srpo_envs.search import Retriever


def fingerprint_of(retriever: Retriever) -> str:
    """Return what tells its corpus and settings apart; empty where it does not say."""
    return str(getattr(retriever, "fingerprint", None) or "")


def num_passages_of(retriever: Retriever) -> int:
    """Return the size of its corpus; 0 where it does not say."""
    return int(getattr(retriever, "num_passages", None) or 0)
