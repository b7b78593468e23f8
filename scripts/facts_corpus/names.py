"""Names as people write them: cleaned of markup, with the other spellings that count as right."""

from __future__ import annotations

import hashlib
import html
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence

_TAG = re.compile(r"<[^>]+>")
_LETTERS = str.maketrans({"ß": "ss", "æ": "ae", "Æ": "Ae", "ø": "o", "Ø": "O", "đ": "d", "ð": "d", "þ": "th", "ł": "l"})
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clean(text: str) -> str:
    """Return the text without markup and entities, its white space collapsed and its quotes straight."""
    text = html.unescape(_TAG.sub("", text)).replace("’", "'").replace("‘", "'")
    return " ".join(text.replace("“", '"').replace("”", '"').split())


def fold(text: str) -> str:
    """Return the text in plain letters: 'Hovgården' becomes 'Hovgarden'."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_LETTERS))
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def name_key(text: str) -> str:
    """Return what two spellings of one name share: plain lower-case letters, no punctuation, no article."""
    words = fold(text).lower().replace("-", " ").translate(_NO_PUNCTUATION).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def spellings(name: str, aliases: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the aliases, and the name and aliases in plain letters, each once and without the name itself."""
    found: dict[str, None] = {}
    for text in (name, *aliases):
        found.update({text: None, fold(text): None})
    return tuple(text for text in found if text and text != name)


def contains_name(text: str, name: str) -> bool:
    """Say whether the words of a name stand in a text one after the other."""
    key = name_key(name)
    return bool(key) and f" {key} " in f" {name_key(text)} "


def choose(options: Sequence[str], key: str) -> str:
    """Return one of the options, the same for the same key wherever and whenever it is asked."""
    return options[stable_number(key) % len(options)]


def stable_number(key: str) -> int:
    """Return a whole number below 2**64 that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def join_words(words: Sequence[str]) -> str:
    """Return 'a', 'a and b', 'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def with_article(phrase: str) -> str:
    """Return the phrase behind 'a' or 'an'."""
    return f"an {phrase}" if phrase[0].lower() in "aeiou" and not phrase.lower().startswith("uni") else f"a {phrase}"
