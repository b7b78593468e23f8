"""Long texts of models and data sets, made fit to be shown: every character visible, no length without an end."""

from __future__ import annotations

import unicodedata

_HEAD = 0.75  # of what is kept of a long text; the rest is its end, where answers stand


def shown_text(text: str, limit: int = 0) -> str:
    """Return a text of any number of lines in which nothing hides.

    Line breaks and tabs stay. Every other control or format character, among them those that turn the direction of
    writing around, is shown by its number.

    Args:
        text: The text.
        limit: Characters to show at most; the middle of a longer text is replaced by a note. 0 shows all.

    Example:
        ``shown_text("a\\u202eb")`` is ``"a⟨U+202E⟩b"``.
    """
    if not limit or len(text) <= limit:
        return _visible(text)
    head = int(limit * _HEAD)
    tail = limit - head
    note = f"\n[… {len(text) - limit:,} of {len(text):,} characters left out …]\n"
    return _visible(text[:head]) + note + _visible(text[len(text) - tail :])


def _visible(text: str) -> str:
    return "".join(map(_character, text.replace("\r\n", "\n")))


def _character(character: str) -> str:
    if character in "\n\t":
        return character
    if character in "\r\u2028\u2029":
        return "\n"
    return f"⟨U+{ord(character):04X}⟩" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
