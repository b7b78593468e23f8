"""Rules of known functions, roots and matrices."""

from __future__ import annotations

from fractions import Fraction

from . import vocabulary as words
from .build import determinant, scalar
from .names import Names
from .nodes import MINUS_ONE, Func, Matrix, Node, Num, Pow, Sym, Tup, Unreadable

CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "lbrace": ("rbrace",), "langle": ("rangle",)}
_MULTI_ARGUMENT = {"gcd": (1, 9), "lcm": (1, 9), "max": (1, 99), "min": (1, 99), "binomial": (2, 2)}


class Functions(Names):
    """Reads functions with their arguments, and matrices."""

    def _function(self, name: str) -> Node:
        if name == "sqrt":
            return self._root()
        exponent, base = None, None
        for _ in range(2):
            if name in ("log", "lg") and base is None and self._accept("_"):
                base = scalar(self._argument())
            elif exponent is None and self._accept("^"):
                exponent = scalar(self._nested(self._exponent))
        if exponent == MINUS_ONE and name in words.INVERSES:
            name, exponent = words.INVERSES[name], None
        node = self._applied(name, base)
        return node if exponent is None else Pow(node, exponent)

    def _applied(self, name: str, base: Node | None) -> Node:
        args = self._arguments()
        low, high = _MULTI_ARGUMENT.get(name, (1, 1))
        if name == "log" and base is None and len(args) == 2:
            args, base = args[:1], args[1]
        if not low <= len(args) <= high:
            raise Unreadable(f"arguments of {name}")
        scalars = tuple(scalar(arg) for arg in args)
        ten = Num(Fraction(10))
        if name == "exp":
            return Pow(Sym("e"), scalars[0])
        if name == "cbrt":
            return Func("root", (scalars[0], Num(Fraction(3))))
        return Func("log", (scalars[0], base or ten)) if name in ("log", "lg") else Func(name, scalars)

    def _arguments(self) -> list[Node]:
        """Read arguments in brackets, or the product that follows the function's name."""
        if self._is_op("(", "[", "lbrace"):
            opening = self._expect("(", "[", "lbrace")
            bars, self._stop_at_bar = self._stop_at_bar, 0
            items, _ = self._items()
            self._expect(CLOSERS[opening][0])
            self._stop_at_bar = bars
            return items
        if self._is_op("{"):
            inner = self._nested(self._primary)
            return list(inner.items) if isinstance(inner, Tup) else [inner]
        arg = self._signed_power()
        while (token := self._peek()) is not None and (
            token.kind in ("num", "sym")
            or (token.kind == "cmd" and token.text == "frac")
            or (token.kind == "func" and token.text == "sqrt")
        ):
            arg = self._implied(arg)
        return [arg]

    def _root(self) -> Node:
        index: Node = Num(Fraction(2))
        if self._accept("["):
            index = scalar(self._sum())
            self._expect("]")
        token = self._peek()
        if token is not None and token.kind == "num" and not token.text.isdigit():
            raise Unreadable("root of a bare decimal")
        if token is not None and token.kind == "num" and len(token.text) > 1:
            raise Unreadable("root over several digits without braces")
        if token is None or (token.kind == "op" and token.text not in ("{", "(")):
            raise Unreadable("root of nothing")
        return Func("root", (scalar(self._single()), index))

    def _matrix(self, name: str) -> Node:
        """Read the rows of a matrix environment; a final row break adds no row."""
        if name not in words.MATRIX_ENVIRONMENTS:
            raise Unreadable(f"environment {name}")
        rows: list[list[Node]] = [[]]
        while True:
            token = self._peek()
            if token is not None and token.kind == "end":
                break
            rows[-1].append(self._quantity())
            if self._accept("newline"):
                rows.append([])
            elif not self._accept("&"):
                break
        token = self._peek()
        if token is None or token.kind != "end" or token.text != name:
            raise Unreadable("matrix never closed")
        self.position += 1
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise Unreadable("ragged matrix")
        if name == "vmatrix":
            return determinant([[scalar(item) for item in row] for row in rows])
        return Matrix(tuple(Tup("(", tuple(row), ")") for row in rows))
