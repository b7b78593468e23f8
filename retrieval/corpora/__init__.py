"""Corpora that ship with the package, each a folder with ``passages.jsonl.gz``."""

from __future__ import annotations

from pathlib import Path

from srpo_envs.errors import UnknownIdError, near_miss

_FOLDER = Path(__file__).parent
_FILE = "passages.jsonl.gz"


def list_corpora() -> list[str]:
    """Return the names of the shipped corpora, sorted."""
    return sorted(file.parent.name for file in _FOLDER.glob(f"*/{_FILE}"))


def corpus_path(name: str) -> Path:
    """Return the file of a shipped corpus, which `retrieval.corpus.read_corpus` reads.

    Raises:
        UnknownIdError: there is none of that name; the message names the nearest.
    """
    if name not in list_corpora():
        raise UnknownIdError(f"no corpus {name!r}{near_miss(name, list_corpora())}")
    return _FOLDER / name / _FILE
