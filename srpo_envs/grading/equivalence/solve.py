"""Solution sets of conditions in one real variable, by sympy. Runs in worker processes; no text reaches sympy."""

from __future__ import annotations

from fractions import Fraction

import sympy

from .nodes import (
    Add,
    AllOf,
    AnyOf,
    Func,
    Inf,
    Mul,
    Node,
    Num,
    Pow,
    Reals,
    Rel,
    SetOf,
    SetOp,
    Sym,
    TooHard,
    Tup,
)

MAX_POWER = 60
_VARIABLE = sympy.Symbol("x", real=True)
_RELATIONS = {
    "<": sympy.StrictLessThan,
    ">": sympy.StrictGreaterThan,
    "le": sympy.LessThan,
    "ge": sympy.GreaterThan,
    "ne": sympy.Unequality,
    "=": sympy.Equality,
}
_FUNCTIONS = {"abs": sympy.Abs, "ln": sympy.log, "sin": sympy.sin, "cos": sympy.cos, "floor": sympy.floor}


def same_solutions(left: Node, right: Node) -> bool:
    """Whether two conditions or sets hold exactly the same real numbers.

    Raises:
        TooHard: a condition cannot be written or solved exactly.
    """
    first, second = real_set(left), real_set(right)
    if first == second:
        return True
    difference = sympy.Union(first - second, second - first)
    return bool(difference.is_empty)


def real_set(node: Node) -> sympy.Set:
    """Return the set of reals a node describes.

    Raises:
        TooHard: it cannot be written or solved exactly.
    """
    if isinstance(node, Reals):
        return sympy.S.Reals
    if isinstance(node, SetOf):
        return sympy.FiniteSet(*(expression(item) for item in node.items))
    if isinstance(node, Tup) and len(node.items) == 2:
        low, high = (expression(item) for item in node.items)
        return sympy.Interval(low, high, node.opening != "[", node.closing != "]")
    if isinstance(node, SetOp):
        left, right = real_set(node.left), real_set(node.right)
        return {"cup": sympy.Union, "cap": sympy.Intersection, "minus": sympy.Complement}[node.op](left, right)
    if isinstance(node, AnyOf):
        return sympy.Union(*(real_set(item) for item in node.items))
    if isinstance(node, AllOf):
        return sympy.Intersection(*(real_set(item) for item in node.items))
    if isinstance(node, Rel):
        steps = zip(node.members, node.ops, node.members[1:], strict=False)
        return sympy.Intersection(*(_solved(left, op, right) for left, op, right in steps))
    raise TooHard(type(node).__name__)


def _solved(left: Node, op: str, right: Node) -> sympy.Set:
    if op not in _RELATIONS:
        raise TooHard(f"relation {op}")
    relation = _RELATIONS[op](expression(left), expression(right))
    if relation in (True, sympy.true):
        return sympy.S.Reals
    if relation in (False, sympy.false):
        return sympy.S.EmptySet
    try:
        if op == "=":
            return sympy.solveset(relation, _VARIABLE, sympy.S.Reals)
        if op == "ne":
            equation = sympy.Eq(relation.lhs, relation.rhs)
            return sympy.Complement(sympy.S.Reals, sympy.solveset(equation, _VARIABLE, sympy.S.Reals))
        return sympy.solve_univariate_inequality(relation, _VARIABLE, relational=False)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise TooHard("inequality") from error


def expression(node: Node) -> sympy.Expr:
    """Return the sympy expression of a node in which every variable is the same one.

    Raises:
        TooHard: a function is unknown or a power is too large.
    """
    if isinstance(node, Num):
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if isinstance(node, Sym):
        return {"pi": sympy.pi, "e": sympy.E}.get(node.name, _VARIABLE)
    if isinstance(node, Inf):
        return sympy.oo if node.sign > 0 else -sympy.oo
    if isinstance(node, Add):
        return sympy.Add(*(expression(term) for term in node.terms))
    if isinstance(node, Mul):
        return sympy.Mul(*(expression(factor) for factor in node.factors))
    if isinstance(node, Pow):
        if not isinstance(node.exponent, Num) or abs(node.exponent.value) > MAX_POWER:
            raise TooHard("power in a condition")
        return sympy.Pow(expression(node.base), expression(node.exponent))
    if isinstance(node, Func) and node.name == "root" and isinstance(node.args[1], Num):
        return sympy.Pow(expression(node.args[0]), sympy.Rational(*_inverse(node.args[1].value)))
    if isinstance(node, Func) and node.name in _FUNCTIONS:
        return _FUNCTIONS[node.name](*(expression(arg) for arg in node.args))
    raise TooHard(type(node).__name__)


def _inverse(value: Fraction) -> tuple[int, int]:
    return value.denominator, value.numerator
