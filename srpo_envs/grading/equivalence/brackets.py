"""Rules of everything that opens and closes: groups, tuples, intervals, sets, absolute values."""

from __future__ import annotations

from . import vocabulary as words
from .build import scalar
from .combine import combine
from .functions import CLOSERS, Functions
from .lexer import Token, canonical
from .nodes import Func, Inf, Listing, Node, Reals, Rel, SetOf, Sym, Text, Tup, Unreadable, quotient


class Brackets(Functions):
    """Reads what brackets enclose."""

    def _words(self, first: Token) -> Node:
        """Read the words that name one element of a set."""
        found = [first]
        while (token := self._peek()) is not None and token.kind == "word" and token.text not in words.JOINERS:
            found.append(token)
            self.position += 1
        return Text(canonical(found))

    def _operator_primary(self, token: Token) -> Node:
        self.position += 1
        simple = {"inf": Inf(1), "reals": Reals(), "emptyset": SetOf(()), "dots": Sym("...")}
        if token.text in simple:
            return simple[token.text]
        if token.text == "{":
            return self._brace_group()
        if token.text in CLOSERS:
            return self._bracket(token.text)
        if token.text == "|":
            return self._absolute()
        if token.text in ("lfloor", "lceil"):
            inner = self._sum()
            self._expect("r" + token.text[1:])
            return Func("floor" if token.text == "lfloor" else "ceil", (scalar(inner),))
        raise Unreadable(f"sign {token.text!r}")

    def _brace_group(self) -> Node:
        r"""Read `{...}`: its content stands for itself; `{a \over b}` is a fraction, `{1, 2}` a bare set."""
        items, joiners = self._items()
        if set(joiners) - {","}:
            raise Unreadable("words inside braces")
        if len(items) == 1 and self._accept("over"):
            items = [quotient(scalar(items[0]), scalar(self._sum()))]
        self._expect("}")
        if len(items) == 1:
            return items[0]
        return Listing(tuple(items)) if any(isinstance(item, Rel) for item in items) else SetOf(tuple(items))

    def _absolute(self) -> Node:
        self._stop_at_bar += 1
        inner = self._sum()
        self._expect("|")
        self._stop_at_bar -= 1
        return Func("abs", (scalar(inner),))

    def _bracket(self, opening: str) -> Node:
        """Read what a bracket opens: a group, a tuple or interval, or a set."""
        bars, self._stop_at_bar = self._stop_at_bar, 0
        if opening == "lbrace":
            node = self._set()
        else:
            items, joiners = self._items()
            closing = self._expect(*CLOSERS[opening])
            if any(joiner in ("and", "or", "newline") for joiner in joiners):
                raise Unreadable("words inside a tuple")
            if (opening == "[" and isinstance(items[0], Inf)) or (closing == "]" and isinstance(items[-1], Inf)):
                raise Unreadable("infinity as a member of an interval")
            node = items[0] if len(items) == 1 else Tup(opening, tuple(items), closing)
            if len(items) == 1 and (
                closing != {"(": ")", "[": "]", "langle": "rangle"}[opening] or opening == "langle"
            ):
                raise Unreadable("brackets that do not match")
            if opening == "langle":
                node = Tup("(", tuple(items), ")")
        self._stop_at_bar = bars
        return node

    def _set(self) -> Node:
        if self._accept("rbrace"):
            return SetOf(())
        if self._is_builder():
            while not self._accept(":", "|"):
                self.position += 1
            items, joiners = self._items()
            self._expect("rbrace")
            return combine(items, ["and" if joiner == "," else joiner for joiner in joiners])
        self._set_depth += 1
        items, _ = self._items()
        self._expect("rbrace")
        self._set_depth -= 1
        return SetOf(tuple(items))

    def _is_builder(self) -> bool:
        """Whether the set is written `x : condition` or `x in R | condition`."""
        token = self._peek()
        if token is None or token.kind != "sym":
            return False
        return self._is_op(":", "|", ahead=1) or (
            self._is_op("in", ahead=1) and self._is_op("reals", ahead=2) and self._is_op(":", "|", ahead=3)
        )
