r"""From tokens to a tree: a recursive-descent parser of answers, safe on any text.

The whole text must parse: a leading or trailing part that does not fit makes the answer `Unreadable` (it is then
compared as text), so `2\pi+__y` is never read as `2\pi`. Nothing is evaluated here and no text is ever executed.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from . import normal_form
from . import vocabulary as words
from .lexer import LOGICAL, Token, canonical
from .nodes import (
    MINUS_ONE,
    SCALARS,
    Add,
    AllOf,
    AnyOf,
    BaseNumber,
    Func,
    Inf,
    Listing,
    Matrix,
    Mul,
    Node,
    Num,
    PlusMinus,
    Pow,
    Quantity,
    Ratio,
    Reals,
    Rel,
    SetOf,
    SetOp,
    Sym,
    Text,
    Tup,
    Unreadable,
    negative,
    quotient,
)
from .units import CURRENCIES, DEGREE, PERCENT, Unit, find_unit, noun, power, product

MAX_DEPTH = 60
"""Nesting beyond this is unreadable, long before Python's own stack ends."""

_CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "lbrace": ("rbrace",), "langle": ("rangle",)}
_RELATIONS = frozenset(("=", "<", ">", "le", "ge", "ne", "in", "approx"))
_ORDER = frozenset(("<", ">", "le", "ge", "ne"))
_MULTI_ARGUMENT = {"gcd": (1, 9), "lcm": (1, 9), "max": (1, 99), "min": (1, 99), "binomial": (2, 2)}
_UNKNOWN_FUNCTIONS = frozenset(["f", "g", "h", "F", "G", "H", "P", "u"])


class Parser:
    """Reads one token list; `read` is the entry."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self._depth = 0
        self._stop_at_bar = 0
        self._set_depth = 0
        self._is_logical = False

    # --- helpers ---

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

    # --- lists and statements ---

    def read(self) -> Node:
        """Return the tree of the whole text.

        Raises:
            Unreadable: some part of the text does not fit the grammar.
        """
        self._accept("=")
        items, joiners = self._items()
        if len(items) == 1 and self._accept("over"):
            items = [quotient(_scalar(items[0]), _scalar(self._sum()))]
        if self._peek() is not None:
            raise Unreadable("text after the answer")
        if self._is_logical and not all(isinstance(item, Rel) for item in items):
            raise Unreadable("sentence of logic")
        return _combine(items, joiners)

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

    # --- quantities ---

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
            return _degrees(value)
        if not isinstance(value, SCALARS) or (unit == DEGREE and not isinstance(_degrees(value), SCALARS)):
            raise Unreadable("unit of something that is not a number")
        bare = _degrees(value)
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
        return isinstance(_degrees(value), Quantity)

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

    def _is_word(self, ahead: int) -> bool:
        token = self._peek(ahead)
        return token is not None and token.kind == "word"

    def _unit_power(self, unit: Unit, exponent: int) -> Unit:
        if self._accept("^"):
            value = self._exponent()
            if not isinstance(value, Num) or value.value.denominator != 1 or abs(value.value) > 6:
                raise Unreadable("power of a unit")
            exponent = int(value.value)
        return power(unit, exponent) if exponent else unit

    # --- arithmetic ---

    def _sum(self) -> Node:
        terms = [self._signed_term()]
        while self._is_op("+", "-", "pm", "mp"):
            terms.append(self._signed_term())
        return terms[0] if len(terms) == 1 else _add(terms)

    def _signed_term(self) -> Node:
        is_negative, plus_minus = False, 0
        while (token := self._peek()) is not None and token.kind == "op" and token.text in ("+", "-", "pm", "mp"):
            self.position += 1
            if token.text in ("pm", "mp"):
                plus_minus = 1 if token.text == "pm" else -1
            is_negative ^= token.text == "-"
        term = self._term()
        if is_negative:
            term = _multiply(MINUS_ONE, term) if isinstance(term, Matrix) else negative(term)
        return PlusMinus(term, plus_minus) if plus_minus else term

    def _term(self) -> Node:
        """Read a product: explicit or implied multiplication and division, left to right."""
        factor = self._power()
        while True:
            if self._accept("*"):
                factor = _multiply(factor, self._signed_power())
            elif self._is_op("/") and not self._is_word(1):
                self.position += 1
                factor = _divide(factor, self._signed_power())
            elif self._accept("mod"):
                factor = Func("mod", (_scalar(factor), _scalar(self._power())))
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
        """Multiply by the factor that follows without a sign; a number may follow only a power, as in `2^3 5^2`."""
        token = self._peek()
        last = factor.factors[-1] if isinstance(factor, Mul) else factor
        if token is not None and token.kind in ("num", "base") and not isinstance(last, Pow):
            raise Unreadable("number after a value without a sign")
        return _multiply(factor, self._power())

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
                base = Func("factorial", (_scalar(base),))
            elif self._accept("degree"):
                base = Func("deg", (_scalar(base),))
            elif self._accept("^"):
                base = self._raised(base)
            else:
                return base

    def _raised(self, base: Node) -> Node:
        if self._accept_raised("circ"):
            return Func("deg", (_scalar(base),))
        if self._is_op("{") and self._is_op("'", ahead=1):
            raise Unreadable("prime of a value")
        return Pow(_scalar(base), _scalar(self._nested(self._exponent)))

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
        value = self._nested(self._primary)
        if self._accept("^"):
            value = Pow(_scalar(value), _scalar(self._nested(self._exponent)))
        elif self._accept("!"):
            value = Func("factorial", (_scalar(value),))
        return negative(value) if is_negative else value

    # --- primaries ---

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
        if token.text in _CLOSERS:
            return self._bracket(token.text)
        if token.text == "|":
            return self._absolute()
        if token.text in ("lfloor", "lceil"):
            inner = self._sum()
            self._expect("r" + token.text[1:])
            return Func("floor" if token.text == "lfloor" else "ceil", (_scalar(inner),))
        raise Unreadable(f"sign {token.text!r}")

    def _brace_group(self) -> Node:
        r"""Read `{...}`: its content stands for itself; `{a \over b}` is a fraction, `{1, 2}` a bare set."""
        items, joiners = self._items()
        if set(joiners) - {","}:
            raise Unreadable("words inside braces")
        if len(items) == 1 and self._accept("over"):
            items = [quotient(_scalar(items[0]), _scalar(self._sum()))]
        self._expect("}")
        if len(items) == 1:
            return items[0]
        return Listing(tuple(items)) if any(isinstance(item, Rel) for item in items) else SetOf(tuple(items))

    def _absolute(self) -> Node:
        self._stop_at_bar += 1
        inner = self._sum()
        self._expect("|")
        self._stop_at_bar -= 1
        return Func("abs", (_scalar(inner),))

    def _bracket(self, opening: str) -> Node:
        """Read what a bracket opens: a group, a tuple or interval, or a set."""
        bars, self._stop_at_bar = self._stop_at_bar, 0
        if opening == "lbrace":
            node = self._set()
        else:
            items, joiners = self._items()
            closing = self._expect(*_CLOSERS[opening])
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
            return _combine(items, ["and" if joiner == "," else joiner for joiner in joiners])
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

    def _mixed(self, token: Token) -> Node:
        """Read a number, and the proper fraction that makes it a mixed number."""
        assert isinstance(token.value, Fraction)
        whole = Num(token.value)
        if not token.text.isdigit():
            return whole
        parts = self._proper_fraction()
        if parts is None:
            return whole
        numerator, denominator, length = parts
        self.position += length
        if self._is_op("^", "/", "!"):
            raise Unreadable("mixed number cut short")
        return Num(token.value + Fraction(numerator, denominator))

    def _proper_fraction(self) -> tuple[int, int, int] | None:
        """Return numerator, denominator and token count of a proper fraction of whole numbers at the position."""
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
        return (numbers[0], numbers[1], length) if 0 < numbers[0] < numbers[1] else None

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
            return Func("binomial", (_scalar(self._argument()), _scalar(self._argument())))
        if name in words.ACCENTS:
            start = self.position
            self._argument()
            return self._symbol(f"{name}:{canonical(self.tokens[start : self.position]).strip('{} ')}")
        raise Unreadable(f"command {name}")

    def _fraction(self) -> Node:
        start = self.position
        numerator = _scalar(self._argument())
        middle = self.position
        denominator = _scalar(self._argument())
        if self._is_differential(start, middle) and self._is_differential(middle, self.position):
            return Func(":derivative", (numerator, denominator))
        return quotient(numerator, denominator)

    def _is_differential(self, start: int, end: int) -> bool:
        r"""Whether tokens spell `{d y}` or `{\partial x}`."""
        inside = [token for token in self.tokens[start:end] if token.text not in "{}"]
        return len(inside) >= 1 and inside[0].kind in ("sym", "word") and inside[0].text in ("d", "partial")

    def _argument(self) -> Node:
        """Read one argument of a command: a brace group or a single item."""
        if self._is_op("{"):
            return self._nested(self._primary)
        token = self._peek()
        if token is None or token.kind == "op" or token.kind == "word":
            raise Unreadable("argument missing")
        return self._nested(self._primary)

    # --- functions and matrices ---

    def _function(self, name: str) -> Node:
        if name == "sqrt":
            return self._root()
        exponent, base = None, None
        for _ in range(2):
            if name in ("log", "lg") and base is None and self._accept("_"):
                base = _scalar(self._argument())
            elif exponent is None and self._accept("^"):
                exponent = _scalar(self._nested(self._exponent))
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
        scalars = tuple(_scalar(arg) for arg in args)
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
            self._expect(_CLOSERS[opening][0])
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
            index = _scalar(self._sum())
            self._expect("]")
        token = self._peek()
        if token is not None and token.kind == "num" and not token.text.isdigit():
            raise Unreadable("root of a bare decimal")
        if token is not None and token.kind == "num" and len(token.text) > 1:
            raise Unreadable("root over several digits without braces")
        if token is None or (token.kind == "op" and token.text not in ("{", "(")):
            raise Unreadable("root of nothing")
        return Func("root", (_scalar(self._nested(self._primary)), index))

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
            return _determinant([[_scalar(item) for item in row] for row in rows])
        return Matrix(tuple(Tup("(", tuple(row), ")") for row in rows))


# --- building nodes -----------------------------------------------------------------------------------------------


def _scalar(node: Node) -> Node:
    """Return the node if it may stand inside an expression.

    Raises:
        Unreadable: the node is a tuple, a set, a relation, an infinity or a quantity.
    """
    if not isinstance(node, SCALARS):
        raise Unreadable(f"{type(node).__name__} inside an expression")
    return node


def _add(terms: list[Node]) -> Node:
    return Add(tuple(_scalar(term) for term in terms))


def _multiply(left: Node, right: Node) -> Node:
    if isinstance(right, Matrix):
        scalar = _scalar(left)
        return Matrix(tuple(Tup("(", tuple(_multiply(scalar, item) for item in row.items), ")") for row in right.rows))
    left_factors = left.factors if isinstance(left, Mul) else (_scalar(left),)
    return Mul((*left_factors, _scalar(right)))


def _divide(left: Node, right: Node) -> Node:
    return quotient(_scalar(left), _scalar(right))


def _determinant(rows: list[list[Node]]) -> Node:
    """Return the determinant by expansion along the first row.

    Raises:
        Unreadable: the matrix is not square or has more than four rows.
    """
    if len(rows) != len(rows[0]) or len(rows) > 4:
        raise Unreadable("determinant of this shape")
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, item in enumerate(rows[0]):
        minor = [row[:column] + row[column + 1 :] for row in rows[1:]]
        term = Mul((item, _determinant(minor)))
        terms.append(negative(term) if column % 2 else term)
    return Add(tuple(terms))


def _degrees(value: Node) -> Node:
    """Turn a whole value in degrees into a quantity."""
    if isinstance(value, Func) and value.name == "deg":
        return Quantity(value.args[0], DEGREE[0], DEGREE[1])
    if isinstance(value, Mul) and len(value.factors) == 2 and value.factors[0] == MINUS_ONE:
        inner = _degrees(value.factors[1])
        if isinstance(inner, Quantity):
            return Quantity(negative(inner.value), inner.unit, inner.factor)
    return value


def _unit_of(token: Token) -> Unit:
    """Return the unit of a word, or the noun it is."""
    found = find_unit(token.text)
    if found is not None:
        return found
    if token.text in words.NOT_A_NOUN or token.text in words.SCALES or (len(token.text) == 1 and token.text.isascii()):
        raise Unreadable(f"word {token.text!r} after a value")
    return noun(token.text)


def _are_one_value(items: list[Node]) -> bool:
    """Whether items are one number in several spellings, as in `1/2 or 0.5`."""
    first, *rest = items
    return isinstance(first, SCALARS) and all(
        isinstance(item, SCALARS) and normal_form.is_equal(first, item) for item in rest
    )


def _combine(items: list[Node], joiners: list[str]) -> Node:
    """Join the items of the top level: conditions by their connective, everything else as a listing."""
    if len(items) == 1 or (set(joiners) == {"or"} and _are_one_value(items)):
        return items[0]
    are_conditions = all(isinstance(item, Rel) and _ORDER.issuperset(item.ops) for item in items)
    if are_conditions and all(joiner == "or" for joiner in joiners):
        return AnyOf(tuple(items))
    if are_conditions and all(joiner == "and" for joiner in joiners):
        return AllOf(tuple(items))
    return Listing(tuple(items))
