"""Summary: figures of a batch of episodes, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from factories import make_episode, make_event, make_member

from srpo_envs.records import ToolCall
from srpo_train.metrics import check_name
from srpo_train.summary import is_correct, summarize, summarize_rollout


def make_batch():
    right = make_episode((3, 1, 1), episode_id="a", reward=1.0)
    wrong = make_episode((1, 1, 1), episode_id="b", reward=0.0, truncated=True, terminated=False, penalty=0.2)
    bad = dataclasses.replace(wrong.events[0].members[0], malformed_reason="no box", finish_reason="length")
    call = ToolCall(name="search", arguments={}, result=[])
    events = (dataclasses.replace(wrong.events[0], members=(bad,), tool_calls=(call,)), *wrong.events[1:])
    return [right, dataclasses.replace(wrong, events=events)]


def test_figures_that_rollouts_and_evaluations_share():
    values = summarize(make_batch(), "eval")
    assert values["eval/accuracy"] == 0.5
    assert values["eval/reward_mean"] == 0.5
    assert values["eval/valid_rate/solver"] == 3 / 4  # three drafts of the first, one malformed of the second
    assert values["eval/valid_rate/aggregator"] == 1.0
    assert values["eval/num_tokens"] == (5 + 3) * 3
    assert values["eval/num_calls"] == 8
    assert values["eval/num_tool_calls"] == 1


def test_figures_of_a_training_step():
    values = summarize_rollout(make_batch())
    assert values["rollout/reward_std"] == 0.5
    assert values["rollout/penalty_mean"] == pytest.approx(0.1)
    assert values["rollout/num_truncated_episodes"] == 1
    assert values["rollout/cut_rate/solver"] == 1 / 4
    assert values["rollout/cardinality/solver"] == 2.0
    assert values["rollout/event_completeness"] == 1.0
    assert values["rollout/zero_variance_groups"] == 0.0  # one group, rewards 1 and 0


def test_a_group_of_equal_rewards_has_no_variance():
    episodes = [make_episode(episode_id=name, group_id=name[0]) for name in ("a1", "a2", "b1")]
    assert summarize_rollout(episodes)["rollout/zero_variance_groups"] == 1.0


def test_an_event_with_a_lost_member_lowers_completeness():
    episode = make_episode(events=(make_event(2, members=(make_member(0),)), make_event(1)))
    assert summarize_rollout([episode])["rollout/event_completeness"] == 0.5


def test_a_truncated_episode_is_not_correct():
    # br-034: running into a limit is no success, whatever the workflow forgot to say.
    assert not is_correct(make_episode(reward=0.0, truncated=True, terminated=False))
    assert is_correct(make_episode(reward=1.0))
    assert not is_correct(make_episode(reward=1.0, info={"correct": False}))


def with_metrics(number, **metrics):
    return make_episode(episode_id=f"m{number}", info={"metrics": metrics})


def test_what_a_workflow_measures_is_averaged_over_the_episodes_that_say_it():
    silent = make_episode(episode_id="cut", truncated=True, terminated=False)  # cut by max_events: it measured nothing
    episodes = [with_metrics(0, num_turns=1, approved=True), with_metrics(1, num_turns=4, approved=False, recall=0.5)]
    for prefix, values in (
        ("eval", summarize([*episodes, silent], "eval")),
        ("rollout", summarize_rollout([*episodes, silent])),
    ):
        assert {name: value for name, value in values.items() if "/env/" in name} == {
            f"{prefix}/env/approved": 0.5,
            f"{prefix}/env/num_turns": 2.5,
            f"{prefix}/env/recall": 0.5,
        }


def test_a_workflow_that_measures_nothing_adds_no_name():
    assert not any("/env/" in name for name in summarize_rollout(make_batch()))


def test_every_name_is_in_the_table():
    batch = [*make_batch(), with_metrics(0, num_turns=1)]
    for name in (*summarize_rollout(batch), *summarize(batch, "eval")):
        check_name(name)


def test_no_episodes_give_zeros_not_errors():
    assert summarize_rollout([])["rollout/reward_mean"] == 0.0
