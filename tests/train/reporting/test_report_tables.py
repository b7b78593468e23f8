"""`srpo_train.reporting.tables`: what is marked as best, how headings group, what a text becomes."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from srpo_train.reporting.tables import Cell, Column, Row, Score, column_groups, mark_best, plain

SHARES = st.integers(0, 2000).map(lambda number: number / 2000)  # half of them between two shown digits
PERCENT = st.none() | st.builds(Score, SHARES, st.none() | SHARES)
RESULTS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(PERCENT, min_size=width, max_size=width), max_size=4)
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(RESULTS, st.sampled_from(["higher", "lower"]))
def test_bold_marks_exactly_the_best_shown_numbers_of_each_column(scores, better) -> None:
    width = len(scores[0]) if scores else 0
    columns = [Column(name="c", better=better)] * width
    rows = [Row(name="r", cells=tuple(s.cell(scale=100) if s else Cell() for s in line)) for line in scores]
    marked = mark_best(rows, columns)
    assert [[(cell.text, cell.spread) for cell in row.cells] for row in marked] == [
        [(cell.text, cell.spread) for cell in row.cells] for row in rows
    ]
    for place in range(width):
        shown = [row.cells[place] for row in marked if row.cells[place].text != "–"]
        values = sorted((float(cell.text) for cell in shown), reverse=better == "higher")
        for cell in shown:
            assert cell.is_best == (len(shown) > 1 and float(cell.text) == values[0])
        assert not any(row.cells[place].is_best for row in marked if row.cells[place].text == "–")


def test_numbers_that_look_equal_are_equally_good_and_a_number_alone_is_not_best() -> None:
    rows = [
        Row(name="a", cells=(Score(0.6131).cell(scale=100),)),
        Row(name="b", cells=(Score(0.6128).cell(scale=100),)),
    ]
    assert [row.cells[0].is_best for row in mark_best(rows, [Column(name="c", better="higher")])] == [True, True]
    assert not mark_best(rows[:1], [Column(name="c", better="higher")])[0].cells[0].is_best
    assert not any(row.cells[0].is_best for row in mark_best(rows, [Column(name="c")]))


def test_large_numbers_compare_as_numbers() -> None:
    rows = [Row(name=str(value), cells=(Score(value).cell(decimals=0),)) for value in (999, 1000, 47619)]
    assert [cell.text for row in rows for cell in row.cells] == ["999", "1,000", "47,619"]
    marked = mark_best(rows, [Column(name="U", better="higher")])
    assert [row.cells[0].is_best for row in marked] == [False, False, True]


def test_what_is_no_number_is_neither_best_nor_in_the_way() -> None:
    rows = [Row(name="r", cells=(Score(value).cell(),)) for value in (math.nan, 1.0, 2.0, math.nan)]
    for better, best in (("higher", 2), ("lower", 1)):
        marked = mark_best(rows, [Column(name="c", better=better)])
        assert [index for index, row in enumerate(marked) if row.cells[0].is_best] == [best]


def test_a_difference_that_rounds_to_nothing_has_no_sign() -> None:
    assert [Score(value).cell(scale=100).text for value in (-0.0004, 0.0, -0.0006)] == ["0.0", "0.0", "-0.1"]


def test_a_score_over_seeds_has_their_sample_deviation_and_one_seed_has_none() -> None:
    assert Score.over([1.0, 2.0, 3.0]) == Score(2.0, 1.0)
    assert Score.over([1.0]) == Score(1.0, None)
    assert Score.over([1.0, math.inf]).cell() == Cell(text="inf", spread="nan")


def test_a_score_shows_its_deviation_in_the_same_unit() -> None:
    assert Score(0.613, 0.0051).cell(scale=100) == Cell(text="61.3", spread="0.5")
    assert Score(0.5).cell(decimals=2) == Cell(text="0.50")
    assert Score(0.5, 0.0).cell().spread == "0.0"  # equal seeds have a deviation, and it is 0


def test_neighbours_of_one_group_share_a_heading() -> None:
    columns = [Column(name="n"), *(Column(name=n, group=g) for g in ("A", "B") for n in ("x", "y")), Column(name="z")]
    assert column_groups(columns) == [("", 1), ("A", 2), ("B", 2), ("", 1)]
    assert column_groups([Column(name="x"), Column(name="y")]) == []


def test_plain_texts_are_one_line_of_visible_characters() -> None:
    assert plain("a\nb\tc\u2028d") == "a b c d"
    assert plain("\x1b[31m\x00\u202e\ud800é中") == "\ufffd[31m\ufffd\ufffd\ufffdé中"
