"""Costs: every figure of an episode by hand, and latency along the critical path."""

from __future__ import annotations

import dataclasses

import pytest
from factories import make_episode, make_event, make_member
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.records import ToolCall
from srpo_train.costs import (
    Cost,
    clocks,
    episode_cost,
    event_latency,
    mean_costs,
    repeated_prompt_tokens,
    summarize_costs,
    token_utility,
    without_clocks,
)


def search(duration_s, kind="tool"):
    return ToolCall(name="search", arguments={}, result=[], kind=kind, duration_s=duration_s)


def timed_event(seconds, *, number=0, lengths=None, tool_calls=(), **fields):
    """An event whose members took these seconds; None for one that was not timed."""
    lengths = lengths or [3] * len(seconds)
    members = tuple(
        make_member(index, length=length, timings={} if second is None else {"generate_s": second, "queue_s": 0.5})
        for index, (second, length) in enumerate(zip(seconds, lengths, strict=True))
    )
    return make_event(len(seconds), members=members, number=number, tool_calls=tuple(tool_calls), **fields)


def searching_episode(**fields):
    """Three drafts (5, 7 and 2 tokens) and a search, then an answer (4 tokens)."""
    first = timed_event([1.0, 3.0, 2.0], lengths=[5, 7, 2], tool_calls=[search(0.25), search(0.0)])
    second = timed_event([4.0], number=1, lengths=[4], turn=1, tool_calls=[search(9.0, "grade")])
    return make_episode(events=(first, second), setup_tool_calls=(search(0.125),), **fields)


def test_every_figure_of_an_episode():
    assert episode_cost(searching_episode()) == Cost(
        num_tokens=18,
        num_uncounted=0,
        num_calls=4,
        num_tool_calls=3,
        num_events=2,
        num_turns=2,
        num_prompt_tokens=8,  # four prompts of two tokens
        num_repeated_prompt_tokens=6,  # all but the first, which are equal
        engine_s=10.0,
        queue_s=2.0,
        tool_s=0.375,
        grade_s=9.0,
        latency_s=0.125 + 3.0 + 0.25 + 4.0,  # setup, slowest draft, its search, the answer; no grading
    )


def test_what_was_not_measured_is_none():
    events = (timed_event([1.0, None]), timed_event([2.0], number=1))
    cost = episode_cost(make_episode(events=events))
    assert (cost.engine_s, cost.queue_s, cost.latency_s, cost.tool_s) == (None, None, None, 0.0)
    unseen = dataclasses.replace(events[1].members[0], prompt_token_ids=(), token_mask=())
    cost = episode_cost(make_episode(events=(events[0], dataclasses.replace(events[1], members=(unseen,)))))
    assert (cost.num_prompt_tokens, cost.num_repeated_prompt_tokens, cost.num_uncounted) == (None, None, 1)


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=6),
    st.lists(st.floats(0, 1e4), max_size=3),
)
def test_an_event_takes_as_long_as_its_slowest_member_and_no_longer_than_all_in_turn(seconds, tools):
    latency = event_latency(timed_event(seconds, tool_calls=[search(duration) for duration in tools]))
    assert all(latency >= second for second in seconds)
    assert latency <= sum(seconds) + sum(tools) + 1e-6
    assert latency >= sum(tools)


# --- prompts ------------------------------------------------------------------------------------------------------


def prompted(*prompts, policies="aaaaaaaa"):
    return [
        make_member(
            index, prompt_token_ids=prompt, token_ids=(90 + index,), behavior_logprobs=(-1.0,), token_mask=(1,),
            policy_id=policy,
        )
        for index, (prompt, policy) in enumerate(zip(prompts, policies, strict=False))
    ]  # fmt: skip


def test_a_prompt_repeats_what_its_policy_read_or_wrote_before():
    # 4 of the second's tokens are the first's prompt, a fifth the first's response; the third shares 2 with both.
    members = prompted((1, 2, 3, 4), (1, 2, 3, 4, 90, 5), (1, 2, 9))
    assert repeated_prompt_tokens(members) == 0 + 5 + 2
    assert repeated_prompt_tokens(prompted((1, 2, 3), (1, 2, 3), policies="ab")) == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), max_size=6))
def test_repeated_tokens_are_those_of_the_longest_shared_prefix(prompts):
    members = prompted(*prompts)
    expected, seen = 0, []
    for member in members:
        prompt = member.prompt_token_ids
        lengths = [n for other in seen for n in range(len(prompt) + 1) if prompt[:n] == other[:n]]
        expected += max(lengths, default=0)
        seen.append(prompt + member.token_ids)
    assert repeated_prompt_tokens(members) == expected


# --- many episodes ------------------------------------------------------------------------------------------------


def cost(num_tokens=10, **fields):
    defaults = {
        "num_uncounted": 0, "num_calls": 2, "num_tool_calls": 0, "num_events": 1, "num_turns": 1,
        "num_prompt_tokens": None, "num_repeated_prompt_tokens": None, "engine_s": None, "queue_s": None,
        "tool_s": 0.0, "grade_s": 0.0, "latency_s": None,
    }  # fmt: skip
    return Cost(num_tokens=num_tokens, **(defaults | fields))


def test_a_summary_by_hand():
    values = summarize_costs([searching_episode(), make_episode(events=(timed_event([2.0]),), episode_id="b")])
    assert values == {
        "num_tokens": 21.0,
        "num_calls": 5.0,
        "num_tool_calls": 3.0,
        "tokens_per_query": 10.5,
        "calls_per_query": 2.5,
        "tool_calls_per_query": 1.5,
        "turns_per_query": 1.5,
        "prompt_tokens_per_query": 5.0,
        "repeated_prompt_tokens_per_query": 3.0,
        "cardinality_mean": 5 / 3,
        "response_length_mean": 21 / 5,
        "cost_proxy": pytest.approx(7.0),  # K * T, which is tokens per event: 21 / 3
        "out_of_budget_share": 0.0,
        "engine_s_per_query": 6.0,
        "queue_s_per_query": 1.25,
        "tool_s_per_query": 0.1875,
        "grade_s_per_query": 4.5,
        "latency_p50_s": (7.375 + 2.0) / 2,
        "latency_p95_s": pytest.approx(2.0 + 0.95 * 5.375),  # linear between the two
    }


def test_percentiles_are_interpolated():
    values = mean_costs([cost(latency_s=float(second)) for second in (3, 1, 2, 5, 4)])
    assert (values["latency_p50_s"], values["latency_p95_s"]) == (3.0, pytest.approx(4.8))


def test_a_figure_that_an_episode_lacks_is_absent_and_never_0():
    values = mean_costs([cost(latency_s=1.0, engine_s=1.0, num_prompt_tokens=4), cost(num_uncounted=1)])
    absent = {"latency_p50_s", "latency_p95_s", "engine_s_per_query", "prompt_tokens_per_query", "tokens_per_query"}
    assert not absent & values.keys()
    assert not {"cost_proxy", "response_length_mean", "queue_s_per_query"} & values.keys()
    assert values["cardinality_mean"] == 2.0


def test_episodes_that_ran_out_of_budget_are_counted():
    cut = make_episode(info={"stopped_by": "budget.team_tokens"}, truncated=True, terminated=False)
    assert summarize_costs([cut, make_episode(info={"stopped_by": "approval"})])["out_of_budget_share"] == 0.5


def test_no_episodes_cost_nothing():
    assert summarize_costs([]) == {"num_tokens": 0.0, "num_calls": 0.0, "num_tool_calls": 0.0}


def test_clocks_are_told_from_what_episodes_decide():
    values = summarize_costs([searching_episode()])
    assert set(clocks(values)) == {
        "engine_s_per_query", "queue_s_per_query", "tool_s_per_query", "grade_s_per_query", "latency_p50_s",
        "latency_p95_s",
    }  # fmt: skip
    assert clocks(values) | without_clocks(values) == values


def test_utility_is_successes_per_million_tokens_of_a_trajectory():
    # Eq. 9: query a solved by 3 of 4 samples at a mean of 20 tokens, b by 1 of 2 at 30: 1e6 * (0.75 + 0.5) / 50.
    costs = {"a": [cost(10), cost(30), cost(20), cost(20)], "b": [cost(25), cost(35)]}
    assert token_utility({"a": 0.75, "b": 0.5}, costs) == 25_000.0
    # However many samples are drawn: it does not grow with k.
    assert token_utility({"a": 0.75, "b": 0.5}, {name: samples * 4 for name, samples in costs.items()}) == 25_000.0


def test_there_is_no_utility_where_tokens_are_not_counted():
    assert token_utility({"a": 1.0}, {"a": [cost(10), cost(0, num_uncounted=1)]}) is None
    assert token_utility({"a": 1.0}, {"a": [cost(0)]}) is None
    assert token_utility({}, {}) is None
