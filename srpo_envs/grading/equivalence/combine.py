"""Joining the items of a list: conditions by their connective, everything else as a listing."""

from __future__ import annotations

from . import normal_form
from .nodes import SCALARS, AllOf, AnyOf, Listing, Node, Rel

_ORDER = frozenset(("<", ">", "le", "ge", "ne"))


def _are_one_value(items: list[Node]) -> bool:
    """Whether items are one number in several spellings, as in `1/2 or 0.5`."""
    first, *rest = items
    return isinstance(first, SCALARS) and all(
        isinstance(item, SCALARS) and normal_form.is_equal(first, item) for item in rest
    )


def combine(items: list[Node], joiners: list[str]) -> Node:
    """Join the items of the top level: conditions by their connective, everything else as a listing."""
    if len(items) == 1 or (set(joiners) == {"or"} and _are_one_value(items)):
        return items[0]
    are_conditions = all(isinstance(item, Rel) and _ORDER.issuperset(item.ops) for item in items)
    if are_conditions and all(joiner == "or" for joiner in joiners):
        return AnyOf(tuple(items))
    if are_conditions and all(joiner == "and" for joiner in joiners):
        return AllOf(tuple(items))
    return Listing(tuple(items))
