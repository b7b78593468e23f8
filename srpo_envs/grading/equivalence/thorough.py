"""The judge of the worker processes: exact arithmetic, then many digits, then solution sets."""

from __future__ import annotations

from fractions import Fraction

from . import normal_form, numeric, solve
from .logic import Verdict
from .nodes import Node, Num, Pow, Reals, Rel, Sym, TooHard


def warm_up() -> None:
    """Solve one small inequality, which makes sympy load what it loads late."""
    square = Pow(Sym("x"), Num(Fraction(2)))
    solve.same_solutions(Rel((square, Num(Fraction(4))), ("<",)), Reals())


class ThoroughJudge:
    """Decides what `CheapJudge` leaves open; it may take long or much memory, so it runs under limits."""

    max_work = normal_form.FULL_WORK

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
        try:
            return solve.same_solutions(left, right)
        except TooHard:
            return None
