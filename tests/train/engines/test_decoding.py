from __future__ import annotations

from srpo_train.engines.decoding import Row, plan_batches


def row(index: int, prompt_length: int, limit: int = 4, token: int = 1) -> Row:
    return Row(index=index, prompt=(token,) * prompt_length, limit=limit, seed=index, stops=())


def plan(rows, max_tokens=1000, max_rows=100) -> list[list[int]]:
    return [[row.index for row in batch] for batch in plan_batches(rows, max_tokens=max_tokens, max_rows=max_rows)]


def test_every_row_is_in_exactly_one_batch():
    rows = [row(index, 1 + index * 7 % 5, limit=1 + index % 3) for index in range(40)]
    batches = plan(rows, max_tokens=30)
    assert sorted(index for batch in batches for index in batch) == list(range(40))
    assert len(batches) > 1


def test_rows_times_longest_prompt_and_limit_stay_in_the_budget():
    rows = [row(index, 1 + index * 7 % 5, limit=1 + index % 3) for index in range(40)]
    for batch in plan_batches(rows, max_tokens=30, max_rows=100):
        width = max(len(row.prompt) for row in batch) + max(row.limit for row in batch)
        assert len(batch) * width <= 30


def test_longest_prompts_come_first():
    assert plan([row(0, 2), row(1, 9), row(2, 5)], max_rows=1) == [[1], [2], [0]]


def test_identical_prompts_stay_together():
    rows = [row(index, 3, token=1 + index % 2) for index in range(6)]
    assert plan(rows, max_rows=3) == [[0, 2, 4], [1, 3, 5]]


def test_a_row_larger_than_the_budget_is_sampled_alone():
    # Padded sizes 60, 6 and 6 with a budget of 12: the two small ones just fit together.
    assert plan([row(0, 2), row(1, 56), row(2, 2)], max_tokens=12) == [[1], [0, 2]]


def test_no_rows_make_no_batches():
    assert plan([]) == []
