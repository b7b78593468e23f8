"""Evaluation of expressions to hundreds of digits, for what exact arithmetic leaves open. Runs in worker processes.

Closed constants are equal when they agree to 1,000 digits; expressions with variables when they agree to 40 digits at
many points and to 150 digits at a few of them; to twice as many more as the smallest number written in them has zeros.
Points where either side has no real value are left out, because domains are not part of an answer; complex values count
only when `i` is written.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import mpmath
from mpmath import mp

from .lexer import spelled
from .nodes import Add, Func, Mul, Node, Num, Pow, Sym, TooHard, Undefined
from .normal_form import rational_value

Value: TypeAlias = Any  # mpmath.mpf or mpmath.mpc; mpmath has no types
MAX_EXPONENT_BITS = 50_000
MAX_ARGUMENT = 10**6
MAX_EXTRA_DIGITS = 4000
NUM_POINTS = 48
NUM_NEEDED = 10
_WHOLE_LETTERS = frozenset(["n", "m", "k", "j", "l", "N", "M", "K", "d", "p", "q", "r", "s", "t", "a", "b"])
_TOTAL = frozenset(("abs",))
"""Functions written to make an expression real everywhere, so that leaving them out is a mistake: ln|x| is not ln x."""
_DISCRETE = frozenset(("floor", "ceil", "factorial", "binomial", "mod", "gcd", "lcm"))


# --- evaluation ---------------------------------------------------------------------------------------------------


def evaluate(node: Node, values: Mapping[str, Value]) -> Value:
    """Return the value of an expression at the current precision.

    Args:
        node: the expression.
        values: a value for every variable in it.

    Raises:
        TooHard: a number would become too large, or a function is unknown.
        Undefined: the expression has no value here.
    """
    if isinstance(node, Num):
        return mp.mpf(node.value.numerator) / node.value.denominator
    if isinstance(node, Sym):
        return _symbol(node.name, values)
    if isinstance(node, Add):
        return mp.fsum(evaluate(term, values) for term in node.terms)
    if isinstance(node, Mul):
        product = mp.mpf(1)
        for factor in node.factors:
            product *= evaluate(factor, values)
        return product
    if isinstance(node, Pow):
        return _power(evaluate(node.base, values), evaluate(node.exponent, values), node.exponent)
    if isinstance(node, Func):
        return _function(node.name, [evaluate(arg, values) for arg in node.args], node.args)
    raise TooHard(type(node).__name__)


def _symbol(name: str, values: Mapping[str, Value]) -> Value:
    constants = {"pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}
    if name in constants:
        return +constants[name]
    if name not in values:
        raise TooHard(f"no value for {name}")
    return values[name]


def _power(base: Value, exponent: Value, exponent_node: Node) -> Value:
    if base == 0:
        if mp.re(exponent) <= 0:
            raise Undefined("power of zero")
        return mp.mpf(0)
    size = abs(exponent) * (abs(mp.log(abs(base), 2)) + 1)
    if size > MAX_EXPONENT_BITS:
        raise TooHard("huge power")
    is_negative = mp.im(base) == 0 and mp.re(base) < 0
    fraction = rational_value(exponent_node) if is_negative else None
    if fraction is not None and fraction.denominator % 2 and fraction.denominator > 1:
        sign = -1 if fraction.numerator % 2 else 1
        return sign * mp.power(-base, exponent)
    return mp.power(base, exponent)


def _root(value: Value, index: Value) -> Value:
    if mp.im(index) != 0 or not mp.isint(index) or not 1 <= index <= 1000:
        raise TooHard("index of a root")
    if mp.im(value) == 0 and mp.re(value) < 0 and int(index) % 2:
        return -mp.root(-value, int(index))
    return mp.root(value, int(index))


def _log(value: Value, base: Value) -> Value:
    if value == 0 or base in (0, 1):
        raise Undefined("logarithm")
    return mp.log(value) / mp.log(base)


def _snapped(value: Value) -> mpmath.mpf:
    """Return a real value, moved to the whole number it misses only by rounding."""
    if mp.im(value) != 0:
        raise Undefined("rounding of a complex number")
    nearest = mp.nint(mp.re(value))
    return nearest if abs(mp.re(value) - nearest) < mp.mpf(10) ** (-mp.dps // 2) else mp.re(value)


def _whole(values: list[Value]) -> list[int]:
    found = [_snapped(value) for value in values]
    if any(not mp.isint(value) or abs(value) > mp.mpf(10) ** 30 for value in found):
        raise Undefined("whole numbers needed")
    return [int(value) for value in found]


def _binomial(top: Value, bottom: Value) -> Value:
    if max(abs(top), abs(bottom)) > MAX_ARGUMENT:
        raise TooHard("binomial")
    return mp.binomial(top, bottom)


def _factorial(value: Value) -> Value:
    if abs(value) > MAX_ARGUMENT:
        raise TooHard("factorial")
    if mp.isint(value) and mp.re(value) < 0:
        raise Undefined("factorial of a negative number")
    return mp.factorial(value)


def _modulo(values: list[Value]) -> Value:
    left, right = _whole(values)
    if right == 0:
        raise Undefined("modulo zero")
    return mp.mpf(left % right)


def _real(value: Value) -> mpmath.mpf:
    if mp.im(value) != 0:
        raise Undefined("order of complex numbers")
    return mp.re(value)


_PLAIN: Mapping[str, Callable[[Value], Value]] = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc, "sinh": mp.sinh,
    "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth, "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan,
    "arccot": mp.acot, "ln": mp.log, "abs": abs, "deg": lambda x: x * mp.pi / 180, "factorial": _factorial,
    "floor": lambda x: mp.floor(_snapped(x)), "ceil": lambda x: mp.ceil(_snapped(x)),
    "sgn": lambda x: mp.sign(_real(x)),
}  # fmt: skip
_SEVERAL: Mapping[str, Callable[[list[Value]], Value]] = {
    "root": lambda args: _root(*args), "log": lambda args: _log(*args), "binomial": lambda args: _binomial(*args),
    "max": lambda args: max(_real(arg) for arg in args), "min": lambda args: min(_real(arg) for arg in args),
    "mod": _modulo, "gcd": lambda args: mp.mpf(math.gcd(*_whole(args))),
    "lcm": lambda args: mp.mpf(math.lcm(*_whole(args))),
}  # fmt: skip


def _function(name: str, args: list[Value], nodes: tuple[Node, ...]) -> Value:
    try:
        if name in _PLAIN:
            return mp.mpmathify(_PLAIN[name](args[0]))
        if name in _SEVERAL:
            return _SEVERAL[name](args)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise Undefined(name) from error
    raise TooHard(f"unknown function {name}")


# --- comparison ---------------------------------------------------------------------------------------------------


def is_equal(left: Node, right: Node) -> bool | None:
    """Whether two expressions agree; None when they cannot be evaluated."""
    names = sorted(variables(left) | variables(right))
    if not names:
        return _same_constants(left, right)
    return _same_functions(left, right, names)


def variables(node: Node) -> set[str]:
    """Return the names of the variables of an expression."""
    own = {node.name} - {"pi", "e", "i"} if isinstance(node, Sym) else set()
    return own.union(*(variables(child) for child in node.children()))


def _same_constants(left: Node, right: Node) -> bool | None:
    try:
        extra = _extra_digits(left, right)
    except TooHard:
        return None
    for digits, tolerance in ((40, 25), (1200 + extra, 1000 + extra)):
        with mp.workdps(digits):
            try:
                verdict = _agree(left, right, {}, tolerance)
            except Undefined:
                return False
            except TooHard:
                return None
        if not verdict:
            return False
    return True


def _extra_digits(*nodes: Node) -> int:
    """Return how much deeper to look when tiny numbers are written, as in cos(10^-700).

    Raises:
        TooHard: deeper than `MAX_EXTRA_DIGITS`.
    """
    zeros = max(_zeros(node) for node in nodes)
    if zeros > MAX_EXTRA_DIGITS:
        raise TooHard("tiny number")
    return 2 * zeros


def _zeros(node: Node) -> int:
    """Return a bound for the zeros after the point of the smallest number a tree writes."""
    if isinstance(node, Num):
        return len(str(node.value.denominator)) - 1 if node.value.denominator.bit_length() < 14_000 else 10_000
    below = max((_zeros(child) for child in node.children()), default=0)
    if isinstance(node, Pow) and isinstance(node.exponent, Num):
        size = len(spelled(node.base.value)) if isinstance(node.base, Num) else 1
        return int(abs(node.exponent.value) * max(size, below, 1))
    return below


def _agree(left: Node, right: Node, values: Mapping[str, Value], tolerance: int) -> bool:
    """Whether two values differ by less than 10^-tolerance of the largest term they are made of."""
    x, y = evaluate(left, values), evaluate(right, values)
    if not (mp.isfinite(x) and mp.isfinite(y)):
        raise Undefined("infinite")
    scale = max(abs(x), abs(y), _largest_term(left, values), _largest_term(right, values))
    return bool(abs(x - y) <= scale * mp.mpf(10) ** -tolerance)


def _largest_term(node: Node, values: Mapping[str, Value]) -> Value:
    return max(abs(evaluate(term, values)) for term in node.terms) if isinstance(node, Add) else mp.mpf(0)


def _has(node: Node, names: frozenset[str]) -> bool:
    if isinstance(node, Func) and node.name in names:
        return True
    return any(_has(child, names) for child in node.children())


def _writes_i(node: Node) -> bool:
    return node == Sym("i") or any(_writes_i(child) for child in node.children())


def _same_functions(left: Node, right: Node, names: list[str]) -> bool | None:
    is_complex = _writes_i(left) or _writes_i(right)
    verdict = _probe(left, right, _real_points(names), is_complex=is_complex)
    is_discrete = _has(left, _DISCRETE) or _has(right, _DISCRETE)
    if (verdict is None or (verdict is False and is_discrete)) and set(names) <= _WHOLE_LETTERS:
        return _probe(left, right, _whole_points(names), is_complex=is_complex)
    return verdict


def _probe(left: Node, right: Node, points: Iterator[Mapping[str, object]], *, is_complex: bool) -> bool | None:
    """Compare at every point with values; None when there are too few of them."""
    num_valid = 0
    try:
        extra = _extra_digits(left, right)
    except TooHard:
        return None
    is_total = _has(left, _TOTAL) != _has(right, _TOTAL)
    for point in points:
        digits, tolerance = (250 + extra, 150 + extra) if num_valid < 3 else (60, 40)
        with mp.workdps(digits):
            values = {name: mp.mpf(str(value)) for name, value in point.items()}
            try:
                if not is_complex:
                    are_real = [_is_real(evaluate(side, values), tolerance) for side in (left, right)]
                    if True in are_real and False in are_real and is_total:
                        return False
                    if False in are_real:
                        continue
                if not _agree(left, right, values, tolerance):
                    return False
            except Undefined:
                continue
            except TooHard:
                if any(name.startswith(":") for name in _function_names(left) | _function_names(right)):
                    return None
                continue
        num_valid += 1
    return True if num_valid >= NUM_NEEDED else None


def _function_names(node: Node) -> set[str]:
    own = {node.name} if isinstance(node, Func) else set()
    return own.union(*(_function_names(child) for child in node.children()))


def _is_real(value: Value, tolerance: int) -> bool:
    return bool(abs(mp.im(value)) <= abs(value) * mp.mpf(10) ** -tolerance)


def _real_points(names: list[str]) -> Iterator[Mapping[str, object]]:
    """Yield points of mixed size; every second one has positive coordinates only."""
    source = random.Random("|".join(names))
    for index in range(NUM_POINTS):
        yield {name: _coordinate(source, is_signed=index % 2 == 1) for name in names}


def _coordinate(source: random.Random, *, is_signed: bool) -> str:
    size = 10 ** source.uniform(-1.5, 2.0 if source.random() < 0.5 else 0.7)
    sign = -1 if is_signed and source.random() < 0.6 else 1
    return f"{sign * size:.6g}"


def _whole_points(names: list[str]) -> Iterator[Mapping[str, object]]:
    source = random.Random("whole|" + "|".join(names))
    for index in range(NUM_POINTS):
        yield {name: index + 1 if len(names) == 1 else source.randint(1, 40) for name in names}


def are_proportional(left: Node, right: Node) -> bool | None:
    """Whether left = c * right for a non-zero constant c, judged at many points."""
    names = sorted(variables(left) | variables(right))
    factor = None
    for point in _real_points(names):
        with mp.workdps(250):
            values = {name: mp.mpf(str(value)) for name, value in point.items()}
            try:
                factor = evaluate(left, values) / evaluate(right, values)
            except (Undefined, TooHard, ZeroDivisionError):
                continue
            if mp.isfinite(factor) and factor != 0:
                break
    if factor is None or factor == 0:
        return None
    return _probe(left, Mul((Sym("#factor"), right)), _with_factor(names, factor), is_complex=False)


def _with_factor(names: list[str], factor: Value) -> Iterator[Mapping[str, object]]:
    with mp.workdps(250):
        text = mp.nstr(factor, 240)
    if "j" in text:
        return
    for point in _real_points(names):
        yield {**point, "#factor": text}
