"""Text of models made safe to look at: nothing in it hides, steers a terminal or a page, or is endless."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TAG = re.compile(r"</?[A-Za-z][\w-]{0,40}>|\\boxed\b")
"""What roles mark their answers with, to be set apart from the words around it."""

_JOINERS = "\u200c\u200d"  # they join and part letters and emoji, as readers of many languages expect
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text, made visible.

    Example:
        ``excerpt("abcdef", 4) == Excerpt("abcd", 2)``
    """

    text: str = ""
    """As it is shown."""
    num_omitted: int = 0
    """Characters that follow and are left out."""

    def __str__(self) -> str:
        return f"{self.text} … {self.num_omitted:,} more characters" if self.num_omitted else self.text


def excerpt(text: str, limit: int) -> Excerpt:
    """Return at most `limit` characters of a text, made visible."""
    return Excerpt(visible(text[:limit]), max(0, len(text) - limit))


def visible(text: str) -> str:
    """Return a text with every character that would act or hide rather than show replaced by a mark of what it is.

    Line breaks and tabs stay. Escape and its like become their pictures (``␛``), and controls of writing direction,
    zero-width characters, tags and halves of characters their numbers (``⟦U+202E⟧``).
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = 160) -> str:
    """Return the beginning of a text as one visible line."""
    words = " ".join(text[: 4 * limit].split())
    return visible(words if len(words) <= limit else words[: limit - 1] + "…")


def written(value: Any) -> str:
    """Return a JSON value as a person would write it down: a text as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=None if _is_flat(value) else 1, default=str)


def _visible(character: str) -> str:
    if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else f"⟦U+{code:04X}⟧"


def _is_flat(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return not any(isinstance(item, (Mapping, list, tuple)) for item in items)
