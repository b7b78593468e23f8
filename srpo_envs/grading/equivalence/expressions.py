"""Rules of arithmetic: sums, products, powers, and which item comes next."""

from __future__ import annotations

from fractions import Fraction

from .brackets import Brackets
from .build import add, divide, multiply, scalar
from .nodes import MINUS_ONE, BaseNumber, Func, Matrix, Mul, Node, PlusMinus, Pow, Unreadable, negative


class Expressions(Brackets):
    """Reads sums down to single items."""

    def _sum(self) -> Node:
        terms = [self._signed_term()]
        while self._is_op("+", "-", "pm", "mp"):
            terms.append(self._signed_term())
        return terms[0] if len(terms) == 1 else add(terms)

    def _signed_term(self) -> Node:
        is_negative, plus_minus = False, 0
        while (token := self._peek()) is not None and token.kind == "op" and token.text in ("+", "-", "pm", "mp"):
            self.position += 1
            if token.text in ("pm", "mp"):
                plus_minus = 1 if token.text == "pm" else -1
            is_negative ^= token.text == "-"
        term = self._term()
        if is_negative:
            term = multiply(MINUS_ONE, term) if isinstance(term, Matrix) else negative(term)
        return PlusMinus(term, plus_minus) if plus_minus else term

    def _term(self) -> Node:
        """Read a product: explicit or implied multiplication and division, left to right."""
        factor = self._power()
        while True:
            if self._accept("*"):
                factor = multiply(factor, self._signed_power())
            elif self._is_op("/") and not self._is_word(1):
                self.position += 1
                factor = divide(factor, self._signed_power())
            elif self._accept("mod"):
                factor = Func("mod", (scalar(factor), scalar(self._power())))
            elif self._starts_factor() and not self._starts_scale(factor):
                factor = self._implied(factor)
            else:
                return factor

    def _signed_power(self) -> Node:
        is_negative = False
        while self._is_op("+", "-"):
            is_negative ^= self._expect("+", "-") == "-"
        value = self._power()
        return negative(value) if is_negative else value

    def _implied(self, factor: Node) -> Node:
        """Multiply by the factor that follows without a sign; numbers follow only powers, as in `2^3 5^2`, `3!2!`."""
        token = self._peek()
        last = factor.factors[-1] if isinstance(factor, Mul) else factor
        are_factorials = isinstance(last, Func) and last.name == "factorial" and self._is_op("!", ahead=1)
        if token is not None and token.kind in ("num", "base") and not (isinstance(last, Pow) or are_factorials):
            raise Unreadable("number after a value without a sign")
        return multiply(factor, self._power())

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token is None:
            return False
        if token.kind == "op":
            is_bar = token.text == "|" and not self._stop_at_bar
            return is_bar or token.text in ("(", "[", "{", "lfloor", "lceil", "langle")
        if token.kind == "word":
            return token.text in ("e", "i")
        return token.kind in ("num", "base", "sym", "func", "begin") or (token.kind == "cmd" and token.text[0] != "\\")

    def _power(self) -> Node:
        base = self._nested(self._primary)
        while True:
            if self._accept("!"):
                if self._is_op("!"):
                    raise Unreadable("double factorial")
                base = Func("factorial", (scalar(base),))
            elif self._accept("degree"):
                base = Func("deg", (scalar(base),))
            elif self._accept("^"):
                base = self._raised(base)
            else:
                return base

    def _raised(self, base: Node) -> Node:
        if self._accept_raised("circ"):
            return Func("deg", (scalar(base),))
        if self._is_op("{") and self._is_op("'", ahead=1):
            raise Unreadable("prime of a value")
        return Pow(scalar(base), scalar(self._nested(self._exponent)))

    def _accept_raised(self, name: str) -> bool:
        """Accept an operator as an exponent, with or without braces."""
        if self._is_op(name):
            self.position += 1
            return True
        if self._is_op("{") and self._is_op(name, ahead=1) and self._is_op("}", ahead=2):
            self.position += 3
            return True
        return False

    def _exponent(self) -> Node:
        is_negative = False
        while self._is_op("+", "-"):
            is_negative ^= self._expect("+", "-") == "-"
        value = self._single()
        if self._accept("^"):
            value = Pow(scalar(value), scalar(self._nested(self._exponent)))
        elif self._accept("!"):
            value = Func("factorial", (scalar(value),))
        return negative(value) if is_negative else value

    def _primary(self) -> Node:
        token = self._peek()
        if token is None:
            raise Unreadable("answer cut short")
        if token.kind == "op":
            return self._operator_primary(token)
        self.position += 1
        if token.kind == "num":
            assert isinstance(token.value, Fraction)
            return self._mixed(token)
        if token.kind == "base":
            assert isinstance(token.value, tuple)
            return BaseNumber(*token.value)
        if token.kind == "sym" or (token.kind == "word" and len(token.text) == 1):
            return self._symbol(token.text)
        if token.kind == "func":
            return self._function(token.text)
        if token.kind == "begin":
            return self._matrix(token.text)
        if token.kind == "cmd":
            return self._command(token.text)
        if self._set_depth:
            return self._words(token)
        raise Unreadable(f"word {token.text!r}")
