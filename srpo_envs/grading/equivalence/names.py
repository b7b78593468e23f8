"""Rules of single items: mixed numbers, symbols with their subscripts, unknown functions, fractions and accents."""

from __future__ import annotations

from fractions import Fraction

from . import vocabulary as words
from .build import scalar
from .lexer import Token, canonical
from .nodes import Func, Mul, Node, Num, Sym, Text, Unreadable, quotient
from .token_stream import TokenStream

_UNKNOWN_FUNCTIONS = frozenset(["f", "g", "h", "F", "G", "H", "P", "u"])


class Names(TokenStream):
    """Reads numbers and names."""

    def _mixed(self, token: Token) -> Node:
        """Read a number, and the proper fraction that makes it a mixed number."""
        assert isinstance(token.value, Fraction)
        whole = Num(token.value)
        if not token.text.isdigit():
            return whole
        parts = self._whole_fraction()
        if parts is None:
            return whole
        numerator, denominator, length = parts
        if not 0 < numerator < denominator:
            raise Unreadable("mixed number with an improper fraction")
        self.position += length
        if self._is_op("^", "/", "!"):
            raise Unreadable("mixed number cut short")
        return Num(token.value + Fraction(numerator, denominator))

    def _whole_fraction(self) -> tuple[int, int, int] | None:
        """Return numerator, denominator and token count of a fraction of whole numbers at the position."""
        token = self._peek()
        if token is not None and token.kind == "cmd" and token.text == "frac":
            numbers, length = [], 1
            for _ in range(2):
                braced = self._is_op("{", ahead=length)
                number = self._whole_number(length + braced)
                if number is None or (braced and not self._is_op("}", ahead=length + 2)):
                    return None
                numbers.append(number)
                length += 3 if braced else 1
        elif token is not None and token.kind == "num" and token.has_space and self._is_op("/", ahead=1):
            found = self._whole_number(0), self._whole_number(2)
            if None in found:
                return None
            numbers, length = [number for number in found if number is not None], 3
        else:
            return None
        return numbers[0], numbers[1], length

    def _whole_number(self, ahead: int) -> int | None:
        token = self._peek(ahead)
        return int(token.text) if token is not None and token.kind == "num" and token.text.isdigit() else None

    def _symbol(self, name: str) -> Node:
        """Read a symbol with its subscript and primes, or an unknown function applied to something."""
        if name == "angle":
            return Sym(self._angle())
        name += self._subscript()
        if name in _UNKNOWN_FUNCTIONS and self._accept_inverse():
            name += "^-1"
        while self._accept("'") or (self._is_op("^") and self._is_prime(1) and self._skip_prime()):
            name += "'"
        if name in ("C", "P") and self._is_op("(") and (pair := self._two_numbers()) is not None:
            chosen = Func("binomial", pair)
            return chosen if name == "C" else Mul((chosen, Func("factorial", (pair[1],))))
        if self._is_op("(") and self._is_application(name):
            return Func(":" + name, self._applied_to(is_probability=name == "P"))
        return Sym(name)

    def _applied_to(self, *, is_probability: bool) -> tuple[Node, ...]:
        """Read the arguments of an unknown function; a probability may have a condition after a bar."""
        self._expect("(")
        self._stop_at_bar += is_probability
        items, _ = self._items()
        self._stop_at_bar -= is_probability
        if is_probability and self._accept("|"):
            items += [Text("given"), *self._items()[0]]
        self._expect(")")
        return tuple(items)

    def _angle(self) -> str:
        """Read the points of an angle as one name, the same from either side."""
        points = ""
        while (token := self._peek()) is not None and token.kind == "sym" and token.text.isupper():
            points += token.text
            self.position += 1
        return f"angle {min(points, points[::-1])}".rstrip()

    def _accept_inverse(self) -> bool:
        r"""Accept `^{-1}` in front of a bracket, as in `f^{-1}(x)`."""
        signs = [token.text for token in self.tokens[self.position : self.position + 6]]
        if signs != ["^", "{", "-", "1", "}", "("]:
            return False
        self.position += 5
        return True

    def _is_prime(self, ahead: int) -> bool:
        return self._is_op("'", ahead=ahead) or (self._is_op("{", ahead=ahead) and self._is_op("'", ahead=ahead + 1))

    def _skip_prime(self) -> bool:
        self.position += 1
        self._accept("{")
        self._accept("'")
        while self._accept("'"):
            pass
        self._accept("}")
        return True

    def _two_numbers(self) -> tuple[Node, Node] | None:
        first, second = self._whole_number(1), self._whole_number(3)
        if first is None or second is None or not self._is_op(",", ahead=2) or not self._is_op(")", ahead=4):
            return None
        self.position += 5
        return Num(Fraction(first)), Num(Fraction(second))

    def _is_application(self, name: str) -> bool:
        """Whether `name(` applies a function: f, g, h and the like, `I(0)`, or anything in front of an equals sign."""
        if name in ("pi", "e", "i"):
            return False
        if name.rstrip("'").split("_")[0].removesuffix("^-1") in _UNKNOWN_FUNCTIONS or name.endswith("'"):
            return True
        if self._whole_number(1) is not None and self._is_op(")", ahead=2):
            return True
        end = 1
        while self._is_simple(end) or self._is_op(",", ahead=end):
            end += 1
        return end > 1 and self._is_op(")", ahead=end) and self._is_op("=", ahead=end + 1)

    def _is_simple(self, ahead: int) -> bool:
        token = self._peek(ahead)
        return token is not None and token.kind in ("sym", "num", "word")

    def _subscript(self) -> str:
        """Read `_x` or `_{...}` as part of a name."""
        if not self._accept("_"):
            return ""
        token = self._peek()
        if token is None:
            raise Unreadable("subscript cut short")
        if not self._is_op("{"):
            if token.kind not in ("num", "sym", "word", "func", "cmd") or token.text == "frac":
                raise Unreadable("subscript")
            self.position += 1
            return "_" + token.text
        start, depth = self.position + 1, 0
        while True:
            token = self._peek()
            if token is None:
                raise Unreadable("subscript cut short")
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "op" else 0
            self.position += 1
            if depth == 0:
                break
        inside = canonical(self.tokens[start : self.position - 1])
        if not inside:
            raise Unreadable("empty subscript")
        return "_" + inside

    def _command(self, name: str) -> Node:
        if name == "frac":
            return self._fraction()
        if name == "binom":
            return Func("binomial", (scalar(self._argument()), scalar(self._argument())))
        if name in words.ACCENTS:
            start = self.position
            self._argument()
            return self._symbol(f"{name}:{canonical(self.tokens[start : self.position]).strip('{} ')}")
        raise Unreadable(f"command {name}")

    def _fraction(self) -> Node:
        start = self.position
        numerator = scalar(self._argument())
        middle = self.position
        denominator = scalar(self._argument())
        if self._is_differential(start, middle) and self._is_differential(middle, self.position):
            return Func(":derivative", (numerator, denominator))
        return quotient(numerator, denominator)

    def _is_differential(self, start: int, end: int) -> bool:
        r"""Whether tokens spell `{d y}` or `{\partial x}`."""
        inside = [token for token in self.tokens[start:end] if token.text not in "{}"]
        return len(inside) >= 1 and inside[0].kind in ("sym", "word") and inside[0].text in ("d", "partial")

    def _argument(self) -> Node:
        """Read one argument of a command: a brace group or a single item."""
        token = self._peek()
        if token is None or token.kind == "word" or (token.kind == "op" and token.text != "{"):
            raise Unreadable("argument missing")
        return self._single()

    def _single(self) -> Node:
        r"""Read one item; a bare number ends there, so `2^3\frac12` and `\log_2\frac12` hold no mixed number."""
        token = self._peek()
        if token is None or token.kind != "num":
            return self._nested(self._primary)
        assert isinstance(token.value, Fraction)
        self.position += 1
        return Num(token.value)
