"""Conditions in one variable and sets of reals, written as intervals and single points where no solving is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import normal_form
from .nodes import (
    SCALARS,
    Add,
    AllOf,
    AnyOf,
    Func,
    Inf,
    Node,
    Num,
    Reals,
    Rel,
    SetOf,
    SetOp,
    Sym,
    Tup,
    negative,
    symbols,
)

ORDER = frozenset(("<", ">", "le", "ge", "ne"))
FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval with its ends; `low` and `high` may be infinite."""

    low: Node
    is_low_closed: bool
    high: Node
    is_high_closed: bool


_EVERYTHING = Interval(Inf(-1), False, Inf(1), False)


def is_condition(node: Node) -> bool:
    """Whether a node states conditions or is built from sets of reals."""
    if isinstance(node, Rel):
        return bool(ORDER & set(node.ops))
    return isinstance(node, (AnyOf, AllOf, Reals, SetOp))


def pieces(node: Node) -> list[Interval | Node] | None:
    """Return the intervals and single points a set of reals consists of; None when it has to be solved first."""
    if isinstance(node, Reals):
        return [_EVERYTHING]
    if isinstance(node, Tup) and len(node.items) == 2 and node.opening in "([":
        return [Interval(node.items[0], node.opening == "[", node.items[1], node.closing == "]")]
    if isinstance(node, SetOf):
        return list(node.items)
    if isinstance(node, SetOp):
        return _set_pieces(node)
    if isinstance(node, Rel):
        return _simple_relation(node)
    if isinstance(node, AnyOf):
        return _joined(node.items)
    if isinstance(node, AllOf) and len(node.items) == 2:
        return _both(node.items[0], node.items[1])
    return None


def _set_pieces(node: SetOp) -> list[Interval | Node] | None:
    if node.op == "cup":
        return _joined((node.left, node.right))
    if node.op != "minus" or not isinstance(node.left, Reals) or not isinstance(node.right, SetOf):
        return None
    return _without_point(node.right.items[0]) if len(node.right.items) == 1 else None


def _joined(parts: Iterable[Node]) -> list[Interval | Node] | None:
    found: list[Interval | Node] = []
    for part in parts:
        inner = pieces(part)
        if inner is None:
            return None
        found.extend(inner)
    return found


def _without_point(point: Node) -> list[Interval | Node]:
    return [Interval(Inf(-1), False, point, False), Interval(point, False, Inf(1), False)]


def _both(first: Node, second: Node) -> list[Interval | Node] | None:
    """Intersect a lower with an upper bound."""
    left, right = pieces(first), pieces(second)
    if left is None or right is None or len(left) != 1 or len(right) != 1:
        return None
    low, high = left[0], right[0]
    if isinstance(low, Interval) and low.low == Inf(-1):
        low, high = high, low
    if not isinstance(low, Interval) or not isinstance(high, Interval):
        return None
    if high.low != Inf(-1) or low.high != Inf(1) or low.low == Inf(-1) or high.high == Inf(1):
        return None
    return [Interval(low.low, low.is_low_closed, high.high, high.is_high_closed)]


def _simple_relation(node: Rel) -> list[Interval | Node] | None:
    """Read `x < 3`, `3 > x`, `2x > 14`, `x != 3` and `1 < x <= 6`."""
    if (
        len(node.members) == 3
        and isinstance(node.members[1], Sym)
        and not symbols(node.members[0]) | symbols(node.members[2])
    ):
        ops, members = node.ops, node.members
        if set(ops) <= {">", "ge"}:
            ops, members = (FLIPPED[ops[1]], FLIPPED[ops[0]]), members[::-1]
        if set(ops) <= {"<", "le"}:
            return [Interval(members[0], ops[0] == "le", members[2], ops[1] == "le")]
        return None
    if len(node.members) != 2:
        return None
    around = _around_zero(node)
    if around is not None:
        return around
    solved = _solved(node)
    if solved is None:
        return None
    op, bound = solved
    if op == "ne":
        return _without_point(bound)
    if op in ("<", "le"):
        return [Interval(Inf(-1), False, bound, op == "le")]
    return [Interval(bound, op == "ge", Inf(1), False)]


def _around_zero(node: Rel) -> list[Interval | Node] | None:
    """Read `|a x + b| op c` with a rational c above zero as one interval or two rays."""
    left, right = node.members
    op = node.ops[0]
    if isinstance(right, Func):
        left, right, op = right, left, FLIPPED[op]
    bound = normal_form.rational_value(right) if isinstance(right, SCALARS) else None
    if not isinstance(left, Func) or left.name != "abs" or bound is None or bound <= 0 or op == "ne":
        return None
    line = normal_form.linear(left.args[0])
    if line is None:
        return None
    _, slope, constant = line
    low, high = (Num(end) for end in sorted((sign * bound - constant) / slope for sign in (-1, 1)))
    is_closed = op in ("le", "ge")
    if op in ("<", "le"):
        return [Interval(low, is_closed, high, is_closed)]
    return [Interval(Inf(-1), False, low, is_closed), Interval(high, is_closed, Inf(1), False)]


def _solved(node: Rel) -> tuple[str, Node] | None:
    """Return (op, bound) of `x op bound`."""
    left, right = node.members
    op = node.ops[0]
    if isinstance(right, Sym) and not symbols(left):
        left, right, op = right, left, FLIPPED[op]
    if isinstance(left, Sym) and symbols(left) and not symbols(right):
        return op, right
    if not isinstance(left, SCALARS) or not isinstance(right, SCALARS):
        return None
    line = normal_form.linear(Add((left, negative(right))))
    if line is None:
        return None
    _, slope, constant = line
    return (op if slope > 0 else FLIPPED[op]), Num(-constant / slope)
