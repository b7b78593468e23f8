"""The judge of the worker processes: exact arithmetic, then many digits, then solution sets."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from . import normal_form, numeric
from .logic import Verdict
from .nodes import Node, Num, Pow, Reals, Rel, Sym, TooHard

Solver = Callable[[Node, Node], bool]


def load_solver() -> Solver:
    """Import sympy, which takes long, and solve one small inequality, which makes it load what it loads late."""
    from .solve import same_solutions

    square = Pow(Sym("x"), Num(Fraction(2)))
    same_solutions(Rel((square, Num(Fraction(4))), ("<",)), Reals())
    return same_solutions


class ThoroughJudge:
    """Decides what `CheapJudge` leaves open; it may take long or much memory, so it runs under limits.

    Args:
        load: returns the solver of conditions; it is called when the first question needs it.
    """

    max_work = normal_form.FULL_WORK

    def __init__(self, load: Callable[[], Solver] = load_solver) -> None:
        self._load = load
        self._solver: Solver | None = None

    def scalars(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        verdict = normal_form.is_equal(left, right)
        return numeric.is_equal(left, right) if verdict is None else verdict

    def equations(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        if normal_form.proportion(left, right) is not None:
            return True
        return numeric.are_proportional(left, right)

    def solutions(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        self._solver = self._solver or self._load()
        try:
            return self._solver(left, right)
        except TooHard:
            return None
