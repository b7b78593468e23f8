"""The tree an answer is read into. Every node is immutable and hashable, so equal trees are equal answers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction


class Unreadable(Exception):
    """The text is not an answer this grader can read."""


class Undefined(Exception):
    """The expression has no value, for example a division by zero."""


class TooHard(Exception):
    """A cheap method gives up; a dearer one may still decide."""


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all nodes."""

    def children(self) -> tuple[Node, ...]:
        """Return the nodes directly below this one."""
        found: list[Node] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found.extend(item for item in value if isinstance(item, Node))
        return tuple(found)


# --- scalars ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Num(Node):
    """An exact rational number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Sym(Node):
    """A variable, or one of the constants `pi`, `e` and `i`."""

    name: str


@dataclass(frozen=True, slots=True)
class Inf(Node):
    """Plus or minus infinity, legal only as a whole value or as an end of an interval."""

    sign: int


@dataclass(frozen=True, slots=True)
class Add(Node):
    """A sum."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mul(Node):
    """A product; a quotient is a product with a power of -1."""

    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pow(Node):
    """A power or a root."""

    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Func(Node):
    """A known function of its arguments, or an unknown one (its name then starts with a colon)."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PlusMinus(Node):
    """Plus-minus (sign 1) or minus-plus (sign -1) in front of a value; expanded right after reading."""

    value: Node
    sign: int


# --- values that are not plain numbers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit: `unit` maps base units to exponents, `factor` converts to them."""

    value: Node
    unit: tuple[tuple[str, int], ...]
    factor: Fraction


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    """A ratio such as 3:4 or 1:2:3."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Clock(Node):
    """A time of day; `meridiem` is 'am', 'pm' or empty."""

    hour: int
    minute: int
    meridiem: str


@dataclass(frozen=True, slots=True)
class BaseNumber(Node):
    """A numeral with an explicit base: upper-case digits without leading zeros."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Words, or formulas outside the grammar, in a canonical spelling; equal only to themselves."""

    canonical: str


# --- collections --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tup(Node):
    """An ordered tuple with its brackets; with two items it may also be an interval."""

    opening: str
    items: tuple[Node, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class SetOf(Node):
    """A set in braces."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listing(Node):
    """Several answers side by side, in no particular order."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    """A matrix, row by row."""

    rows: tuple[Tup, ...]


@dataclass(frozen=True, slots=True)
class Reals(Node):
    """The set of all real numbers."""


@dataclass(frozen=True, slots=True)
class SetOp(Node):
    """A union, an intersection or a difference of sets: `op` is 'cup', 'cap' or 'minus'."""

    op: str
    left: Node
    right: Node


# --- statements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rel(Node):
    """A chain of relations: `ops[k]` stands between `members[k]` and `members[k + 1]`."""

    members: tuple[Node, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllOf(Node):
    """Conditions that hold together."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf(Node):
    """Conditions of which one holds."""

    items: tuple[Node, ...]


SCALARS = (Num, Sym, Add, Mul, Pow, Func, PlusMinus)
"""The node types of plain expressions."""

ZERO, ONE, MINUS_ONE = Num(Fraction(0)), Num(Fraction(1)), Num(Fraction(-1))


def negative(node: Node) -> Node:
    """Return minus a node."""
    if isinstance(node, Num):
        return Num(-node.value)
    return Inf(-node.sign) if isinstance(node, Inf) else Mul((MINUS_ONE, node))


def quotient(numerator: Node, denominator: Node) -> Node:
    """Return a fraction; of two numbers it is a number."""
    if isinstance(numerator, Num) and isinstance(denominator, Num) and denominator.value:
        return Num(numerator.value / denominator.value)
    return Mul((numerator, Pow(denominator, MINUS_ONE)))


def all_symbols(node: Node) -> list[str]:
    """Return the names of all symbols in a tree, with repetitions."""
    own = [node.name] if isinstance(node, Sym) else []
    return own + [name for child in node.children() for name in all_symbols(child)]


def symbols(node: Node) -> set[str]:
    """Return the names of the variables in a tree."""
    return set(all_symbols(node)) - {"pi", "e", "i"}
