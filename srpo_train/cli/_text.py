"""Text of models, files and others on a terminal: shown as it is, never obeyed."""

from __future__ import annotations

from rich.text import Text

from srpo_train.reporting.tables import plain


def shown(text: object, style: str = "") -> Text:
    """Return a text for the console: no markup, lines kept, and what would steer the terminal replaced."""
    return Text("\n".join(map(plain, str(text).split("\n"))), style=style)
