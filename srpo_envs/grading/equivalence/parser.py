r"""From tokens to a tree: a recursive-descent parser of answers, safe on any text.

The whole text must parse: a leading or trailing part that does not fit makes the answer `Unreadable` (it is then
compared as text), so `2\pi+__y` is never read as `2\pi`. Nothing is evaluated here and no text is ever executed. The
grammar is written in layers, each a class over the one below: `TokenStream`, `Names`, `Functions`, `Brackets`,
`Expressions`, `Quantities` and, on top, `Parser` with lists and statements.
"""

from __future__ import annotations

from . import vocabulary as words
from .build import scalar
from .combine import combine
from .lexer import LOGICAL
from .nodes import SCALARS, Node, Ratio, Rel, SetOp, Unreadable, quotient
from .quantities import Quantities

_RELATIONS = frozenset(("=", "<", ">", "le", "ge", "ne", "in", "approx"))


class Parser(Quantities):
    """Reads one token list; `read` is the entry."""

    def read(self) -> Node:
        """Return the tree of the whole text.

        Raises:
            Unreadable: some part of the text does not fit the grammar.
        """
        self._accept("=")
        items, joiners = self._items()
        if len(items) == 1 and self._accept("over"):
            items = [quotient(scalar(items[0]), scalar(self._sum()))]
        if self._peek() is not None:
            raise Unreadable("text after the answer")
        if self._is_logical and not all(isinstance(item, Rel) for item in items):
            raise Unreadable("sentence of logic")
        return combine(items, joiners)

    def _items(self) -> tuple[list[Node], list[str]]:
        """Read `item (separator item)*`; separators are commas, semicolons, line breaks and the words and, or."""
        items, joiners = [self._nested(self._statement)], []
        while joiner := self._separator():
            items.append(self._nested(self._statement))
            joiners.append(joiner)
        return items, joiners

    def _separator(self) -> str:
        joiner = ""
        while True:
            token = self._peek()
            if token is None:
                return joiner
            if token.kind == "op" and token.text in (",", ";", "newline") and joiner in ("", "newline"):
                joiner = token.text
            elif token.kind == "word" and token.text in words.JOINERS and joiner not in ("and", "or"):
                joiner = words.JOINERS[token.text]
                self._is_logical |= token.value == LOGICAL
            else:
                return joiner
            self.position += 1

    def _statement(self) -> Node:
        """Read one item: a value, a ratio or a chain of relations."""
        members, ops = [self._ratio()], []
        while (token := self._peek()) is not None and token.kind == "op" and token.text in _RELATIONS:
            self.position += 1
            ops.append(token.text)
            members.append(self._ratio())
        if "approx" in ops:
            cut = ops.index("approx")
            members, ops = members[: cut + 1], ops[:cut]
        return Rel(tuple(members), tuple(ops)) if ops else members[0]

    def _ratio(self) -> Node:
        parts = [self._set_expression()]
        while self._accept(":") or self._accept_word("to"):
            parts.append(self._set_expression())
        if len(parts) == 1:
            return parts[0]
        if not all(isinstance(part, SCALARS) for part in parts):
            raise Unreadable("ratio of things that are not numbers")
        return Ratio(tuple(parts))

    def _set_expression(self) -> Node:
        left = self._quantity()
        while (token := self._peek()) is not None and token.kind == "op" and token.text in ("cup", "cap", "minus"):
            self.position += 1
            left = SetOp(token.text, left, self._quantity())
        return left
