r"""Exact comparison without a computer-algebra system: rational functions over the rationals.

An expression becomes a quotient of two polynomials. Their atoms are variables, $\pi$, $e$, $i$, fractional powers of
primes, and *opaque* atoms for everything else (such as $\sin x$). Products of distinct fractional powers of primes are
linearly independent over the rationals and variables are free, so a difference without opaque atoms is zero exactly
when its numerator has no terms left. With opaque atoms in it, nothing is claimed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from fractions import Fraction
from math import comb, factorial, floor, gcd, isqrt, lcm

from .nodes import Add, Func, Mul, Node, Num, Pow, Sym, TooHard, Undefined

Atom = tuple[str, str | int]
Monomial = tuple[tuple[Atom, Fraction], ...]
Poly = dict[Monomial, Fraction]

MAX_TERMS = 400
MAX_BITS = 40_000
MAX_EXPONENT = 24
"""Of a sum of up to three terms; longer sums have smaller ones."""
MAX_PRIME = 2_000
CHEAP_WORK, FULL_WORK = 10_000, 20_000
"""Term products that one question may cost in the calling process and in a worker; a thousand take about 10 ms."""
_ONE: Monomial = ()
_I: Atom = ("unit", "i")
_CONSTANTS = frozenset(("pi", "e"))


class Quotient:
    """numerator / denominator, both polynomials; a denominator of one term is always folded into the numerator."""

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: Poly, denominator: Poly | None = None) -> None:
        self.numerator = numerator
        self.denominator = {_ONE: Fraction(1)} if denominator is None else denominator
        if denominator is not None:
            self._fold()

    def _fold(self) -> None:
        if not self.denominator:
            raise Undefined("division by zero")
        if len(self.denominator) == 1:
            ((monomial, coefficient),) = self.denominator.items()
            inverse = {tuple((atom, -power) for atom, power in monomial): 1 / coefficient}
            self.numerator = _times(self.numerator, _reduced(inverse))
            self.denominator = {_ONE: Fraction(1)}
        else:
            lead = self.denominator[min(self.denominator)]
            self.numerator = {monomial: value / lead for monomial, value in self.numerator.items()}
            self.denominator = {monomial: value / lead for monomial, value in self.denominator.items()}

    def rational(self) -> Fraction | None:
        """Return the value when it is a rational number."""
        if self.denominator != {_ONE: Fraction(1)} or any(monomial != _ONE for monomial in self.numerator):
            return None
        return self.numerator.get(_ONE, Fraction(0))

    def key(self) -> str:
        """Return a short text that is equal for equal normal forms, and for no others but by a hash collision."""
        parts = [
            f"{monomial} {value.numerator:x}/{value.denominator:x}"
            for poly in (self.numerator, {}, self.denominator)
            for monomial, value in (sorted(poly.items(), key=lambda item: str(item[0])) or [((), Fraction(0))])
        ]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()


# --- the work one question may cost ---------------------------------------------------------------------------


class _Budget(threading.local):
    left = FULL_WORK


_budget = _Budget()


def allow_work(amount: int) -> None:
    """Set how much work the comparisons of this thread may do until the next call; beyond it they are too hard."""
    _budget.left = amount


def _charge(amount: int) -> None:
    _budget.left -= amount
    if _budget.left < 0:
        raise TooHard("more work than this question may cost")


# --- polynomials --------------------------------------------------------------------------------------------------


def _plus(left: Poly, right: Poly) -> Poly:
    total = dict(left)
    for monomial, value in right.items():
        total[monomial] = total.get(monomial, Fraction(0)) + value
        if not total[monomial]:
            del total[monomial]
    return total


def _times(left: Poly, right: Poly) -> Poly:
    if len(left) * len(right) > MAX_TERMS * 10:
        raise TooHard("product of long sums")
    _charge(len(left) * len(right))
    total: Poly = {}
    for first, x in left.items():
        for second, y in right.items():
            scale, monomial = _joined(first, second)
            total[monomial] = total.get(monomial, Fraction(0)) + x * y * scale
    total = {monomial: value for monomial, value in total.items() if value}
    if len(total) > MAX_TERMS:
        raise TooHard("too many terms")
    bits = sum(_bits(value) for value in total.values())
    _charge(bits // 1000)
    if bits > MAX_BITS * 4:
        raise TooHard("huge numbers")
    return total


def _joined(first: Monomial, second: Monomial) -> tuple[Fraction, Monomial]:
    """Return (factor, monomial) of a product of monomials; whole powers of primes and i^2 move into the factor."""
    if not first or not second:
        return Fraction(1), first or second
    powers = dict(first)
    for atom, power in second:
        powers[atom] = powers.get(atom, Fraction(0)) + power
    return _settled(powers)


def _settled(powers: dict[Atom, Fraction]) -> tuple[Fraction, Monomial]:
    scale, kept = Fraction(1), []
    for atom, power in powers.items():
        if atom[0] == "prime":
            whole = floor(power)
            scale *= Fraction(int(atom[1])) ** whole
            power -= whole
        elif atom == _I:
            if power.denominator != 1:
                raise TooHard("root of i")
            scale *= -1 if power % 4 in (2, 3) else 1
            power %= 2
        if power:
            kept.append((atom, power))
    return scale, tuple(sorted(kept, key=str))


def _reduced(poly: Poly) -> Poly:
    total: Poly = {}
    for monomial, value in poly.items():
        scale, settled = _settled(dict(monomial))
        total[settled] = total.get(settled, Fraction(0)) + value * scale
    return total


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(poly: Poly, exponent: int) -> Poly:
    if len(poly) == 1:
        ((monomial, value),) = poly.items()
        if exponent * _bits(value) > MAX_BITS:
            raise TooHard("huge power")
        _charge(1 + exponent * _bits(value) // 100)
        return _reduced({tuple((atom, power * exponent) for atom, power in monomial): value**exponent})
    if exponent > MAX_EXPONENT or exponent * len(poly) > MAX_EXPONENT * 3:
        raise TooHard("high power of a sum")
    result: Poly = {_ONE: Fraction(1)}
    for _ in range(exponent):
        result = _times(result, poly)
    return result


# --- from trees ---------------------------------------------------------------------------------------------------


def normal_form(node: Node) -> Quotient:
    """Return the normal form of an expression.

    Raises:
        TooHard: the result would be too large, or a root cannot be taken exactly.
        Undefined: the expression divides by zero.
    """
    if isinstance(node, Num):
        return Quotient({_ONE: node.value} if node.value else {})
    if isinstance(node, Sym):
        kind = "constant" if node.name in _CONSTANTS else "variable"
        atom: Atom = _I if node.name == "i" else (kind, node.name)
        return Quotient({((atom, Fraction(1)),): Fraction(1)})
    if isinstance(node, Add):
        return _sum(normal_form(term) for term in node.terms)
    if isinstance(node, Mul):
        return _product(normal_form(factor) for factor in node.factors)
    if isinstance(node, Pow):
        return _raised(normal_form(node.base), normal_form(node.exponent))
    if isinstance(node, Func):
        return _function(node.name, [normal_form(arg) for arg in node.args])
    raise TooHard(type(node).__name__)


def _sum(terms: Iterator[Quotient]) -> Quotient:
    total = next(terms)
    for term in terms:
        if term.denominator == total.denominator:
            denominator = None if len(total.denominator) == 1 else total.denominator
            total = Quotient(_plus(total.numerator, term.numerator), denominator)
        else:
            left = _times(total.numerator, term.denominator)
            right = _times(term.numerator, total.denominator)
            total = Quotient(_plus(left, right), _times(total.denominator, term.denominator))
    return total


def _product(factors: Iterator[Quotient]) -> Quotient:
    total = next(factors)
    for factor in factors:
        denominator = _times(total.denominator, factor.denominator)
        total = Quotient(_times(total.numerator, factor.numerator), denominator)
    return total


def _raised(base: Quotient, exponent: Quotient) -> Quotient:
    power = exponent.rational()
    if power is None:
        return _opaque("power", [base, exponent])
    if power.denominator == 1:
        count = abs(int(power))
        if count == 0:
            if not base.numerator:
                raise Undefined("0^0")
            return Quotient({_ONE: Fraction(1)})
        numerator, denominator = _power(base.numerator, count), _power(base.denominator, count)
        return Quotient(denominator, numerator) if power < 0 else Quotient(numerator, denominator)
    return _root(base, power)


def _root(base: Quotient, power: Fraction) -> Quotient:
    """Return base^power for a power that is not whole, exactly where the principal branch allows it."""
    if not base.numerator:
        if power < 0:
            raise Undefined("division by zero")
        return base
    if len(base.numerator) == 1 and len(base.denominator) == 1:
        ((monomial, value),) = base.numerator.items()
        if all(atom[0] in ("constant", "prime") for atom, _ in monomial):
            return _constant_root(monomial, value, power)
        if value == 1 and len(monomial) == 1 and monomial[0][0][0] == "variable" and monomial[0][1] == 1:
            return Quotient({((monomial[0][0], power),): Fraction(1)})
    return _opaque("power", [base, Quotient({_ONE: power})])


def _constant_root(monomial: Monomial, value: Fraction, power: Fraction) -> Quotient:
    """Return the power of a non-zero real constant of one term; even roots of negative numbers bring i."""
    powers: dict[Atom, Fraction] = {atom: exponent * power for atom, exponent in monomial}
    sign = Fraction(1)
    if value < 0:
        if power.denominator % 2:
            sign = Fraction((-1) ** abs(power.numerator))
        elif power.denominator == 2:
            powers[_I] = Fraction(power.numerator)
        else:
            raise TooHard("complex root")
    for prime, count in (*_factors(abs(value.numerator)), *((p, -c) for p, c in _factors(value.denominator))):
        atom: Atom = ("prime", prime)
        powers[atom] = powers.get(atom, Fraction(0)) + count * power
        if abs(powers[atom]) * prime.bit_length() > MAX_BITS:
            raise TooHard("huge power")
    scale, settled = _settled(powers)
    return Quotient({settled: sign * scale})


def _factors(number: int) -> list[tuple[int, int]]:
    """Return the prime factors with their counts.

    Raises:
        TooHard: a factor without small divisors is left that is not surely prime.
    """
    _charge(20 + number.bit_length() // 8)
    found: list[tuple[int, int]] = []
    for prime in (2, *range(3, MAX_PRIME, 2)):
        if prime * prime > number:
            break
        count = 0
        while number % prime == 0:
            number, count = number // prime, count + 1
        if count:
            found.append((prime, count))
    if number == 1:
        return found
    if number < MAX_PRIME**2:
        return [*found, (number, 1)]
    root = isqrt(number)
    if root * root == number and root < MAX_PRIME**2:
        return [*found, (root, 2)]
    raise TooHard("large factor")


def _opaque(name: str, args: list[Quotient]) -> Quotient:
    key = name + "(" + ";".join(arg.key() for arg in args) + ")"
    return Quotient({((("opaque", key), Fraction(1)),): Fraction(1)})


# --- functions of numbers -----------------------------------------------------------------------------------------


def _function(name: str, args: list[Quotient]) -> Quotient:
    if name == "deg":
        pi = Quotient({((("constant", "pi"), Fraction(1)),): Fraction(1, 180)})
        return _product(iter((args[0], pi)))
    if name == "root":
        index = args[1].rational()
        if index is None:
            return _opaque(name, args)
        if index.denominator != 1 or index < 1:
            raise TooHard("index of a root")
        return _root(args[0], 1 / index) if index > 1 else args[0]
    values = [arg.rational() for arg in args]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return _opaque(name, args)
    value = _number(name, numbers)
    return _opaque(name, args) if value is None else Quotient({_ONE: value} if value else {})


def _number(name: str, args: list[Fraction]) -> Fraction | None:
    """Return a function of rational numbers where it is rational, None where this is not known."""
    simple = {"abs": abs, "floor": floor, "ceil": lambda x: -floor(-x)}
    if name in ("max", "min"):
        return max(args) if name == "max" else min(args)
    if name == "sgn":
        return Fraction((args[0] > 0) - (args[0] < 0))
    if name in simple:
        return Fraction(simple[name](args[0]))  # type: ignore[operator]
    if any(arg.denominator != 1 for arg in args):
        return None
    whole = [int(arg) for arg in args]
    if name in ("gcd", "lcm"):
        return Fraction(gcd(*whole) if name == "gcd" else lcm(*whole))
    if name == "mod":
        if not whole[1]:
            raise Undefined("modulo zero")
        return Fraction(whole[0] % whole[1])
    if name == "factorial":
        return _guarded_factorial(whole[0])
    if name == "binomial" and whole[1] >= 0:
        if not 0 <= whole[0] <= 3000:
            raise TooHard("binomial")
        _charge(whole[0])
        return Fraction(comb(*whole))
    return None


def _guarded_factorial(count: int) -> Fraction:
    if count < 0:
        raise Undefined("factorial of a negative number")
    if count > 2000:
        raise TooHard("factorial")
    _charge(count)
    return Fraction(factorial(count))


# --- questions ----------------------------------------------------------------------------------------------------


def _difference(left: Quotient, right: Quotient) -> Poly:
    minus = {monomial: -value for monomial, value in right.numerator.items()}
    return _plus(_times(left.numerator, right.denominator), _times(minus, left.denominator))


def _is_opaque(poly: Poly) -> bool:
    return any(atom[0] == "opaque" for monomial in poly for atom, _ in monomial)


def is_equal(left: Node, right: Node) -> bool | None:
    """Whether two expressions are equal: True and False are proofs, None means undecided."""
    try:
        difference = _difference(normal_form(left), normal_form(right))
    except Undefined:
        return False
    except (TooHard, RecursionError):
        return None
    if not difference:
        return True
    return None if _is_opaque(difference) else False


def proportion(left: Node, right: Node) -> Fraction | None:
    """Return c with left = c * right, None when there is no such rational number or it cannot be seen."""
    try:
        first, second = normal_form(left), normal_form(right)
        first_poly = _times(first.numerator, second.denominator)
        second_poly = _times(second.numerator, first.denominator)
    except (TooHard, Undefined, RecursionError):
        return None
    if not first_poly or first_poly.keys() != second_poly.keys():
        return None
    ratios = {value / second_poly[monomial] for monomial, value in first_poly.items()}
    return ratios.pop() if len(ratios) == 1 else None


def rational_value(node: Node) -> Fraction | None:
    """Return the value of an expression that is a rational number."""
    try:
        return normal_form(node).rational()
    except (TooHard, Undefined, RecursionError):
        return None


def linear(node: Node) -> tuple[str, Fraction, Fraction] | None:
    """Return (variable, a, b) when the expression is a * variable + b with rational a and b."""
    try:
        form = normal_form(node)
    except (TooHard, Undefined, RecursionError):
        return None
    if len(form.denominator) != 1:
        return None
    poly = dict(form.numerator)
    constant = poly.pop(_ONE, Fraction(0))
    if len(poly) != 1:
        return None
    ((monomial, slope),) = poly.items()
    (atom, power), *others = monomial
    if others or power != 1 or atom[0] != "variable":
        return None
    return str(atom[1]), slope, constant
