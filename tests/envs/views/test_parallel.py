"""The PettingZoo parallel view."""

from __future__ import annotations

import pytest

from srpo_envs.errors import EnvMisuseError, MemberMismatchError
from srpo_envs.views import ParallelSetEnv

AGENTS = ["solver_0", "solver_1", "verifier_0", "aggregator_0"]


def play(view, steps):
    return [view.step(actions) for actions in steps]


def test_agents_stay_until_the_end_and_activity_changes(team, script):
    view = ParallelSetEnv(team)
    observations, _ = view.reset(seed=0)
    active = [[agent for agent in AGENTS if observations[agent]["active"]]]
    for actions in script(team.episode.task["gold"]):
        assert view.agents == AGENTS
        observations, *_ = view.step(actions)
        active.append([agent for agent in AGENTS if observations[agent]["active"]])
    assert active == [["solver_0", "solver_1"], ["verifier_0"], ["aggregator_0"], []]
    assert view.agents == []


def test_inactive_agents_see_nothing(team):
    view = ParallelSetEnv(team)
    observations, _ = view.reset(seed=0)
    assert observations["verifier_0"] == {"prompt": "", "active": 0}
    assert observations["solver_0"] == {"prompt": team.pending.members[0].prompt, "active": 1}


def test_infos_hold_the_action_spec(team):
    view = ParallelSetEnv(team)
    _, infos = view.reset(seed=0)
    pending = team.pending
    assert infos["solver_1"] == {
        "event_id": pending.event_id,
        "state_id": pending.state_id,
        "event_type": "solver",
        "turn": 0,
        "cardinality": 2,
        "active": True,
        "member_index": 1,
        "role": "solver",
        "max_new_tokens": pending.members[1].max_new_tokens,
        "stop": (),
    }
    assert infos["verifier_0"]["active"] is False
    assert "member_index" not in infos["verifier_0"]


def test_texts_of_inactive_agents_are_private_drafts(team, script):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    steps = script(team.episode.task["gold"])
    play(view, steps)
    quiet = team.episode
    view.reset(seed=0)
    play(view, [{**dict.fromkeys(AGENTS, "<verify>reject</verify>"), **actions} for actions in steps])
    assert team.episode.info == quiet.info
    assert [event.state_id for event in team.episode.events] == [event.state_id for event in quiet.events]


def test_the_team_reward_reaches_every_agent_once_per_event(team, script):
    # One malformed draft costs 0.1 at the first event, the verdict pays nothing, the right answer pays 1.
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    paid = {agent: [] for agent in AGENTS}
    for _, rewards, *_ in play(view, script(team.episode.task["gold"])):
        for agent in AGENTS:
            paid[agent].append(rewards[agent])
    assert paid == {agent: [pytest.approx(-0.1), 0.0, 1.0] for agent in AGENTS}


def test_the_end_carries_the_outcome_and_the_reasons(team, script):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    gold = team.episode.task["gold"]
    results = play(view, script(gold))
    assert results[0][4]["solver_1"]["malformed_reason"] == "no boxed answer"
    assert results[0][4]["solver_0"]["malformed_reason"] == ""
    assert "malformed_reason" not in results[0][4]["verifier_0"]
    _, _, terminated, truncated, infos = results[-1]
    assert terminated == dict.fromkeys(AGENTS, True)
    assert truncated == dict.fromkeys(AGENTS, False)
    metrics = {"num_drafts": 2, "num_malformed_drafts": 1, "approved": True}
    expected = {"reward": 1.0, "answer": gold, "correct": True, "stopped_by": "approval", "metrics": metrics}
    assert infos["solver_0"]["outcome"] == expected


def test_truncation_reaches_every_agent_and_is_no_success(routed_team):
    # br-033, br-034: two malformed routes use up both rounds.
    view = ParallelSetEnv(routed_team)
    view.reset(seed=0)
    results = play(view, [{"router_0": "nobody"}] * 2)
    _, _, terminated, truncated, infos = results[-1]
    assert set(terminated.values()) == {False}
    assert set(truncated.values()) == {True}
    assert infos["solver_0"]["outcome"]["correct"] is False
    assert infos["solver_0"]["outcome"]["reward"] == 0.0
    assert view.agents == []


def test_a_missing_active_member_raises_and_changes_nothing(team):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    pending = team.pending
    with pytest.raises(MemberMismatchError, match=r"missing \['solver_1'\]"):
        view.step({"solver_0": "x"})
    assert team.pending == pending
    view.step({"solver_0": "x", "solver_1": "y"})


def test_an_unknown_agent_raises_with_the_nearest_name(team):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    with pytest.raises(MemberMismatchError, match=r"no agent 'solvr_0'; did you mean 'solver_0'"):
        view.step({"solver_0": "x", "solver_1": "y", "solvr_0": "z"})


@pytest.mark.parametrize("action", [None, 3, b"x", ["x"]])
def test_an_action_that_is_no_string_raises(team, action):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    with pytest.raises(MemberMismatchError, match="'solver_1': expected a str action"):
        view.step({"solver_0": "x", "solver_1": action})


def test_stepping_out_of_order_raises(team, script):
    view = ParallelSetEnv(team)
    with pytest.raises(EnvMisuseError, match="reset"):
        view.step({})
    view.reset(seed=0)
    play(view, script("0"))
    with pytest.raises(EnvMisuseError, match="reset"):
        view.step({})


def test_unknown_reset_options_are_refused(team):
    with pytest.raises(EnvMisuseError, match="task_idx"):
        ParallelSetEnv(team).reset(options={"task_idx": 1})


def test_render_shows_transition_and_pending_set(team):
    view = ParallelSetEnv(team, render_mode="ansi")
    assert "not started" in view.render()
    view.reset(seed=0)
    view.step({"solver_0": "first draft", "solver_1": "second draft"})
    text = view.render()
    assert "solver_1: second draft" in text
    assert "waiting for verifier (K=1)" in text
    assert ParallelSetEnv(team).render() is None


def test_closing_twice_is_safe(team):
    view = ParallelSetEnv(team)
    view.reset(seed=0)
    view.close()
    view.close()
    assert view.agents == []


def test_a_set_of_several_roles_is_one_step(team):
    class Mixed(type(team)):
        def schedule(self, task):
            both = self.ask("solver", seats=[1], context=self.context()) + self.ask("verifier", context=self.context())
            draft, _ = yield both
            return self.outcome(draft)

    view = ParallelSetEnv(Mixed(team.tasks, num_solvers=2))
    observations, infos = view.reset(seed=0)
    assert [agent for agent in view.agents if observations[agent]["active"]] == ["solver_1", "verifier_0"]
    assert (infos["solver_1"]["member_index"], infos["verifier_0"]["member_index"]) == (0, 1)
    view.step({"solver_1": "a", "verifier_0": "b"})
    assert [member.text for member in view.set_env.episode.events[0].members] == ["a", "b"]
