"""The PettingZoo AEC view."""

from __future__ import annotations

import pytest

from srpo_envs.errors import EnvMisuseError, MemberMismatchError, ToolError
from srpo_envs.views import AecSetEnv


def play(view, steps):
    """Play scripted events; return who was selected and, for every agent, the rewards `last` gave it."""
    selected, received = [], dict.fromkeys(view.possible_agents, 0.0)
    texts = iter([actions[agent] for actions in steps for agent in actions])
    for agent in view.agent_iter():
        _, reward, terminated, truncated, _ = view.last()
        received[agent] += reward
        selected.append(agent)
        view.step(None if terminated or truncated else next(texts))
    return selected, received


def test_selection_walks_the_members_and_then_the_finished_agents(team, script):
    view = AecSetEnv(team)
    view.reset(seed=0)
    selected, _ = play(view, script(team.episode.task["gold"]))
    assert selected == [
        *("solver_0", "solver_1", "verifier_0", "aggregator_0"),
        *("solver_0", "solver_1", "verifier_0", "aggregator_0"),  # None steps
    ]


def test_rewards_reach_members_who_acted_early(team, script):
    # br-032: -0.1 for the malformed draft and 1 for the answer, whoever acted when.
    view = AecSetEnv(team)
    view.reset(seed=0)
    _, received = play(view, script(team.episode.task["gold"]))
    assert received == {agent: pytest.approx(0.9) for agent in view.possible_agents}


def test_members_of_one_set_do_not_see_each_other(team):
    view = AecSetEnv(team)
    view.reset(seed=0)
    before = view.observe("solver_1")
    view.step("the first draft")
    assert view.agent_selection == "solver_1"
    assert view.observe("solver_1") == before
    assert "the first draft" not in view.observe("solver_1")["prompt"]


def test_the_world_moves_after_the_last_member_only(team):
    view = AecSetEnv(team)
    view.reset(seed=0)
    view.step("a")
    assert team.episode.events == ()
    view.step("b")
    assert [member.text for member in team.episode.events[0].members] == ["a", "b"]


def test_it_plays_the_same_episode_as_the_set_interface(team, script):
    view = AecSetEnv(team)
    view.reset(seed=0)
    steps = script(team.episode.task["gold"])
    play(view, steps)
    through_view = team.episode
    active = team.reset(seed=0)
    for actions in steps:
        active = team.step(active.outputs(list(actions.values()))).next
    assert [event.state_id for event in team.episode.events] == [event.state_id for event in through_view.events]
    assert team.episode.info == through_view.info


def test_truncation_reaches_every_agent(routed_team):
    view = AecSetEnv(routed_team)
    view.reset(seed=0)
    view.step("nobody")
    view.step("nobody")
    assert set(view.truncations.values()) == {True}
    assert set(view.terminations.values()) == {False}


def test_a_failed_transition_can_be_tried_again(team, script, monkeypatch):
    view = AecSetEnv(team)
    view.reset(seed=0)
    gold = team.episode.task["gold"]
    steps = script(gold)
    for actions in steps[:-1]:
        for text in actions.values():
            view.step(text)
    grade = team.tasks.grade

    def broken(task, answer):
        raise ToolError("the grader is away")

    monkeypatch.setattr(team.tasks, "grade", broken)
    before = (view.agent_selection, view.last())
    with pytest.raises(ToolError):
        view.step(steps[-1]["aggregator_0"])
    assert (view.agent_selection, view.last()) == before
    monkeypatch.setattr(team.tasks, "grade", grade)
    view.step(steps[-1]["aggregator_0"])
    assert team.episode.reward == 1.0


def test_a_reset_amid_the_none_steps_starts_afresh(team, script):
    view = AecSetEnv(team)
    view.reset(seed=0)
    steps = script(team.episode.task["gold"])
    for actions in steps:
        for text in actions.values():
            view.step(text)
    view.step(None)
    view.reset(seed=0)
    selected, _ = play(view, steps)
    assert selected[:4] == ["solver_0", "solver_1", "verifier_0", "aggregator_0"]


def test_misuse_raises(team):
    view = AecSetEnv(team)
    with pytest.raises(EnvMisuseError, match="reset"):
        view.step("x")
    view.reset(seed=0)
    with pytest.raises(MemberMismatchError, match="expected a str action"):
        view.step(None)
    assert view.agent_selection == "solver_0"
