from __future__ import annotations

import math

import pytest

from srpo_train.engines.kept import within_kept

log = math.log


def test_removed_tokens_are_not_among_those_left():
    listed = [(4, log(0.6)), (9, log(0.4)), (2, -math.inf)]
    assert within_kept((9, log(0.4)), listed) == ((4, 9), pytest.approx(log(0.4)))


def test_an_engine_may_write_a_number_for_minus_infinity():
    assert within_kept((9, 0.0), [(9, 0.0), (2, -9999.0)], lowest=-9999.0) == ((9,), pytest.approx(0.0))


def test_within_a_list_that_is_short_of_a_tie_the_probability_is_that_given_the_list():
    # Three tokens with 1/4 each tie for two places after the one with 1/4: what is listed holds 3/4, so 1/4 is 1/3.
    listed = [(1, log(0.25)), (2, log(0.25)), (3, log(0.25))]
    assert within_kept((2, log(0.25)), listed) == ((1, 2, 3), pytest.approx(log(1 / 3)))


def test_a_sampled_token_beyond_the_list_is_left_too():
    assert within_kept((8, log(0.25)), [(1, log(0.5)), (2, log(0.25))]) == ((1, 2, 8), pytest.approx(log(0.25)))
