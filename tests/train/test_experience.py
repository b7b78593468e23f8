"""Experience: what is trained on, with which advantage, and what is left out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from factories import make_episode, make_event, make_member

from srpo_envs.errors import ConfigError
from srpo_train.experience import build_experience
from srpo_train.objective import preset

SRPO = preset("srpo")


def make_group(rewards, cardinalities=(3, 1), group_id="q"):
    return [
        make_episode(cardinalities, episode_id=f"{group_id}{index}", reward=reward, group_id=group_id)
        for index, reward in enumerate(rewards)
    ]


def in_group(episode, group_id):
    events = tuple(dataclasses.replace(event, group_id=group_id) for event in episode.events)
    return dataclasses.replace(episode, group_id=group_id, events=events)


def test_events_are_compared_within_prompt_and_event_type():
    episodes = make_group([1.0, 0.0])
    batch = build_experience(episodes, SRPO, max_row_tokens=100).batch
    assert batch.event_ids == ["q0/e0", "q0/e1", "q1/e0", "q1/e1"]
    # Two returns 1 and 0 of each type: mean 1/2, sample deviation sqrt(1/2), so A = 0.5 / (0.7071 + 1e-6) = 0.70711.
    assert batch.advantage_E.tolist() == pytest.approx([0.707106, 0.707106, -0.707106, -0.707106], abs=1e-6)


def test_prompts_are_not_compared_with_one_another():
    episodes = [in_group(episode, f"q{index}") for index, episode in enumerate(make_group([1.0, 0.0]))]
    assert build_experience(episodes, SRPO, max_row_tokens=100).batch.advantage_E.tolist() == [0.0] * 4


def test_every_member_carries_its_tokens_and_the_advantage_of_its_event():
    batch = build_experience(make_group([1.0, 0.0]), SRPO, max_row_tokens=100).batch
    assert [(row.event_index, row.member_index) for row in batch.rows[:4]] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert batch.rows[0].token_ids == (10, 11, 12)
    assert batch.rows[0].old_logprobs == (-0.5, -0.5, -0.5)
    assert batch.advantage_M.tolist() == [batch.advantage_E.tolist()[row.event_index] for row in batch.rows]


def test_an_event_without_all_its_members_is_left_out_and_moves_no_baseline():
    # br-012: the third rollout lost a drafter; the group of drafts is then the first two alone.
    whole, other, broken = make_group([1.0, 0.0, 5.0])
    draft = broken.events[0]
    lost = dataclasses.replace(draft, members=draft.members[:2])
    broken = dataclasses.replace(broken, events=(lost, broken.events[1]))
    experience = build_experience([whole, other, broken], SRPO, max_row_tokens=100)
    assert experience.dropped == {"incomplete": 1, "overlong": 0, "uniform": 0}
    advantages = dict(zip(experience.batch.event_ids, experience.batch.advantage_E.tolist(), strict=True))
    assert "q2/e0" not in advantages
    assert advantages["q0/e0"] == pytest.approx(0.707106, abs=1e-6)
    assert advantages["q1/e0"] == pytest.approx(-0.707106, abs=1e-6)


def test_an_aborted_member_makes_its_event_incomplete():
    # br-039
    episode = make_episode((2, 1))
    members = (episode.events[0].members[0], make_member(1, finish_reason="abort"))
    events = (dataclasses.replace(episode.events[0], members=members), episode.events[1])
    experience = build_experience([dataclasses.replace(episode, events=events)], SRPO, max_row_tokens=100)
    assert experience.dropped["incomplete"] == 1
    assert experience.batch.event_ids == ["ep/e1"]


def test_an_overlong_row_takes_its_whole_event_along_before_returns_are_compared():
    first, second, long = make_group([1.0, 0.0, 9.0])
    event = make_event(3, lengths=[3, 3, 40], episode_id="q2", group_id="q", team_return=9.0)
    long = dataclasses.replace(long, events=(event, long.events[1]))
    experience = build_experience([first, second, long], SRPO, max_row_tokens=20)
    assert experience.dropped == {"incomplete": 0, "overlong": 1, "uniform": 0}
    advantages = dict(zip(experience.batch.event_ids, experience.batch.advantage_E.tolist(), strict=True))
    assert "q2/e0" not in advantages
    assert advantages["q0/e0"] == pytest.approx(0.707106, abs=1e-6)


def test_outputs_that_no_policy_sampled_are_not_trained_on():
    event = make_event(1, members=(make_member(0, prompt_token_ids=()),))
    assert build_experience([make_episode(events=(event,))], SRPO, max_row_tokens=100).batch.num_events == 0


def test_texts_of_a_policy_without_their_tokens_are_refused():
    texts_only = make_member(
        0, policy_id="gpt", text="7", prompt_token_ids=(), token_ids=(), behavior_logprobs=(), token_mask=(1, 1)
    )
    episode = make_episode(events=(make_event(1, members=(texts_only,)),))
    with pytest.raises(ConfigError, match="policy 'gpt' answered member_index 0 without token ids"):
        build_experience([episode], SRPO, max_row_tokens=100)


def test_questions_whose_advantages_are_all_0_are_left_out_when_the_objective_says_so():
    mixed = make_group([1.0, 0.0])
    same = [in_group(episode, "r") for episode in make_group([1.0, 1.0], group_id="r")]
    kept = build_experience([*mixed, *same], preset("grpo"), max_row_tokens=100)
    assert (kept.batch.num_events, kept.dropped["uniform"]) == (8, 0)
    left = build_experience([*mixed, *same], preset("dapo"), max_row_tokens=100)
    assert left.batch.event_ids == ["q0/e0", "q0/e1", "q1/e0", "q1/e1"]
    assert left.dropped == {"incomplete": 0, "overlong": 0, "uniform": 4}
    assert build_experience(same, preset("dapo"), max_row_tokens=100).batch.num_events == 0


def test_a_critic_s_values_and_targets_stay_with_their_events():
    # Returns 1 and 0; the critic says 0.1, 0.2, ... by event. With lambda 1 targets are the returns.
    asked = []

    def values(batch):
        asked.append(batch.event_ids)
        return torch.arange(1, batch.num_events + 1, dtype=torch.float64) / 10

    episodes = make_group([1.0, 0.0])
    objective = preset("ppo", gae_lambda=1.0, whiten=False)
    batch = build_experience(episodes, objective, max_row_tokens=100, values=values).batch
    assert asked == [["q0/e0", "q0/e1", "q1/e0", "q1/e1"]]
    assert batch.value_E.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert batch.value_target_E.tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert batch.advantage_E.tolist() == pytest.approx([0.9, 0.8, -0.3, -0.4])
    part = batch.select([3, 0])
    assert part.value_E.tolist() == pytest.approx([0.4, 0.1])
    assert part.value_target_E.tolist() == pytest.approx([0.0, 1.0])
    with pytest.raises(ConfigError, match="'gae' needs a critic's values"):
        build_experience(episodes, objective, max_row_tokens=100)


def test_gigpo_s_anchors_are_the_recorded_states():
    # Two episodes begin alike; their second events are in states of their own and add nothing.
    first, second = make_group([1.0, 0.0])
    at_start = [
        dataclasses.replace(e, events=(dataclasses.replace(e.events[0], state_id="s"), e.events[1]))
        for e in (first, second)
    ]
    apart = [at_start[0], dataclasses.replace(at_start[1], events=(second.events[0], at_start[1].events[1]))]
    objective = preset("gigpo", gamma=1.0)
    anchored = build_experience(at_start, objective, max_row_tokens=100).batch.advantage_E.tolist()
    assert anchored == pytest.approx([1.414212, 0.707106, -1.414212, -0.707106], abs=1e-5)
    alone = build_experience(apart, objective, max_row_tokens=100).batch.advantage_E.tolist()
    assert alone == pytest.approx([0.707106, 0.707106, -0.707106, -0.707106], abs=1e-5)


def test_nothing_to_train_on_is_an_empty_batch():
    experience = build_experience([], SRPO, max_row_tokens=100)
    assert experience.batch.num_events == 0
    assert experience.batch.rows == []


def test_row_wise_baselines_charge_a_penalty_to_the_malformed_row_alone():
    # Dr. MAS: team reward 1; two drafters were malformed (penalty 0.1 each), so they score 0.9 and the other scores 1.
    bad = {"malformed_reason": "no box", "parsed": None}
    members = (make_member(0, **bad), make_member(1), make_member(2, **bad))
    event = make_event(3, members=members, penalty=0.2, reward=-0.2, team_return=0.8)
    episode = make_episode(events=(event,))
    objective = preset("dr_mas", group_key=("group",))
    advantage_M = build_experience([episode], objective, max_row_tokens=100).batch.advantage_M
    # Scores 0.9, 1, 0.9: mean 28/30, sample deviation sqrt((2 (1/30)^2 + (2/30)^2) / 2) = 0.057735. Division by
    # the deviation hides the size of the penalty; a large floor shows it.
    assert advantage_M.tolist() == pytest.approx([-0.577340, 1.154681, -0.577340], abs=1e-4)
    raw = build_experience([episode], preset("magrpo", estimator="row_relative", std_floor=1.0), max_row_tokens=100)
    # (0.9 - 28/30) / (0.057735 + 1) = -0.031514.
    assert raw.batch.advantage_M[0].item() == pytest.approx(-0.031514, abs=1e-5)


def test_every_preset_gives_finite_advantages_to_real_episodes():
    episodes = make_group([1.0, 0.0, 1.0, 0.5], cardinalities=(2, 1, 1))
    for name in ("srpo", "grpo", "dr_mas", "at_grpo", "magrpo", "gspo", "dapo", "rloo"):
        batch = build_experience(episodes, preset(name), max_row_tokens=100).batch
        assert batch.num_events == 12, name
        assert batch.advantage_M.isfinite().all(), name
        assert (batch.advantage_M != 0).any(), name
