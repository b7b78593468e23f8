"""The words of a schedule: roles, asks and their overrides."""

from __future__ import annotations

import pytest
from factories import NumberTasks

from srpo_envs.errors import RecordError, ScheduleError
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.schedule import Ask, Reply, Role, checked_info, index_roles


def make_role(name: str = "solver", **fields) -> Role:
    return Role(name, prompt="$question", parse=parse_boxed_answer, **fields)


def test_overrides_reach_all_roles_or_the_named_ones():
    roles = [make_role("solver"), make_role("verifier", invalid_penalty=0.3)]
    assert {name: role.invalid_penalty for name, role in index_roles(roles).items()} == {"solver": 0.1, "verifier": 0.3}
    everyone = index_roles(roles, invalid_penalty=0.2, max_new_tokens=7)
    assert {(role.invalid_penalty, role.max_new_tokens) for role in everyone.values()} == {(0.2, 7)}
    named = index_roles(roles, invalid_penalty={"solver": 0}, max_new_tokens={"verifier": 3})
    assert (named["solver"].invalid_penalty, named["solver"].max_new_tokens) == (0, 1024)
    assert (named["verifier"].invalid_penalty, named["verifier"].max_new_tokens) == (0.3, 3)


@pytest.mark.parametrize("key", ["invalid_penalty", "max_new_tokens"])
def test_an_override_for_no_role_names_the_nearest(key):
    with pytest.raises(ScheduleError, match=f"{key}: no role 'solvers'; did you mean 'solver'"):
        index_roles([make_role()], **{key: {"solvers": 1}})


@pytest.mark.parametrize("name", ["", "Solver", "solver_1", "solver-a", "sølver", "solver\n"])
def test_role_names_make_valid_agent_names(name):
    with pytest.raises(ScheduleError, match="lower-case letters only"):
        make_role(name)


@pytest.mark.parametrize("fields", [{"seats": 0}, {"max_new_tokens": 0}, {"invalid_penalty": float("inf")}])
def test_impossible_roles_raise(fields):
    with pytest.raises(ValueError, match="role 'solver': expected"):
        make_role(**fields)


def test_joined_asks_keep_the_order_of_their_members():
    solver, critic = make_role("solver", seats=2), make_role("critic")
    joined = Ask("solver", ((solver, 1, "p"),), "") + Ask("critic", ((critic, 0, "q"),), "drafts")
    assert joined == Ask("solver+critic", ((solver, 1, "p"), (critic, 0, "q")), "drafts")


def test_joined_asks_of_one_kind_stay_one_kind():
    parts = [Ask("worker", ((make_role("worker", seats=2), seat, f"part {seat}"),), "a plan") for seat in (0, 1)]
    joined = parts[0] + parts[1]
    assert (joined.event_type, joined.state_label) == ("worker", "a plan")
    assert [prompt for _, _, prompt in joined.seats] == ["part 0", "part 1"]


def test_a_role_may_have_the_words_of_another_job():
    role = Role.of(NumberTasks(), "aggregator", parse=parse_boxed_answer, job="selector")
    assert (role.name, role.prompt) == ("aggregator", "$question\n$context\nBe selector.")


def test_asks_that_share_an_agent_cannot_be_joined():
    ask = Ask("solver", ((make_role(), 0, "p"),), "")
    with pytest.raises(ScheduleError, match="solver_0 would sit in one set twice"):
        ask + ask


def test_a_reply_is_valid_unless_it_has_a_reason():
    assert Reply("t", None, "", "solver_0", "solver", 0).is_valid
    assert not Reply("t", None, "no box", "solver_0", "solver", 0).is_valid


# --- what an outcome says -----------------------------------------------------------------------------------------


def test_an_outcomes_info_becomes_json_and_its_metrics_stay_numbers():
    info = {"answer": "4", "drafts": [1, 2], "metrics": {"num_turns": 3, "recall_2": 0.5, "approved": True}}
    assert checked_info(info) == {**info, "drafts": (1, 2)}
    assert checked_info({}) == {}


@pytest.mark.parametrize(
    "metrics",
    [
        {"num_turns": "3"},
        {"num_turns": None},
        {"num_turns": [1]},
        {"Turns": 1},
        {"num turns": 1},
        {"rollout/turns": 1},
        {"2nd": 1},
        {"": 1},
        {"turns\n": 1},
        [("turns", 1)],
        None,
        3,
    ],
)
def test_metrics_are_numbers_by_plain_names(metrics):
    with pytest.raises(ScheduleError, match=r"info\['metrics'\]: expected numbers by names such as 'num_turns'"):
        checked_info({"metrics": metrics})


def test_a_metric_that_is_not_finite_has_no_place_in_a_record():
    with pytest.raises(RecordError, match="expected JSON values, got float nan"):
        checked_info({"metrics": {"recall": float("nan")}})
