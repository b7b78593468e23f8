"""Building the nodes of expressions, with the checks that keep other nodes out of them."""

from __future__ import annotations

from .nodes import MINUS_ONE, SCALARS, Add, Func, Matrix, Mul, Node, Quantity, Tup, Unreadable, negative, quotient
from .units import DEGREE


def scalar(node: Node) -> Node:
    """Return the node if it may stand inside an expression.

    Raises:
        Unreadable: the node is a tuple, a set, a relation, an infinity or a quantity.
    """
    if not isinstance(node, SCALARS):
        raise Unreadable(f"{type(node).__name__} inside an expression")
    return node


def add(terms: list[Node]) -> Node:
    """Return the sum of expressions, or of matrices of one shape entry by entry."""
    matrices = [term for term in terms if isinstance(term, Matrix)]
    if not matrices:
        return Add(tuple(scalar(term) for term in terms))
    shapes = {(len(matrix.rows), len(matrix.rows[0].items)) for matrix in matrices}
    if len(matrices) < len(terms) or len(shapes) > 1:
        raise Unreadable("sum of matrices of different shapes")
    rows = zip(*(matrix.rows for matrix in matrices), strict=True)
    return Matrix(tuple(Tup("(", tuple(map(_entry_sum, *(row.items for row in group))), ")") for group in rows))


def _entry_sum(*entries: Node) -> Node:
    return Add(tuple(scalar(entry) for entry in entries))


def multiply(left: Node, right: Node) -> Node:
    """Return a product; a matrix may stand on the right of an expression."""
    if isinstance(right, Matrix):
        factor = scalar(left)
        return Matrix(tuple(Tup("(", tuple(multiply(factor, item) for item in row.items), ")") for row in right.rows))
    left_factors = left.factors if isinstance(left, Mul) else (scalar(left),)
    return Mul((*left_factors, scalar(right)))


def divide(left: Node, right: Node) -> Node:
    """Return a quotient of expressions."""
    return quotient(scalar(left), scalar(right))


def determinant(rows: list[list[Node]]) -> Node:
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
        term = Mul((item, determinant(minor)))
        terms.append(negative(term) if column % 2 else term)
    return Add(tuple(terms))


def degrees(value: Node) -> Node:
    """Turn a whole value in degrees into a quantity."""
    if isinstance(value, Func) and value.name == "deg":
        return Quantity(value.args[0], DEGREE[0], DEGREE[1])
    if isinstance(value, Mul) and len(value.factors) == 2 and value.factors[0] == MINUS_ONE:
        inner = degrees(value.factors[1])
        if isinstance(inner, Quantity):
            return Quantity(negative(inner.value), inner.unit, inner.factor)
    return value
