"""From answer text to a tree: special forms that are no formulas first, then lexer and parser, then plain text."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from . import vocabulary as words
from .cleaning import MAX_CHARS, clean
from .lexer import Lexer, Token, canonical
from .nodes import Clock, Listing, Node, Reals, SetOf, Text, Unreadable
from .parser import Parser
from .signs import expand_signs

_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_PROSE_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boldsymbol)\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*(?:\)|\.|:|\)\.|\):)?")
_CHOICE_WITH_TEXT = re.compile(r"(?:\(\s*([A-Za-z])\s*\)[.:]?|([A-Z])\s*[.:)](?=\s))\s*(\S.*)", re.DOTALL)
_NOT_ONE_CHOICE = re.compile(
    r"^(?:[,;/&、]|(?:and|or|nor)\b)|(?<![A-Za-z])\([A-Za-z]\)|\b[A-H][.)]\s|\b(?:wrong|incorrect)\b", re.IGNORECASE
)
"""What after a choice names another one or takes the choice back."""
_CHOICE_LEAD = re.compile(
    r"(?:the\s+)?(?:correct\s+)?(?:final\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*", re.IGNORECASE
)
_LETTERS = re.compile(r"[A-Za-z](?:\s*(?:,|;|and|&|\\&|、)\s*(?:and\s+)?[A-Za-z])+")
_BRACKETED_LETTER = re.compile(r"\(([A-Za-z])\)")
_EITHER = re.compile(r"[A-Za-z]\s*(?:or|/)\s*[A-Za-z]")
_WORDS_ONLY = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+|-[A-Za-z]{4,})*(?:\s+[A-Za-z]+(?:'[A-Za-z]+|-[A-Za-z]{4,})*)*")
_FUNCTION_OF_LETTER = re.compile("(?:sin|cos|tan|ln)[a-z]|" + "|".join(words.FUNCTIONS))
_LEAD_IN = re.compile("(?:" + "|".join(words.LEAD_INS) + r")\s+(?!is\b)", re.IGNORECASE)
_VOWELS = frozenset("aeiou")
_JUNK = re.compile(r"[\W_]*")


@lru_cache(maxsize=8192)
def read(text: str, *, bare_units: bool = False) -> Node:
    r"""Return the tree of an answer; what no rule can read becomes `Text`.

    Args:
        text: the content of a box.
        bare_units: read a single letter after a number as a unit, which is right when the other side has a unit.

    Raises:
        Unreadable: the text is empty, too long, or not well formed (an open brace, a command cut short).
    """
    if len(text) > MAX_CHARS:
        raise Unreadable("too long")
    cleaned = clean(text)
    if not cleaned or (_JUNK.fullmatch(cleaned) and not any(char in cleaned for char in "{}") and "\\" not in cleaned):
        raise Unreadable("empty")
    if (clock := _clock(cleaned)) is not None:
        return clock
    plain = _words_only(cleaned)
    if plain is not None:
        return plain
    tokens = _without_lead_in(Lexer(cleaned, bare_units=bare_units).run())
    if not tokens:
        raise Unreadable("empty")
    if len(tokens) > 1 and all(token.kind == "word" and token.is_prose for token in tokens):
        return _as_text(tokens)
    try:
        return expand_signs(Parser(_with_round_brackets(tokens)).read())
    except Unreadable:
        return _as_text(tokens)


def _clock(text: str) -> Clock | None:
    match = _CLOCK.fullmatch(re.sub(r"\\[ ,;]", " ", _PROSE_COMMAND.sub(r" \1", text)).replace("{:}", ":").strip())
    if match is None or not (match.group(2) or match.group(3)):
        return None
    hour, minute, meridiem = int(match.group(1)), int(match.group(2) or 0), (match.group(3) or "").lower()
    return Clock(hour, minute, meridiem + "m" if meridiem else "") if hour <= 24 and minute <= 59 else None


def _words_only(text: str) -> Node | None:
    """Read a text that is nothing but words; short runs of letters that look like variables are left to the parser."""
    if not _WORDS_ONLY.fullmatch(text):
        return None
    if (lead := _LEAD_IN.match(text)) is not None:
        return read(text[lead.end() :])
    runs = text.lower().split()
    joined = [run for run in text.split() if _FUNCTION_OF_LETTER.fullmatch(run) or run in words.GREEK or run == "pi"]
    if joined or (len(runs) == 1 and runs[0] in words.WORD_SYMBOLS) or all(len(run) == 1 for run in runs):
        return None
    if any(run in words.JOINERS for run in runs):
        return _pair_of_words(text)
    if len(runs) == 1 and _looks_like_variables(text):
        return None
    return _prose(" ".join(runs))


def _pair_of_words(text: str) -> Node | None:
    """Read `Alice and Bob` as two answers side by side."""
    parts = text.split(" and ")
    nodes = [node for part in parts if (node := _words_only(part)) is not None] if len(parts) == 2 else []
    return Listing(tuple(nodes)) if len(nodes) == 2 else None


def _looks_like_variables(run: str) -> bool:
    lower = run.lower()
    if len(run) == 2:
        return lower not in words.SMALL_WORDS
    return len(run) == 3 and (not _VOWELS & set(lower) or lower == "abc") and lower not in words.SHORT_NOUNS


def _prose(text: str) -> Node:
    """Return the node of an answer in words."""
    if text in words.EMPTY_SET:
        return SetOf(())
    return Reals() if text in words.ALL_REALS else Text(_without_article(text))


def _without_article(text: str) -> str:
    for article in ("a ", "an ", "the "):
        text = text.removeprefix(article)
    return text


def _with_round_brackets(tokens: list[Token]) -> list[Token]:
    """Turn the outward brackets of open ends, as in `]0, 1[`, into round ones."""
    changed = list(tokens)
    for index, token in enumerate(tokens):
        if token.kind != "op" or token.text not in "[]":
            continue
        before, after = tokens[index - 1] if index else None, tokens[index + 1] if index + 1 < len(tokens) else None
        neighbour = before if token.text == "]" else after
        if neighbour is None or (neighbour.kind == "op" and neighbour.text in ("cup", "cap", "in", "=")):
            changed[index] = replace(token, text="(" if token.text == "]" else ")")
    return changed


def _without_lead_in(tokens: list[Token]) -> list[Token]:
    """Drop words that only announce the value: 'the answer is', 'Answer:', 'Area ='."""
    count = 0
    while count < len(tokens) and tokens[count].kind == "word":
        count += 1
    has_value = any(token.kind not in ("word", "op") or token.text == "inf" for token in tokens[count:])
    if 0 < count < 5 and has_value and _is_label(tokens[: count + 1]):
        return tokens[count + 1 :]
    for length in range(min(count, 5), 0, -1):
        lead = " ".join(token.text.casefold() for token in tokens[:length])
        if lead in words.LEAD_INS:
            rest = tokens[length:]
            while rest and rest[0].kind == "op" and rest[0].text in (":", ",", "="):
                rest = rest[1:]
            return rest
    return tokens


def _is_label(tokens: list[Token]) -> bool:
    """Whether words and an equals sign or colon name the value that follows."""
    *labels, sign = tokens
    names = {token.text.casefold() for token in labels}
    if sign.kind != "op" or sign.text not in ("=", ":") or names & (words.NOT_A_NOUN | words.JOINERS.keys()):
        return False
    return all(len(name) > 1 or not name.isascii() for name in names)


def _as_text(tokens: list[Token]) -> Node:
    """Return the text node of a token list that is no formula.

    Raises:
        Unreadable: the list says nothing, or a command lacks its argument.
    """
    for index, token in enumerate(tokens):
        following = [item.text for item in tokens[index + 1 : index + 3]]
        wants_argument = token.kind in ("cmd", "func") and token.text in ("frac", "binom", "sqrt", *words.ACCENTS)
        if wants_argument and (not following or following[0] == "}" or following == ["{", "}"]):
            raise Unreadable("argument missing")
    if not any(token.kind != "op" for token in tokens) and not any(token.text == "inf" for token in tokens):
        raise Unreadable("nothing but signs")
    form = canonical(tokens)
    are_words = all(token.kind == "word" or (token.kind == "sym" and len(token.text) == 1) for token in tokens)
    if not are_words:
        return Text(form)
    parts = re.split(r" and ", form)
    return Listing(tuple(_prose(part) for part in parts)) if len(parts) == 2 else _prose(form.casefold())


# --- choices ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def gold_letters(text: str) -> frozenset[str] | None:
    r"""Return the letters of a gold that is a choice, such as `B`, `\text{(B)}` or `A, C`; None for any other gold."""
    plain = _plain(text)
    match = _CHOICE.fullmatch(plain)
    if match is not None:
        return frozenset(match.group(1)) if match.group(1).isupper() else None
    if _LETTERS.fullmatch(plain):
        letters = re.sub(r"and|[^A-Za-z]", "", plain)
        return frozenset(letters) if letters.isupper() and len(set(letters)) == len(letters) else None
    return None


def chosen_letters(text: str) -> frozenset[str] | None:
    r"""Return the letters an answer chooses, in upper case: `b`, `(B)`, `B. 12 cm`, `Option B`, `C, A`, `AC`.

    `A or B` chooses none.
    """
    if len(text) > MAX_CHARS:
        return None
    plain = _CHOICE_LEAD.sub("", _plain(text), count=1).strip()
    match = _CHOICE.fullmatch(plain)
    if match is not None:
        return frozenset(match.group(1).upper())
    match = _CHOICE_WITH_TEXT.fullmatch(plain)
    if match is not None and not _NOT_ONE_CHOICE.search(match.group(3)):
        return frozenset((match.group(1) or match.group(2)).upper())
    letters = _BRACKETED_LETTER.sub(r"\1", plain)
    if _LETTERS.fullmatch(letters):
        return frozenset(re.sub(r"and|[^A-Za-z]", "", letters).upper())
    if _EITHER.fullmatch(letters):
        return frozenset()
    if re.fullmatch(r"[A-H]{2,5}", plain) and len(set(plain)) == len(plain):
        return frozenset(plain)
    return None


def _plain(text: str) -> str:
    """Return the text without prose commands, dollar signs and outer marks."""
    try:
        text = clean(text)
    except Unreadable:
        return ""
    text = re.sub(r"\\(?:left|right|,|;|quad)|~", "", text)
    for _ in range(2):
        text = _PROSE_COMMAND.sub(r"\1", text)
    return text.replace("\\ ", " ").strip()
