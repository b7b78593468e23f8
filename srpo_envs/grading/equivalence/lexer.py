r"""From cleaned answer text to tokens.

LaTeX and plain-text mathematics share one lexer: `\sin` and `sin`, `\times`, `*` and `×` give the same tokens. A text
that is not well formed (a brace never closed, a command cut short) is `Unreadable`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from . import vocabulary as words
from .cleaning import GROUP_MARK
from .nodes import Unreadable
from .units import is_unit

LOGICAL = "logical"
"""The value of a connective written as a sign of logic."""


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of an answer.

    Kinds: `num` (value is a Fraction), `base` (value is (digits, base)), `sym`, `func`, `word`, `op`, `begin`, `end`,
    and `cmd` for a command that takes arguments or lies outside the grammar.
    """

    kind: str
    text: str
    value: object = None
    has_space: bool = False
    """Whether white space stands before the token."""
    is_prose: bool = False
    """Whether the token was inside a prose command such as `\\text`."""


# --- numbers ------------------------------------------------------------------------------------------------------

_BASE = (
    r"_\s*(?:\{\s*\(?(\d{1,2})\)?\s*\}|(\d{1,2})(?!\d)"
    r"|\{?\\(?:text|mathrm|textrm|mbox)\s*\{\s*\(?([a-z]+)\)?\s*\}\}?|\{([a-z]{3,})\})"
)
_BASED = re.compile(r"(?:\(\s*)?([0-9A-Fa-f]+)(?:\s*\))?\s*" + _BASE)
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{\s*(\d+)\s*\}|(\d))|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?|\((\d+)\)"
    r"|\s*(\\l?dots(?![a-z])|\\cdots|\.\.\.))"
)
_PERIOD = re.compile(r"(\d*?)(?:(\d{1,6}?)\2{2,}|(\d{2,6}?)\3)")
"""Three repetitions show a period, two when it has several digits."""
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?")
_SPACED = re.compile(r"\d{1,3}(?:(?: |\\,|\\ |~)\d{3})+(?![\d.])")
_MARKED = re.compile(rf"\d{{1,3}}(?:{GROUP_MARK}\d{{3}})+(?!\d)(?:\.\d+)?")
_PLAIN = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,6})(?![\dA-Za-z.])")


def _repeating(match: re.Match[str]) -> Fraction | None:
    """Return the value of a repeating decimal, None when no period can be seen."""
    whole, fixed, group, digit, dot_first, dot_mid, dot_last, bracket, dots = match.groups()
    period = group or digit or bracket or (dot_first or "") + (dot_mid or "") + (dot_last or "")
    if dots:
        found = _PERIOD.fullmatch(fixed)
        if found is None:
            return None
        fixed, period = found.group(1), found.group(2) or found.group(3)
    head = Fraction(int((whole or "0") + fixed), 10 ** len(fixed))
    return head + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def spelled(value: Fraction) -> str:
    """Return a text for a number; beyond Python's limit on decimal text it is hexadecimal."""
    is_long = max(value.numerator.bit_length(), value.denominator.bit_length()) > 12_000
    return f"{value.numerator:#x}/{value.denominator:#x}" if is_long else str(value)


def _based(match: re.Match[str]) -> tuple[str, int] | None:
    """Return (digits, base) when the digits exist in the base."""
    digits, number = match.group(1).upper(), match.group(2) or match.group(3)
    if len(digits) == 1 and digits.isalpha():
        return None
    word = match.group(4) or match.group(5)
    base = int(number) if number else words.BASE_WORDS.get(word or "", 0)
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return digits.lstrip("0") or "0", base


# --- the lexer ----------------------------------------------------------------------------------------------------

_FULL_STOP = re.compile(r"(?<!\.)\.(?![.\d])")
_SPACE = re.compile(r"(?:\s|~|\\[ ,;:!>]|\\(?=\s))+")
_COMMAND = re.compile(r"\\([A-Za-z]+\*?|.)", re.DOTALL)
_LETTERS = re.compile(r"[A-Za-z]+")
_LONG_RUN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_PROSE_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_LATIN_WORD = re.compile(r"[A-Za-z]*[\u00c0-\u024f][A-Za-z\u00c0-\u024f]*")
"""A word with an accented letter, which no variable has."""
_CJK = re.compile(r"[\u4e00-\u9fff]+")
_OPERATOR = re.compile(r"\*\*|<=|>=|!=|==|\.\.\.|\+/-|[-+*/^_!|()\[\]{},;:=<>&%'$€£¥@#?\"]")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+\*?)\}(?:\s*\{[lcr|\s]*\})?")
_ASCII_OPERATORS = {"<=": "le", ">=": "ge", "!=": "ne", "==": "=", "...": "dots", "**": "^", "+/-": "pm"}
_BRACKETS = {"(": 1, "[": 1, "lbrace": 1, "langle": 1, ")": -1, "]": -1, "rbrace": -1, "rangle": -1}


class Lexer:
    """Turns one cleaned text into tokens; `tokens` holds the result after `run`."""

    def __init__(self, text: str, *, bare_units: bool = False) -> None:
        self.text = text
        self.bare_units = bare_units
        self.position = 0
        self.tokens: list[Token] = []
        self._bracket_depth = 0
        self._brace_stack: list[str] = []
        self._arguments: list[list[int]] = []
        self._has_space = False
        self._is_prose = any(run.group() not in words.FUNCTIONS for run in _LONG_RUN.finditer(text))

    def run(self) -> list[Token]:
        """Return all tokens of the text.

        Raises:
            Unreadable: a character, a brace or a command is out of place.
        """
        while self.position < len(self.text):
            self._step()
        if self._brace_stack:
            raise Unreadable("brace never closed")
        return self.tokens

    def _step(self) -> None:
        char = self.text[self.position]
        if self._take(_SPACE):
            self._has_space = True
        elif (char.isdigit() and char.isascii()) or char == "." or char in "ABCDEFabcdef(":
            if not self._number() and not self._letters() and not self._operator():
                raise Unreadable("stray full stop")
        elif char == "\\":
            self._command()
        elif not self._letters() and not self._operator():
            raise Unreadable(f"character {char!r}")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def _emit(self, kind: str, text: str, value: object = None, *, is_prose: bool = False) -> None:
        self.tokens.append(Token(kind, text, value, self._has_space, is_prose))
        self._has_space = False
        self._count_argument(kind, text)

    def _count_argument(self, kind: str, text: str) -> None:
        """Keep track of the unbraced arguments that a fraction still waits for: they are single digits."""
        depth = len(self._brace_stack)
        if kind == "cmd" and text in ("frac", "binom"):
            self._arguments.append([depth, 2])
        elif self._arguments and self._arguments[-1][0] == depth and text != "{":
            self._arguments[-1][1] -= 1
            if self._arguments[-1][1] == 0:
                self._arguments.pop()

    @property
    def _wants_digit(self) -> bool:
        return bool(self._arguments) and self._arguments[-1][0] == len(self._brace_stack)

    def _number(self) -> bool:
        """Read a number at the position, with its grouping, period, exponent or base."""
        text, start = self.text, self.position
        if self._wants_digit and text[start].isdigit():
            self.position += 1
            self._emit("num", text[start], Fraction(int(text[start])))
            return True
        if (match := _BASED.match(text, start)) and (based := _based(match)) and not self._follows_letter():
            self.position = match.end()
            self._emit("base", f"{based[0]}_{based[1]}", based)
            return True
        if (match := _REPEATING.match(text, start)) and (value := _repeating(match)) is not None:
            self.position = match.end()
            self._emit("num", spelled(value), value)
            return True
        patterns = (_MARKED, _SPACED, _GROUPED, _PLAIN) if self._bracket_depth == 0 else (_MARKED, _PLAIN)
        match = next((found for pattern in patterns if (found := pattern.match(text, start))), None)
        if match is None:
            return False
        self.position = match.end()
        self._emit_number(re.sub(r"[^\d.]", "", match.group().replace("\\", "")))
        return True

    def _follows_letter(self) -> bool:
        return self.position > 0 and self.text[self.position - 1].isalpha()

    def _emit_number(self, digits: str) -> None:
        exponent = self._take(_EXPONENT)
        value = Fraction(digits if digits[0] != "." else "0" + digits)
        if exponent is not None:
            power = int(exponent.group(1))
            if abs(power) > 5000:
                raise Unreadable("exponent out of range")
            value *= Fraction(10) ** power
        self._emit("num", spelled(value), value)

    def _letters(self) -> bool:
        """Read a run of letters: a function, a constant, a word, a unit, or variables side by side."""
        if match := self._take(_CJK):
            self._emit("word", match.group(), is_prose=True)
            return True
        if match := self._take(_LATIN_WORD):
            self._emit("word", match.group().casefold(), is_prose=True)
            return True
        char = self.text[self.position]
        if char in words.GREEK_LETTERS:
            self.position += 1
            self._emit("sym", words.GREEK_LETTERS[char])
            return True
        match = self._take(_LETTERS)
        if match is None:
            return self._foreign_word()
        self._emit_run(match.group())
        return True

    def _foreign_word(self) -> bool:
        match = self._take(_PROSE_WORD)
        if match is not None:
            self._emit("word", match.group().casefold(), is_prose=True)
        return match is not None

    def _emit_run(self, run: str) -> None:
        lower = run.lower()
        if run in words.FUNCTIONS:
            self._emit("func", words.FUNCTIONS[run])
        elif run == "pi" or run in words.GREEK:
            self._emit("sym", run)
        elif lower in words.WORD_SYMBOLS:
            self._emit("op", "inf")
        elif lower in words.JOINERS or len(run) > 3 or self._is_short_word(lower) or self._is_bare_word(run):
            self._emit_long_run(run)
        else:
            for letter in run:
                self._emit("sym", letter)

    def _emit_long_run(self, run: str) -> None:
        """Emit a word; `sinx` is a function of x."""
        for name in ("sin", "cos", "tan", "ln"):
            if run.startswith(name) and len(run) == len(name) + 1:
                self._emit("func", name)
                self._emit("sym", run[-1])
                return
        self._emit("word", run.lower() if not is_unit(run) else run)

    def _is_short_word(self, run: str) -> bool:
        """Whether a run of two or three letters is an English word among longer ones."""
        return self._is_prose and not self._brace_stack and (run in words.SMALL_WORDS or run in words.SHORT_WORDS)

    def _is_bare_word(self, run: str) -> bool:
        """Whether a short run after a number is a unit or a noun rather than variables."""
        if not self.tokens or (self.tokens[-1].kind == "op" and self.tokens[-1].text not in (")", "}", "/")):
            return False
        if len(run) == 1:
            return self.bare_units and is_unit(run)
        is_noun = run.lower() in words.SHORT_NOUNS or run.lower().rstrip("s") in words.SHORT_NOUNS
        return is_unit(run) or (is_noun and self._has_space)

    def _operator(self) -> bool:
        if self.text[self.position] == GROUP_MARK:
            self.position += 1
            self._emit("op", ",")
            return True
        match = self._take(_OPERATOR)
        if match is None:
            return False
        self._emit_operator(_ASCII_OPERATORS.get(match.group(), match.group()))
        return True

    def _emit_operator(self, name: str) -> None:
        if name == "{":
            self._emit("op", name)
            self._brace_stack.append(name)
            return
        if name == "}":
            if not self._brace_stack:
                raise Unreadable("brace never opened")
            self._brace_stack.pop()
            while self._arguments and self._arguments[-1][0] > len(self._brace_stack):
                raise Unreadable("command cut short")
        self._bracket_depth += _BRACKETS.get(name, 0)
        self._emit("op", name)

    def _command(self) -> None:
        """Read a backslash command."""
        if match := self._take(_ENVIRONMENT):
            if match.group(2) not in words.LAYOUT_ENVIRONMENTS:
                self._emit(match.group(1), match.group(2))
            return
        match = self._take(_COMMAND)
        if match is None:
            raise Unreadable("backslash at the end")
        name = match.group(1)
        if name in words.TEXT_WRAPPERS or (name == "rm" and self.text.startswith("{", self.position)):
            self._prose()
        elif name in words.SPACES:
            self._has_space = True
        elif name in words.DROPPED_ARGUMENT:
            self._group()
        elif name == "mathbb":
            self._emit("op" if (letter := self._group()) == "R" else "sym", "reals" if letter == "R" else letter)
        elif name == "operatorname":
            self._emit_run(self._group())
        elif name in words.MATH_WRAPPERS:
            if name in ("left", "right") and self.text.startswith(".", self.position):
                self.position += 1
        else:
            self._emit_command(name)

    def _emit_command(self, name: str) -> None:
        if name in words.OPERATORS:
            self._emit_operator(words.OPERATORS[name])
        elif name in ("{", "}", "|"):
            self._emit_operator({"{": "lbrace", "}": "rbrace", "|": "norm"}[name])
        elif name == "&":
            self._emit("word", "and")
        elif name in "%$#_":
            self._emit("op", "\\" + name if name in "#_" else name)
        elif name in ("\\", "newline", "cr"):
            self._emit("op", "newline")
        elif name in ("frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"):
            self._emit("cmd", "frac")
        elif name in ("binom", "dbinom", "tbinom"):
            self._emit("cmd", "binom")
        elif name in words.FUNCTIONS:
            self._emit("func", words.FUNCTIONS[name])
        elif name == "pi" or name in words.GREEK or name in words.SYMBOL_COMMANDS:
            self._emit("sym", "P" if name == "Pr" else name)
        elif name == "infty":
            self._emit("op", "inf")
        elif name in ("emptyset", "varnothing"):
            self._emit("op", "emptyset")
        elif name in words.CONNECTIVES:
            self._emit("word", words.CONNECTIVES[name], LOGICAL)
        elif name in words.ACCENTS:
            self._emit("cmd", words.SAME_ACCENT.get(name, name))
        else:
            self._emit("cmd", "\\" + name)

    def _group(self) -> str:
        """Take one argument as raw text: a brace group or one character."""
        self._take(_SPACE)
        if not self.text.startswith("{", self.position):
            if self.position >= len(self.text):
                raise Unreadable("command cut short")
            self.position += 1
            return self.text[self.position - 1]
        depth, start = 0, self.position
        for match in re.finditer(r"\\.|[{}]", self.text[start:], re.DOTALL):
            depth += {"{": 1, "}": -1}.get(match.group(), 0)
            if depth == 0:
                self.position = start + match.end()
                return self.text[start + 1 : self.position - 1]
        raise Unreadable("brace never closed")

    def _prose(self) -> None:
        """Read the argument of a prose command: words stay whole, digits and signs are read as usual."""
        content = self._group()
        depth = self._bracket_depth
        inner = ProseLexer(content, bracket_depth=depth)
        found = inner.run()
        if content[:1].isspace() or (content[:1] == "~"):
            self._has_space = True
        for token in found:
            self._has_space = self._has_space or token.has_space
            self._emit(token.kind, token.text, token.value, is_prose=True)
        self._has_space = content[-1:].isspace()


class ProseLexer(Lexer):
    """Lexer of prose: every run of letters is a word, `$...$` is transparent."""

    def __init__(self, text: str, *, bracket_depth: int) -> None:
        super().__init__(re.sub(r"(?<!\\)\$", "", text))
        self._bracket_depth = bracket_depth

    def _step(self) -> None:
        if self._take(_FULL_STOP) is None:
            super()._step()

    def _letters(self) -> bool:
        if match := self._take(_CJK):
            self._emit("word", match.group(), is_prose=True)
            return True
        match = self._take(_PROSE_WORD)
        if match is None:
            return False
        word = match.group()
        if word.lower() in ("infinity", "infty"):
            self._emit("op", "inf")
            return True
        if word == self.text.strip() and word in words.PROSE_FUNCTIONS:
            self._emit("func", words.FUNCTIONS[word])
            return True
        self._emit("word", word if is_unit(word) or len(word) == 1 else word.casefold(), is_prose=True)
        return True


def canonical(tokens: list[Token]) -> str:
    """Return the spelling-independent form of a token list: two texts with the same form are the same answer."""
    parts: list[str] = []
    for index, token in enumerate(tokens):
        if token.text == "{" and index + 2 < len(tokens) and tokens[index + 2].text == "}" and token.kind == "op":
            continue
        if token.text == "}" and index >= 2 and tokens[index - 2].text == "{" and token.kind == "op":
            continue
        parts.append(token.text.casefold() if token.kind == "word" else token.text)
    return " ".join(parts)
