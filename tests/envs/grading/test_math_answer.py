"""Answer equivalence: every kind, the golds' own readability, and what no text may do."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from answer_kinds import KINDS

from srpo_envs.errors import UnreadableGoldError
from srpo_envs.grading import MathGrader, check_gold, is_equivalent, shared_grader
from srpo_envs.grading.equivalence.compare import CheapJudge
from srpo_envs.grading.equivalence.decide import FAILURES, decide

EQUAL = [(kind, gold, answer) for kind, (equal, _) in KINDS.items() for gold, answer in equal]
UNEQUAL = [(kind, gold, answer) for kind, (_, unequal) in KINDS.items() for gold, answer in unequal]


@pytest.mark.parametrize(("kind", "gold", "answer"), EQUAL)
def test_equal_answers_are_accepted(kind: str, gold: str, answer: str) -> None:
    assert is_equivalent(gold, answer)


@pytest.mark.parametrize(("kind", "gold", "answer"), UNEQUAL)
def test_unequal_answers_are_rejected(kind: str, gold: str, answer: str) -> None:
    assert not is_equivalent(gold, answer)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"empty_and_junk"}))
def test_unequal_pairs_are_rejected_the_other_way_round(kind: str) -> None:
    for answer, gold in KINDS[kind][1]:
        try:
            check_gold(gold)
        except UnreadableGoldError:
            continue
        assert not is_equivalent(gold, answer), (gold, answer)


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{", r"\frac{}{}", "{", r"\text{}", r"\sqrt", "?", "$$", "\x00"])
def test_unreadable_gold_is_an_error_and_never_a_reward(gold: str) -> None:
    with pytest.raises(UnreadableGoldError, match="gold answer"):
        check_gold(gold)
    with pytest.raises(UnreadableGoldError):
        is_equivalent(gold, gold)


HOSTILE = [
    "9**9**9**9",
    "10**9!",
    r"\binom{10^{30}}{10^{29}}",
    "1e999999999",
    r"\sin(9^{9^9})",
    "(x+1)^{1000000}",
    "|" * 51 + "x" + "|" * 51,
    "2^" * 1000 + "2",
    r"\sqrt{" * 50 + "2" + "}" * 50,
    r"\{" + "1," * 1900 + r"1\}",
    "1" * 4000,
    "1e4000",
    r"\pm 1" * 20,
    r"\text{" * 600 + "}" * 600,
    "__import__('os').system('true')",
    "lambda: 5",
    "(1).__class__",
    r"\input{/etc/passwd}",
    r"\def\x{5}\x",
    "5;import os",
    "\ud800",
    "5\u202e",
    "five",
    "0x5",
    r"\{" + ",".join(f"(1+x)^{{24}}+{k}" for k in range(60)) + r"\}",
    r"\cdot ".join(["2000!"] * 350),
    "(1+x)" * 700,
    "+".join(["(1+x+y)^{24}"] * 250),
    "+".join(rf"\frac{{1}}{{x+{k}}}" for k in range(200)),
    "(" + "+".join(rf"\sqrt{{{prime}}}" for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)) + ")^{20}",
    "0." + "3" * 3900,
    "(mod" + " " * 3900,
    r"\equiv \mod" * 350,
    r"\sqrt{25+10^{-3000}}",
    r"4+\cos(10^{-700})",
]


@pytest.mark.parametrize("answer", HOSTILE)
@pytest.mark.parametrize("gold", ["5", r"\tan(64x)", "x>1"])
def test_hostile_answers_are_not_equal_within_two_seconds(gold: str, answer: str) -> None:
    is_equivalent(r"\sin x", r"\cos x")
    start = time.perf_counter()
    assert not is_equivalent(gold, answer)
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize("answer", [answer for answer in HOSTILE if len(answer) > 40])
def test_cheap_path_gives_up_before_it_takes_long(answer: str) -> None:
    start = time.process_time()
    with contextlib.suppress(*FAILURES):
        decide("5", answer, CheapJudge())
    assert time.process_time() - start < 1.0


def test_tiny_numbers_are_looked_at_as_deeply_as_they_are_written() -> None:
    # cos(h) = 1 - h^2/2 + ..., so cos(10^-700) differs from 1 in the 1400th digit
    assert not is_equivalent(r"1", r"\cos(10^{-700})")
    assert not is_equivalent(r"\sin x", r"\sin(x+10^{-160})")
    assert is_equivalent(r"\cos(10^{-700})", r"1-2\sin^2(\frac{10^{-700}}{2})")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=r"0123456789abxei+-*/^_(){}[]\, .=<>|!%$piqrtsfcn", max_size=30))
def test_no_text_makes_a_check_raise(answer: str) -> None:
    assert is_equivalent("7919", answer) in (True, False)


NUMBERS = st.fractions(min_value=-50, max_value=50, max_denominator=12)


@given(NUMBERS, NUMBERS)
def test_fractions_are_equal_exactly_when_their_values_are(left, right) -> None:  # type: ignore[no-untyped-def]
    spelled = rf"\frac{{{right.numerator}}}{{{right.denominator}}}"
    assert is_equivalent(f"{left.numerator}/{left.denominator}", spelled) == (left == right)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_expanded_and_factored_polynomials_are_equal(roots: list[int], wrong: int) -> None:
    factored = "".join(f"(x-({root}))" for root in roots)
    coefficients = [1]
    for root in roots:
        coefficients = [a - root * b for a, b in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    expanded = "+".join(f"({c})x^{{{len(roots) - k}}}" for k, c in enumerate(coefficients))
    assert is_equivalent(factored, expanded)
    assert not is_equivalent(factored, f"{expanded}+{wrong}")


def test_checks_work_from_many_threads_at_once() -> None:
    results: list[bool] = []

    def check() -> None:
        results.append(is_equivalent(r"\cos^2 x", r"1-\sin^2 x"))

    threads = [threading.Thread(target=check) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 12


def test_cheap_checks_start_no_worker_and_are_counted() -> None:
    grader = MathGrader(num_workers=1)
    assert grader.is_equivalent(r"\frac12", "0.5")
    assert not grader.is_equivalent(r"\sqrt{12}", r"3\sqrt{2}")
    stats = grader.stats()
    assert (stats.checks, stats.cheap, stats.pooled, stats.starts) == (2, 2, 0, 0)
    assert grader.is_equivalent(r"\cos\frac{\pi}{3}", r"\frac12")
    assert (grader.stats().pooled, grader.stats().starts) == (1, 1)
    grader.close()
    grader.close()


def test_shared_grader_serves_again_after_close() -> None:
    shared_grader().close()
    assert is_equivalent(r"\log_2 32", "5")
