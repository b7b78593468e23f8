"""`SetEnv`: what a caller may do, what a schedule may do, and what is left when something fails."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from factories import APPROVE, REJECT, Lookup, NumberTasks, Panel, boxed, parse_query, play
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.core import SetEnv
from srpo_envs.errors import (
    EnvMisuseError,
    MemberMismatchError,
    RecordError,
    ReplayError,
    ScheduleError,
    StaleEventError,
    ToolError,
)
from srpo_envs.parsing import Malformed, Parsed, parse_boxed_answer
from srpo_envs.records import MemberOutput
from srpo_envs.schedule import Outcome, Role
from srpo_envs.tasks.base import Task
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier


def echo(query: str) -> str:
    return f"about {query}"


def make_env(**kwargs) -> SolverVerifier:
    return SolverVerifier(NumberTasks(), **kwargs)


class Scripted(SetEnv):
    """A workflow whose schedule is given as a function, for schedules that go wrong."""

    def __init__(self, schedule, **limits):
        self.body = schedule
        super().__init__(NumberTasks(), (Role("worker", prompt="$question", parse=parse_query, seats=3),), **limits)

    def schedule(self, task):
        return self.body(self, task)


# --- misuse -------------------------------------------------------------------------------------------------------


def test_step_before_reset_raises():
    with pytest.raises(EnvMisuseError, match=r"^\w+: call reset\(\) first"):
        make_env().step([])


def test_episode_before_reset_raises():
    with pytest.raises(EnvMisuseError, match=r"^\w+: call reset\(\) first"):
        _ = make_env().episode


def test_asking_before_reset_raises():
    with pytest.raises(EnvMisuseError, match=r"^\w+: call reset\(\) first"):
        make_env().ask("solver", context="")


def test_step_after_the_end_raises():
    env = SingleAgent(NumberTasks())
    active = env.reset(seed=0)
    env.step(active.outputs([boxed(1)]))
    with pytest.raises(EnvMisuseError, match="is over"):
        env.step(active.outputs([boxed(1)]))


def test_a_missing_member_raises_and_changes_nothing():
    env = make_env()
    active = env.reset(seed=0)
    with pytest.raises(MemberMismatchError, match=r"expected 3 members, got 2 .*missing member_index 1"):
        env.step([active.outputs(["a", "b", "c"])[index] for index in (0, 2)])
    assert env.pending == active
    assert env.episode.events == ()


def test_an_unknown_member_raises():
    env = make_env()
    active = env.reset(seed=0)
    extra = MemberOutput(event_id=active.event_id, member_index=3, text="d")
    with pytest.raises(MemberMismatchError, match="unknown member_index 3"):
        env.step([*active.outputs(["a", "b", "c"]), extra])


def test_a_member_answered_twice_raises():
    env = make_env()
    outputs = env.reset(seed=0).outputs(["a", "b", "c"])
    with pytest.raises(MemberMismatchError, match="member_index 0 answered twice"):
        env.step([*outputs, outputs[0]])


def test_a_stale_event_id_raises():
    env = make_env()
    first = env.reset(seed=0)
    env.step(first.outputs(["a", "b", "c"]))
    with pytest.raises(StaleEventError, match=r"/e0.*/e1.* is pending"):
        env.step(first.outputs(["a", "b", "c"]))


def test_plain_texts_instead_of_outputs_raise():
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(MemberMismatchError, match="expected MemberOutput"):
        env.step(["a", "b", "c"])


def test_a_text_that_is_no_text_raises():
    env = SingleAgent(NumberTasks())
    active = env.reset(seed=0)
    with pytest.raises(MemberMismatchError, match="MemberOutput with a text"):
        env.step(active.outputs([None]))


def test_another_number_of_texts_raises():
    with pytest.raises(MemberMismatchError, match="expected 3 texts, one per member, got 1"):
        make_env().reset(seed=0).outputs(["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_idx": 3}, "unknown option 'task_idx'; did you mean 'task_index'"),
        ({"task_index": 1000}, r"task_index 1000 is outside 0\.\.999"),
        ({"task_index": -1}, "task_index -1 is outside"),
    ],
)
def test_reset_refuses_what_it_does_not_know(options, message):
    with pytest.raises(EnvMisuseError, match=message):
        make_env().reset(seed=0, options=options)


def test_a_task_that_cannot_be_stored_is_refused_at_once():
    env = make_env()
    with pytest.raises(RecordError, match="expected JSON values, got set"):
        env.reset(options={"task": Task("t", "Say 1.", "1", {"tags": {1}})})
    with pytest.raises(EnvMisuseError, match=r"^\w+: call reset\(\) first"):
        env.step([])


def test_a_task_index_must_be_whole():
    with pytest.raises(TypeError):
        make_env().reset(options={"task_index": 1.5})
    assert make_env().reset(options={"task_index": np.int64(3)}).task_id == "numbers/3"


def test_a_task_can_be_given_as_it_is_stored():
    env = make_env()
    episode = play(env, {"solver": boxed(5), "verifier": APPROVE, "aggregator": boxed(5)}, task_index=5)
    assert env.reset(options={"task": episode.task}).task_id == "numbers/5"
    assert env.episode.task == episode.task


def test_a_refused_reset_does_not_move_the_stream_of_tasks():
    env, other = make_env(), make_env()
    env.reset(seed=3)
    other.reset(seed=3)
    with pytest.raises(EnvMisuseError):
        env.reset(options={"nonsense": 1})
    assert env.reset() == other.reset()


def test_outputs_may_come_in_any_order():
    texts = [boxed(1), boxed(2), boxed(3)]
    env, other = make_env(), make_env()
    outputs = env.reset(seed=0).outputs(texts)
    other.reset(seed=0)
    forward, backward = env.step(outputs), other.step(reversed(outputs))
    assert forward == backward
    assert [member.text for member in backward.event.members] == texts


# --- events, members, ids -----------------------------------------------------------------------------------------


def test_members_of_a_set_share_one_pre_action_state():
    active = make_env(num_solvers=4).reset(seed=0)
    assert active.cardinality == 4
    assert [member.index for member in active.members] == [0, 1, 2, 3]
    assert [member.agent for member in active.members] == ["solver_0", "solver_1", "solver_2", "solver_3"]
    assert len({member.prompt for member in active.members}) == 1


class Seated(SetEnv):
    """Two of four workers are asked, and their prompts name their seats."""

    def __init__(self, prompt, seats):
        self.seats = seats
        super().__init__(NumberTasks(), (Role("worker", prompt=prompt, parse=parse_query, seats=4),))

    def schedule(self, task):
        yield self.ask("worker", seats=self.seats, note="$seat")
        return self.truncate()


def test_a_prompt_may_name_its_members_own_seat_counted_from_one():
    active = Seated("$question Worker ${seat}, seat $seat: $note", seats=(3, 1)).reset(
        seed=0, options={"task_index": 7}
    )
    assert [(member.agent, member.prompt) for member in active.members] == [
        ("worker_3", "Say 7. Worker 4, seat 4: $seat"),  # a value that looks like a placeholder stays as it is
        ("worker_1", "Say 7. Worker 2, seat 2: $seat"),
    ]


def test_members_whose_prompt_names_no_seat_share_one_prompt():
    first, second = Seated("$question $note", seats=(0, 2)).reset(seed=0).members
    assert first.prompt is second.prompt


def test_a_set_may_hold_members_of_several_roles():
    env = Panel(NumberTasks())
    active = env.reset(seed=0)
    assert active.event_type == "solver+critic"
    assert [member.agent for member in active.members] == ["solver_0", "solver_1", "critic_0"]
    assert active.members[2].prompt.endswith("Beware.")
    answer = env.episode.task["gold"]
    result = env.step(active.outputs([boxed("x"), boxed(answer), ""]))
    assert [member.is_valid for member in result.event.members] == [True, True, False]
    assert result.reward == pytest.approx(0.9)  # the team's 1 minus one malformed critic


def test_one_agent_cannot_sit_in_a_set_twice():
    def twice(env, task):
        yield env.ask("worker") + env.ask("worker")

    with pytest.raises(ScheduleError, match="worker_0 would sit in one set twice"):
        Scripted(twice).reset(seed=0)


def test_state_ids_are_equal_for_equal_histories_only():
    def states(texts, seed=0, **kwargs):
        env = make_env(**kwargs)
        first = env.reset(seed=seed, options={"task_index": 5})
        second = env.step(first.outputs(texts)).next
        return first.state_id, second.state_id

    base = states(["a", "b", "c"])
    assert states(["a", "b", "c"]) == base
    other_text = states(["a", "b", "d"])
    assert other_text[0] == base[0]
    assert other_text[1] != base[1]
    assert states(["b", "a", "c"])[1] != base[1]  # who said it matters
    assert states(["a", "b", "c"], seed=1)[0] != base[0]
    assert len(set(base)) == 2


def test_equal_seeds_on_other_tasks_have_other_state_ids():
    env = make_env()
    ids = {env.reset(seed=0, options={"task_index": index}).state_id for index in range(20)}
    assert len(ids) == 20


def test_names_of_an_episode_do_not_enter_its_state_ids():
    env = make_env()
    named = env.reset(seed=0, options={"episode_id": "mine", "group_id": "ours"})
    assert named.event_id == "mine/e0"
    assert named.state_id == env.reset(seed=0).state_id


def test_every_event_type_of_a_turn_carries_its_turn():
    env = make_env(max_rounds=3)
    episode = play(env, {"solver": boxed(1), "verifier": REJECT, "revision": boxed(2), "aggregator": boxed(3)}, seed=0)
    assert [(event.event_type, event.turn) for event in episode.events] == [
        ("solver", 0),
        ("verifier", 0),
        ("revision", 1),
        ("verifier", 1),
        ("revision", 2),
        ("verifier", 2),
        ("aggregator", 2),
    ]


def test_a_schedule_can_ask_which_turn_it_is_in():
    seen = []

    def counting(env, task):
        for _ in range(3):
            begun = env.begin_turn()
            seen.append((begun, env.turn))
            yield env.ask("worker")
        return env.truncate()

    env = Scripted(counting)
    with pytest.raises(EnvMisuseError, match="call reset"):
        env.turn  # noqa: B018
    play(env, {"worker": "x"}, seed=0)
    assert seen == [(0, 0), (1, 1), (2, 2)]
    assert env.turn == 2


@given(st.lists(st.text(st.characters(), max_size=20), min_size=3, max_size=3))
def test_any_text_is_data(texts):
    env = make_env()
    active = env.reset(seed=0)
    result = env.step(active.outputs(texts))
    assert [member.text for member in result.event.members] == texts
    assert result.next.event_type == "verifier"
    assert result.next.state_id != active.state_id


# --- seeds (br-027, br-028, br-029) -------------------------------------------------------------------------------


def test_br_027_resets_without_a_seed_go_on_and_a_seed_starts_again():
    env = make_env()
    first, second = env.reset(seed=7), env.reset()
    assert first.task_id != second.task_id
    assert env.reset(seed=7) == first
    assert env.reset() == second


def test_br_028_the_task_sequence_does_not_depend_on_when_episodes_end():
    early, late = make_env(), make_env()
    answers = {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}
    early_ids, late_ids = [], []
    for number in range(6):
        seed = 11 if number == 0 else None
        early_ids.append(early.reset(seed=seed).task_id)  # abandoned at once
        late_ids.append(play(late, answers, seed=seed).task_id)
    assert early_ids == late_ids
    assert len(set(early_ids)) > 1


def test_br_029_equal_seeds_give_equal_sequences_and_others_do_not():
    def sequence(seed):
        env = make_env()
        return [env.reset(seed=seed).task_id, *(env.reset().task_id for _ in range(5))]

    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)


def test_global_random_state_is_neither_read_nor_changed():
    random.seed(0)
    np.random.seed(0)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    first = play(make_env(), {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}, seed=5)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.seed(99)
    np.random.seed(99)
    second = play(make_env(), {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}, seed=5)
    assert first == second


def test_a_schedules_own_randomness_follows_the_seed():
    def drawing(env, task):
        replies = yield env.ask("worker", state=str(env.rng.integers(10**9)))
        yield env.ask("worker", state=str(env.rng.integers(10**9)))
        return Outcome(float(replies[0].is_valid))

    def labels(seed):
        episode = play(Scripted(drawing), {"worker": "x"}, seed=seed)
        return [event.state_label for event in episode.events]

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)
    assert labels(1)[0] != labels(1)[1]


def test_seeds_stay_exact_in_readers_with_double_precision_numbers():
    env = make_env()
    for _ in range(50):
        env.reset()
        assert float(env.episode.seed) == env.episode.seed < 2**53


# --- rewards, penalties, returns ----------------------------------------------------------------------------------


def test_br_013_every_event_has_the_return_of_the_reward_to_come():
    env = make_env(max_rounds=2)
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    answers = {"solver": boxed(0), "verifier": [REJECT, APPROVE], "revision": boxed(gold), "aggregator": boxed(gold)}
    episode = play(env, answers, seed=0)
    assert [event.reward for event in episode.events] == [0, 0, 0, 0, 1]
    assert [event.team_return for event in episode.events] == [1, 1, 1, 1, 1]


def test_penalties_reach_the_returns_of_their_event_and_of_those_before():
    env = make_env(max_rounds=2)
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    answers = {"solver": boxed(0), "verifier": ["?", APPROVE], "aggregator": boxed(gold)}
    episode = play(env, answers, seed=0)
    # rewards 0, -0.1 (malformed verdict), 0, 1; summed from the end: 1, 1, 0.9, 0.9
    assert [event.event_type for event in episode.events] == ["solver", "verifier", "verifier", "aggregator"]
    assert [event.reward for event in episode.events] == [0, -0.1, 0, 1]
    assert [event.team_return for event in episode.events] == pytest.approx([0.9, 0.9, 1, 1])


def test_returns_stay_empty_until_the_end():
    env = make_env()
    active = env.reset(seed=0)
    result = env.step(active.outputs(["a", "b", "c"]))
    assert result.event.team_return is None
    assert env.episode.events[0].team_return is None
    assert not env.episode.is_over


def test_penalties_are_summed_over_malformed_members_and_recorded():
    env = make_env()
    active = env.reset(seed=0)
    result = env.step(active.outputs([boxed(1), "no box", "none either"]))
    assert result.event.penalty == pytest.approx(0.2)  # two malformed at 0.1
    assert result.reward == pytest.approx(-0.2)
    assert result.event.members[0].malformed_reason == ""
    assert result.event.members[1].malformed_reason
    assert result.event.members[1].parsed is None


def test_penalties_can_differ_by_role():
    env = make_env(invalid_penalty={"verifier": 0.5, "solver": 0})
    episode = play(env, {"solver": "?", "verifier": "?", "aggregator": "?"}, seed=0)
    by_type = {event.event_type: event.penalty for event in episode.events}
    assert by_type == {"solver": 0, "verifier": 0.5, "aggregator": pytest.approx(0.1)}
    assert episode.penalty == pytest.approx(1.1)  # two verdicts at 0.5 and the aggregator's 0.1
    assert episode.reward == 0


def test_one_number_sets_every_penalty():
    env = make_env(invalid_penalty=0.3)
    assert {role.invalid_penalty for role in env.roles.values()} == {0.3}


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"invalid_penalty": {"solvr": 1}}, ScheduleError, "invalid_penalty: no role 'solvr'; did you mean 'solver'"),
        ({"invalid_penalty": -0.1}, ValueError, "invalid_penalty >= 0"),
        ({"invalid_penalty": float("nan")}, ValueError, "invalid_penalty >= 0"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens >= 1"),
        ({"max_events": 0}, ValueError, "max_events must be at least 1"),
    ],
)
def test_limits_and_penalties_are_checked(kwargs, error, message):
    with pytest.raises(error, match=message):
        make_env(**kwargs)


def test_br_032_the_team_reward_reaches_every_event_exactly_once():
    env = make_env(max_rounds=1)
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    env_rewards = []
    active = env.reset(seed=0)
    for texts in ([boxed(gold)] * 3, [APPROVE], [boxed(gold)]):
        result = env.step(active.outputs(texts))
        env_rewards.append(result.reward)
        active = result.next
    assert env_rewards == [0, 0, 1]  # paid once, with the last transition
    assert [event.team_return for event in env.episode.events] == [1, 1, 1]  # credited to all that led there
    assert env.episode.reward == 1


def test_br_035_a_score_outside_its_range_raises_and_the_step_can_be_repeated():
    tasks = NumberTasks()
    env = SingleAgent(tasks)
    active = env.reset(seed=0)
    tasks.grade = lambda task, answer: 40.0
    with pytest.raises(ScheduleError, match=r"graded 40\.0; expected 0 to 1"):
        env.step(active.outputs([boxed(1)]))
    tasks.grade = lambda task, answer: 0.5
    assert env.step(active.outputs([boxed(1)])).reward == 0.5


def test_a_team_reward_that_is_no_number_raises():
    def broken(env, task):
        yield env.ask("worker")
        return Outcome(float("nan"))

    env = Scripted(broken)
    active = env.reset(seed=0)
    with pytest.raises(ScheduleError, match="the team reward is nan"):
        env.step(active.outputs(["x"]))


def test_what_a_schedule_says_of_its_outcome_must_be_json():
    infos = iter([{"seen": {1}}, {"seen": [1]}])

    def telling(env, task):
        yield env.ask("worker")
        return Outcome(1, next(infos))

    env = Scripted(telling)
    active = env.reset(seed=0)
    with pytest.raises(RecordError, match="expected JSON values, got set"):
        env.step(active.outputs(["x"]))
    result = env.step(active.outputs(["x"]))
    assert result.info == env.episode.info == {"seen": (1,)}


def test_a_schedules_metrics_are_checked_and_a_step_can_be_repeated_after_bad_ones():
    infos = iter([{"metrics": {"Turns": 1}}, {"metrics": {"turns": 1}}])

    def telling(env, task):
        yield env.ask("worker")
        return Outcome(1, next(infos))

    env = Scripted(telling)
    active = env.reset(seed=0)
    with pytest.raises(ScheduleError, match="expected numbers by names"):
        env.step(active.outputs(["x"]))
    assert env.pending == active
    env.step(active.outputs(["x"]))
    assert env.episode.info == {"metrics": {"turns": 1}}


def test_br_020_a_grader_that_fails_once_scores_the_same_episode_once():
    tasks = NumberTasks()
    env = SingleAgent(tasks)
    failures = iter([True, False])
    really_grade = tasks.grade

    def grade(task, answer):
        if next(failures):
            raise ToolError("grader gone")
        return really_grade(task, answer)

    tasks.grade = grade
    active = env.reset(seed=0)
    gold = env.episode.task["gold"]
    with pytest.raises(ToolError):
        env.step(active.outputs([boxed(gold)]))
    result = env.step(active.outputs([boxed(gold)]))
    assert result.event.event_id == active.event_id
    assert [call.result for call in result.event.tool_calls] == [1.0]
    assert tasks.graded == [(active.task_id, gold)]


def test_br_021_interleaved_episodes_are_graded_against_their_own_gold():
    tasks = NumberTasks()
    envs = [SingleAgent(tasks) for _ in range(8)]
    actives = [env.reset(options={"task_index": 10 + number}) for number, env in enumerate(envs)]
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    rewards = {number: envs[number].step(actives[number].outputs([boxed(10 + number)])).reward for number in order}
    assert rewards == dict.fromkeys(order, 1.0)
    assert tasks.graded == [(f"numbers/{10 + number}", str(10 + number)) for number in order]


def test_br_014_only_the_final_answer_is_graded_not_what_was_observed():
    env = Lookup(NumberTasks(), lambda query: boxed(7), num_searchers=1)
    env.reset(options={"task_index": 7})
    episode = play(env, {"searcher": "seven", "answerer": boxed(8)}, task_index=7)
    assert boxed(7) in episode.events[1].members[0].prompt
    assert episode.reward == 0


# --- ends ---------------------------------------------------------------------------------------------------------


def test_a_natural_end_is_terminated():
    episode = play(SingleAgent(NumberTasks()), {"solver": boxed(1)}, seed=0)
    assert (episode.terminated, episode.truncated) == (True, False)
    assert (episode.events[-1].terminated, episode.events[-1].truncated) == (True, False)


def test_br_034_running_into_max_events_is_truncated_and_never_solved():
    env = make_env(max_events=2)
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    active = env.reset(seed=0)
    active = env.step(active.outputs([boxed(gold)] * 3)).next
    result = env.step(active.outputs([APPROVE]))
    assert result.next is None
    assert (result.terminated, result.truncated, result.reward) == (False, True, 0.0)
    assert result.info == {"answer": None, "correct": False, "stopped_by": "max_events"}
    assert [event.truncated for event in env.episode.events] == [False, True]


def test_an_episode_that_ends_on_its_last_allowed_event_is_terminated():
    env = make_env(max_events=3)
    episode = play(env, {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}, seed=0)
    assert len(episode.events) == 3
    assert (episode.terminated, episode.truncated) == (True, False)


def test_br_042_malformed_text_never_makes_endless_turns():
    env = make_env(variant="routed", max_rounds=3)
    episode = play(env, {"router": "<route>all</route>"}, seed=0)
    assert [event.event_type for event in episode.events] == ["router"] * 3
    assert [event.penalty for event in episode.events] == [0.1] * 3  # each recorded and charged once
    assert episode.truncated


def test_a_schedule_without_end_is_cut():
    def endless(env, task):
        while True:
            yield env.ask("worker")

    episode = play(Scripted(endless, max_events=5), {"worker": "x"}, seed=0)
    assert len(episode.events) == 5
    assert episode.truncated


# --- tools and failures -------------------------------------------------------------------------------------------


def test_tool_calls_are_recorded_on_the_event_whose_transition_made_them():
    env = Lookup(NumberTasks(), echo)
    episode = play(env, {"searcher": "rivers", "answerer": boxed(1)}, seed=0)
    calls = episode.events[0].tool_calls
    assert [(call.name, call.arguments, call.result, call.kind) for call in calls] == [
        ("search", {"query": "rivers"}, "about rivers", "tool")
    ] * 2
    assert [call.kind for call in episode.events[1].tool_calls] == ["grade"]
    assert episode.num_tool_calls == 2  # grading is not a tool of the team


def test_tool_results_enter_the_state_id():
    ids = []
    for result in ("wet", "dry"):
        env = Lookup(NumberTasks(), lambda query, result=result: result)
        active = env.reset(seed=0)
        ids.append(env.step(active.outputs(["a", "b"])).next.state_id)
    assert ids[0] != ids[1]


def test_br_022_tool_results_keep_member_order():
    env = Lookup(NumberTasks(), echo, num_searchers=3)
    active = env.reset(seed=0)
    outputs = active.outputs(["first", "second", "third"])
    following = env.step([outputs[2], outputs[0], outputs[1]]).next
    assert following.members[0].prompt.endswith("about first\nabout second\nabout third")


def test_a_failing_tool_leaves_the_pending_event_and_a_retry_works():
    answers = iter([ToolError("down"), "found", "found"])

    def flaky(query):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    env = Lookup(NumberTasks(), flaky)
    active = env.reset(seed=0)
    with pytest.raises(ToolError, match="down"):
        env.step(active.outputs(["a", "b"]))
    assert env.pending == active
    assert env.episode.events == ()
    result = env.step(active.outputs(["a", "b"]))
    assert [call.result for call in result.event.tool_calls] == ["found", "found"]
    assert result.event.event_id == active.event_id


def test_a_failure_in_a_later_event_keeps_the_earlier_ones_and_calls_no_tool_again():
    calls = []

    def counting(query):
        calls.append(query)
        return "found"

    tasks = NumberTasks()
    env = Lookup(tasks, counting)
    active = env.reset(seed=0)
    active = env.step(active.outputs(["a", "b"])).next
    before = env.episode
    tasks.grade = lambda task, answer: (_ for _ in ()).throw(ToolError("grader gone"))
    with pytest.raises(ToolError, match="grader gone"):
        env.step(active.outputs([boxed(1)]))
    assert env.episode == before
    assert env.pending == active
    assert calls == ["a", "b"]


def test_a_tool_before_the_first_ask_is_recorded_and_its_failure_ends_the_reset():
    failures = iter([ToolError("down"), None])

    def load(name):
        failure = next(failures)
        if failure:
            raise failure
        return [name]

    def with_setup(env, task):
        env.call_tool("load", load, name="atlas")
        replies = yield env.ask("worker")
        return Outcome(float(replies[0].is_valid))

    env = Scripted(with_setup)
    with pytest.raises(ToolError):
        env.reset(seed=0)
    with pytest.raises(EnvMisuseError, match=r"^\w+: call reset\(\) first"):
        env.step([])
    active = env.reset(seed=0)
    assert [call.result for call in env.episode.setup_tool_calls] == [("atlas",)]
    other = Scripted(lambda env, task: (yield env.ask("worker")))
    assert other.reset(seed=0).state_id != active.state_id


def test_any_failure_of_a_schedule_rewinds_to_the_pending_event():
    attempts = iter([KeyError("bug"), None])

    def buggy(env, task):
        yield env.ask("worker")
        failure = next(attempts)
        if failure:
            raise failure
        return Outcome(1.0)

    env = Scripted(buggy)
    active = env.reset(seed=0)
    with pytest.raises(KeyError, match="bug"):
        env.step(active.outputs(["x"]))
    assert env.step(active.outputs(["x"])).terminated


def test_a_tool_result_that_is_not_json_raises_at_the_call():
    env = Lookup(NumberTasks(), lambda query: np.zeros(2))
    active = env.reset(seed=0)
    with pytest.raises(RecordError, match="expected JSON values, got ndarray"):
        env.step(active.outputs(["a", "b"]))
    assert env.pending == active


def test_br_041_close_is_idempotent_and_runs_what_a_schedule_must_release():
    released = []

    def holding(env, task):
        try:
            yield env.ask("worker")
            yield env.ask("worker")
        finally:
            released.append(task.task_id)

    env = Scripted(holding)
    active = env.reset(seed=0)
    env.step(active.outputs(["x"]))
    env.close()
    env.close()
    assert released == [active.task_id]
    with pytest.raises(EnvMisuseError):
        env.step([])
    second = env.reset(seed=1)
    env.reset(seed=2)  # a reset releases the abandoned episode too
    assert released == [active.task_id, second.task_id]


def test_close_ends_a_schedule_that_something_else_still_refers_to():
    released, held = [], []

    def holding(env, task):
        try:
            yield env.ask("worker")
        finally:
            released.append("done")

    def keep(env, task):
        held.append(holding(env, task))
        return held[0]

    env = Scripted(keep)
    env.reset(seed=0)
    env.close()
    assert released == ["done"]


def test_br_041_a_schedule_releases_what_it_holds_when_its_transition_fails():
    released = []

    def failing(env, task):
        try:
            yield env.ask("worker")
            raise ToolError("down")
        finally:
            released.append("done")

    env = Scripted(failing)
    active = env.reset(seed=0)
    with pytest.raises(ToolError):
        env.step(active.outputs(["x"]))
    assert released == ["done"]


# --- schedules that break the contract ----------------------------------------------------------------------------


def returns_none(env, task):
    yield env.ask("worker")


def yields_text(env, task):
    yield "please"


def asks_nobody(env, task):
    yield env.ask("worker", seats=())


def asks_too_many(env, task):
    yield env.ask("worker", count=4)


def asks_a_seat_twice(env, task):
    yield env.ask("worker", seats=(1, 1))


def asks_a_stranger(env, task):
    yield env.ask("wroker")


def gives_unused_context(env, task):
    yield env.ask("worker", drafts="...")


def ends_at_once(env, task):
    return Outcome(1.0)
    yield


def is_no_generator(env, task):
    return Outcome(1.0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (yields_text, "yielded 'please'"),
        (asks_nobody, r"expected distinct seats in 0\.\.2, got \[\]"),
        (asks_too_many, r"expected distinct seats in 0\.\.2, got \[0, 1, 2, 3\]"),
        (asks_a_seat_twice, r"got \[1, 1\]"),
        (asks_a_stranger, "no role 'wroker'; did you mean 'worker'"),
        (gives_unused_context, r"\['drafts'\], which the prompt does not use"),
        (ends_at_once, "returned before its first ask"),
        (is_no_generator, "must be a generator"),
    ],
)
def test_a_broken_schedule_raises_at_reset(schedule, message):
    env = Scripted(schedule)
    with pytest.raises(ScheduleError, match=message):
        env.reset(seed=0)
    assert env.pending is None


def test_a_schedule_must_return_an_outcome():
    env = Scripted(returns_none)
    active = env.reset(seed=0)
    with pytest.raises(ScheduleError, match=r"returned None; return self\.outcome\(reply\)"):
        env.step(active.outputs(["x"]))


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda text: None, ScheduleError, "its parser returned None"),
        (lambda text: Parsed({1, 2}), RecordError, "expected JSON values, got set"),
    ],
)
def test_a_broken_parser_raises_before_anything_moves(read, error, message):
    env = Scripted(returns_none)
    env.roles["worker"] = dataclasses.replace(env.roles["worker"], parse=read)
    active = env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.step(active.outputs(["x"]))
    assert env.pending == active


def test_a_malformed_reply_without_a_reason_is_still_malformed():
    env = Scripted(returns_none, max_events=1)
    env.roles["worker"] = dataclasses.replace(env.roles["worker"], parse=lambda text: Malformed(""))

    def one(env, task):
        replies = yield env.ask("worker")
        return Outcome(float(replies[0].is_valid))

    env.body = one
    episode = play(env, {"worker": "x"}, seed=0)
    assert not episode.events[0].members[0].is_valid
    assert episode.reward == 0


def test_two_roles_cannot_share_a_name():
    role = Role("solver", prompt="$question", parse=parse_boxed_answer)
    with pytest.raises(ScheduleError, match="'solver' is used twice"):
        SetEnv(NumberTasks(), (role, role))


# --- resuming -----------------------------------------------------------------------------------------------------


def test_resume_refuses_an_episode_of_another_environment():
    episode = play(SingleAgent(NumberTasks()), {"solver": boxed(1)}, seed=0)
    with pytest.raises(ReplayError, match="recorded by 'SingleAgent', this environment is 'SolverVerifier'"):
        make_env().resume(episode)


@pytest.mark.parametrize("num_events", [-1, 2])
def test_resume_refuses_more_events_than_there_are(num_events):
    env = SingleAgent(NumberTasks())
    episode = play(env, {"solver": boxed(1)}, seed=0)
    with pytest.raises(ReplayError, match=r"is outside 0\.\.1"):
        env.resume(episode, num_events)


def test_resume_of_all_events_is_over():
    env = SingleAgent(NumberTasks())
    episode = play(env, {"solver": boxed(1)}, seed=0)
    assert SingleAgent(NumberTasks()).resume(episode) is None
