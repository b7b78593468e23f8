r"""From answer text to clean text: Unicode, markup and rare notations are settled here, once, before the lexer."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import vocabulary as words
from .nodes import Unreadable

MAX_CHARS = 4000
"""Longer answers are never equal to a gold, unless the text is the same."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ue000]")
_TRANSLATE = str.maketrans(dict(words.UNICODE))
_SUPERSCRIPT = re.compile("[" + "".join(words.SUPERSCRIPTS) + "]+")
_SUBSCRIPT = re.compile("[" + "".join(words.SUBSCRIPTS) + "]+")
_FULL_WIDTH = {code: code - 0xFEE0 for code in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}
_ROOT_SIGN = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z])?")
_ROOT_COMMANDS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_GROUP_COMMA = re.compile(r"\{,\}\s?|,\\!\s*")
GROUP_MARK = "\ue000"
"""Stands for a comma that groups digits; a private-use character, so that it is no white space."""
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_CONTROL_SPACE = re.compile(r"(?<!\\)\\\s+$")
_BOLD_WORDS = re.compile(r"\*\*([^\W\d_][^*]*)\*\*(?=\s)")
_FENCES = (("```", "```"), ("**", "**"), ("__", "__"), ("`", "`"), ("*", "*"), ("_", "_"), ('"', '"'), ("'", "'"))
_PROSE_NAME = r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*"
_Spelling = str | Callable[[re.Match[str]], str]
_RESPELLINGS: tuple[tuple[re.Pattern[str], _Spelling], ...] = (
    # 4.5 x 10^3: the letter x as a multiplication sign
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    # (0,1) U (2,3): the letter U as a union
    (re.compile(r"(?<=[)\]}])\s*U\s*(?=[(\[{\\])"), r"\\cup "),
    # _5C_2, {}_5C_2, ^5C_2 and {5 \choose 2}
    (re.compile(r"(?:\{\}|(?<![\w})\]]))[_^]\{?(\d+)\}?\s*C\s*_\{?(\d+)\}?(?!\d)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\{([^{}\\]+)\\choose\b([^{}]+)\}"), r"\\binom{\1}{\2}"),
    # \text{2F}_{16}: a numeral inside a prose command
    (re.compile(_PROSE_NAME + r"\{\s*([0-9A-Fa-f]+)\s*\}(?=\s*_)"), r"\1"),
    # 64 base 7
    (
        re.compile(r"(?<![\w.])\(?([0-9A-Fa-f]+)\)?\s*(?:\\text\s*\{)?\s*\(?(?:in )?base[ -](\d+|[a-z]+)\)?\}?$"),
        r"\1_{\2}",
    ),
    # (mod 7), \mod 7 and \pmod 7
    (
        re.compile(r"\(\s*(?:" + _PROSE_NAME + r"\{\s*mod\s*\}|\\?b?mod\b)([^()]*)\)"),
        lambda match: r"\pmod{" + match.group(1).strip(" ~,;:\\") + "}",
    ),
    (re.compile(r"\\pmod\s*(\w)"), r"\\pmod{\1}"),
    (re.compile(r"(\\equiv.*)\\b?mod\s*(?:\{([^{}]*)\}|(\w+))\s*$"), r"\1\\pmod{\2\3}"),
    (re.compile(r"\\mod\b"), r"\\bmod "),
)


def clean(text: str) -> str:
    r"""Return the text with Unicode spelled out and dollar signs, Markdown fences and final full stops removed.

    Raises:
        Unreadable: the text holds control or direction-changing characters.
    """
    text = _CONTROL_SPACE.sub("", text).strip()
    if _FORBIDDEN.search(text):
        raise Unreadable("control character")
    if text.startswith("~"):
        raise Unreadable("struck out, or only about right")
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda m: "^{" + "".join(words.SUPERSCRIPTS[c] for c in m.group()) + "}", text)
        text = _SUBSCRIPT.sub(lambda m: "_{" + "".join(words.SUBSCRIPTS[c] for c in m.group()) + "}", text)
        text = _ROOT_SIGN.sub(_root_command, text.translate(_TRANSLATE).translate(_FULL_WIDTH))
    return _GROUP_COMMA.sub(GROUP_MARK, _respelled(_unwrap(text)))


def _root_command(match: re.Match[str]) -> str:
    command, argument = _ROOT_COMMANDS[match.group(1)], match.group(2)
    return command + ("{" + argument + "}" if argument else " ")


def _respelled(text: str) -> str:
    """Bring notations that no grammar of single tokens can read into their common LaTeX spelling."""
    for pattern, spelling in _RESPELLINGS:
        text = pattern.sub(spelling, text)
    return text


def _unwrap(text: str) -> str:
    """Strip dollars, display brackets, Markdown fences, quotes and final punctuation until nothing changes."""
    for _ in range(12):
        before = text
        text = text.strip().rstrip(".,;").rstrip() if not text.endswith(("...", "\\,", "\\;")) else text.strip()
        if text.endswith("\\\\"):
            text = text[:-2]
        for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
            if text.startswith(opening) and text.endswith(closing):
                text = text[2:-2]
        text = _without_box(_BOLD_WORDS.sub(r"\1", text))
        for opening, closing in _FENCES:
            inner = text[len(opening) : -len(closing)]
            if len(text) > 2 * len(opening) and text.startswith(opening) and text.endswith(closing):
                text = inner if opening not in inner else text
        text = _without_dollars(text)
        if text == before:
            break
    return text


def _without_box(text: str) -> str:
    r"""Return the content of a `\boxed{...}` that is the whole text."""
    opening = _BOX.match(text)
    if opening is None:
        return text
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[opening.end() : brace.start()] if brace.end() == len(text) else text
    return text


def _without_dollars(text: str) -> str:
    """Remove unescaped dollar signs used as delimiters; a single one before a number is money."""
    if "$" not in text:
        return text
    positions = [m.start() for m in re.finditer(r"(?<!\\)\$", text)]
    if len(positions) == 1 and re.match(r"-?\$\s*[\d.]", text):
        return text.replace("$", r"\$", 1)
    kept = [char for index, char in enumerate(text) if index not in set(positions)]
    return "".join(kept)
