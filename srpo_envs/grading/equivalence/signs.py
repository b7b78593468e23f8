"""Plus-minus values, written out as the listing of what they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from .nodes import Listing, Node, PlusMinus, SetOf, Unreadable, negative

MAX_SIGNS = 4
"""More plus-minus signs than this in one value are unreadable."""


def expand_signs(node: Node) -> Node:
    """Replace plus-minus values by the listing of what they stand for.

    Several plus-minus signs in one value are independent of each other unless a minus-plus is among them.

    Raises:
        Unreadable: more than `MAX_SIGNS` signs.
    """
    if isinstance(node, Listing):
        return Listing(tuple(_flat(expand_signs(item) for item in node.items)))
    if isinstance(node, SetOf):
        return SetOf(tuple(_flat(expand_signs(item) for item in node.items)))
    signs = _signs(node)
    if not signs:
        return node
    if len(signs) > MAX_SIGNS:
        raise Unreadable("too many plus-minus signs")
    if -1 in signs:
        choices = [[1] * len(signs), [-1] * len(signs)]
    else:
        choices = [[1 if index >> k & 1 else -1 for k in range(len(signs))] for index in range(2 ** len(signs))]
    return Listing(tuple(_with_signs(node, iter(choice)) for choice in choices))


def _flat(nodes: Iterable[Node]) -> list[Node]:
    found: list[Node] = []
    for node in nodes:
        found.extend(node.items if isinstance(node, Listing) else [node])
    return found


def _signs(node: Node) -> list[int]:
    own = [node.sign] if isinstance(node, PlusMinus) else []
    return own + [sign for child in node.children() for sign in _signs(child)]


def _with_signs(node: Node, choice: Iterator[int]) -> Node:
    """Return the node with each plus-minus replaced by the next chosen sign."""
    if isinstance(node, PlusMinus):
        positive = next(choice) * node.sign > 0
        inner = _with_signs(node.value, choice)
        return inner if positive else negative(inner)
    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            changes[name] = _with_signs(value, choice)
        elif isinstance(value, tuple) and any(isinstance(item, Node) for item in value):
            changes[name] = tuple(_with_signs(item, choice) if isinstance(item, Node) else item for item in value)
        else:
            changes[name] = value
    return type(node)(**changes) if changes else node
