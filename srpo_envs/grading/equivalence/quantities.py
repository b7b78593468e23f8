"""Rules of values with a unit, a currency, a percent or degree sign, or a noun."""

from __future__ import annotations

from . import vocabulary as words
from .build import degrees
from .expressions import Expressions
from .lexer import Token
from .nodes import SCALARS, Func, Node, Num, Quantity, Unreadable, negative
from .units import CURRENCIES, DEGREE, PERCENT, Unit, find_unit, noun, power, product


class Quantities(Expressions):
    """Reads values with what may stand around them."""

    def _quantity(self) -> Node:
        """Read a value with what may stand around it: a currency, a percent or degree sign, a unit, a noun."""
        is_negative = self._is_op("-") and self._is_op(*CURRENCIES, ahead=1)
        self.position += is_negative
        token = self._peek()
        currency = CURRENCIES.get(token.text) if token is not None and token.kind == "op" else None
        self.position += currency is not None
        value = self._sum()
        if self._is_op("dots") and currency is None:
            return value
        value = self._scaled(value)
        unit = self._unit(value)
        if currency is not None and unit is not None and unit != currency:
            raise Unreadable("two units")
        unit = currency or unit
        if is_negative:
            value = negative(value)
        if unit is None:
            return degrees(value)
        if not isinstance(value, SCALARS) or (unit == DEGREE and not isinstance(degrees(value), SCALARS)):
            raise Unreadable("unit of something that is not a number")
        bare = degrees(value)
        if isinstance(bare, Quantity) and unit != DEGREE:
            value = bare.value
        return Quantity(value, unit[0], unit[1])

    def _scaled(self, value: Node) -> Node:
        """Apply a following 'thousand', 'million' or 'dozen'."""
        token = self._peek()
        if token is None or token.kind != "word" or token.text not in words.SCALES or not isinstance(value, Num):
            return value
        self.position += 1
        return Num(value.value * words.SCALES[token.text])

    def _unit(self, value: Node) -> Unit | None:
        """Read the unit after a value, None when there is none."""
        if self._accept("%"):
            return PERCENT
        if self._starts_scale(value):
            self.position += 1
            return noun(f"degree {self.tokens[self.position - 1].text}")
        if self._starts_unit():
            if isinstance(value, Func) and value.name == "deg":
                raise Unreadable("degrees of an unknown scale")
            return self._named_unit()
        return None

    def _starts_scale(self, value: Node) -> bool:
        """Whether Celsius or Fahrenheit follows a value in degrees."""
        token = self._peek()
        if token is None or token.kind not in ("sym", "word") or token.text not in ("C", "F"):
            return False
        return isinstance(degrees(value), Quantity)

    def _starts_unit(self) -> bool:
        token = self._peek()
        return token is not None and token.kind == "word" and token.text not in (*words.JOINERS, "to")

    def _named_unit(self) -> Unit:
        """Read `word (word | / word | ^n)*`, at most six words."""
        unit, sign, pending_power, num_words = None, 1, 0, 0
        while num_words < 6:
            token = self._peek()
            if token is None or (token.kind == "word" and token.text == "to"):
                break
            if token.kind == "word" and token.text == "per" and (word := self._peek(1)) and word.text == "cent":
                self.position += 2
                return PERCENT
            if (token.kind == "op" and token.text == "/" and self._is_word(1) and unit is not None) or (
                token.kind == "word" and token.text == "per"
            ):
                sign = -1
            elif token.kind == "word" and token.text in ("square", "sq", "cubic", "cu"):
                pending_power = 2 if token.text.startswith("sq") else 3
            elif token.kind == "word" and token.text not in words.JOINERS:
                self.position += 1
                factor = self._unit_power(_unit_of(token), pending_power)
                factor = power(factor, sign)
                unit = factor if unit is None else product(unit, factor)
                sign, pending_power, num_words = 1, 0, num_words + 1
                continue
            elif token.kind == "op" and token.text == "*" and self._is_word(1):
                pass
            else:
                break
            self.position += 1
        if unit is None or sign == -1 or pending_power:
            raise Unreadable("unit cut short")
        return unit

    def _unit_power(self, unit: Unit, exponent: int) -> Unit:
        if self._accept("^"):
            value = self._exponent()
            if not isinstance(value, Num) or value.value.denominator != 1 or abs(value.value) > 6:
                raise Unreadable("power of a unit")
            exponent = int(value.value)
        return power(unit, exponent) if exponent else unit


def _unit_of(token: Token) -> Unit:
    """Return the unit of a word, or the noun it is."""
    found = find_unit(token.text)
    if found is not None:
        return found
    if token.text in words.NOT_A_NOUN or token.text in words.SCALES or (len(token.text) == 1 and token.text.isascii()):
        raise Unreadable(f"word {token.text!r} after a value")
    return noun(token.text)
