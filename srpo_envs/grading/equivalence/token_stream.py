"""The tokens of one answer and the place reached in them: what every rule of the grammar is built on."""

from __future__ import annotations

from collections.abc import Callable

from .lexer import Token
from .nodes import Node, Unreadable

MAX_DEPTH = 60
"""Nesting beyond this is unreadable, long before Python's own stack ends."""


class TokenStream:
    """A token list with a position, and the rules that the layers of the grammar need from the layers above them."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self._depth = 0
        self._stop_at_bar = 0
        self._set_depth = 0
        self._is_logical = False

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def _is_op(self, *names: str, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.kind == "op" and token.text in names

    def _accept(self, *names: str) -> bool:
        if self._is_op(*names):
            self.position += 1
            return True
        return False

    def _accept_word(self, name: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "word" or token.text != name:
            return False
        self.position += 1
        return True

    def _is_word(self, ahead: int) -> bool:
        token = self._peek(ahead)
        return token is not None and token.kind == "word"

    def _expect(self, *names: str) -> str:
        token = self._peek()
        if token is None or token.kind != "op" or token.text not in names:
            raise Unreadable(f"expected {' or '.join(names)}")
        self.position += 1
        return token.text

    def _nested(self, read: Callable[[], Node]) -> Node:
        """Run a rule one level deeper."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        node = read()
        self._depth -= 1
        return node

    # --- rules of higher layers ---

    def _items(self) -> tuple[list[Node], list[str]]:
        raise NotImplementedError

    def _quantity(self) -> Node:
        raise NotImplementedError

    def _starts_scale(self, value: Node) -> bool:
        raise NotImplementedError

    def _sum(self) -> Node:
        raise NotImplementedError

    def _signed_power(self) -> Node:
        raise NotImplementedError

    def _implied(self, factor: Node) -> Node:
        raise NotImplementedError

    def _exponent(self) -> Node:
        raise NotImplementedError

    def _primary(self) -> Node:
        raise NotImplementedError
