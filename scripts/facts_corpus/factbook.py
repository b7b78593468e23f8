"""Fields of the World Factbook, cleaned."""

from __future__ import annotations

import re
from typing import Any

from scripts.facts_corpus.names import clean

Profile = dict[str, Any]
"""What the Factbook says of one country: sections, fields, and texts with markup."""

_PERSON = re.compile(r"[^\W\d_][\w.'-]*(?: [^\W\d_][\w.'-]*){1,5}")


def read(profile: Profile, *path: str) -> str:
    """Return the cleaned text of a field, without its trailing note; empty where the profile lacks it."""
    node: Any = profile
    for name in (*path, "text"):
        node = node.get(name, {}) if isinstance(node, dict) else {}
    text = clean(node) if isinstance(node, str) else ""
    return "" if text in ("none", "NA") else re.split(r";? ?\bnote[: -]", text)[0].strip()


def person_name(text: str) -> str:
    """Return 'Mufdi Zakariah' for 'Mufdi ZAKARIAH'; empty where the text is not just one name."""
    if not _PERSON.fullmatch(text) or re.search(
        r"\b(and|or|by|from|with|the|no|none|unknown|traditional|adapted|multiple|various|lyrics|music)\b", text
    ):
        return ""
    return re.sub(r"[^\W\d_]['\w]+", lambda word: word[0].capitalize() if _is_shouted(word[0]) else word[0], text)


def _is_shouted(word: str) -> bool:
    """Say whether the Factbook has set a family name in capitals, as it does."""
    return sum(letter.isupper() for letter in word) > 1 and not word.startswith("Mc")
