"""Budgets: no episode spends more, whatever is answered; what there is no room for is refused; replays are exact."""

from __future__ import annotations

import dataclasses
import functools
import pickle

import gymnasium
import numpy as np
import pettingzoo
import pytest
from factories import APPROVE, REJECT, Lookup, NumberTasks, Panel, boxed, play
from hypothesis import given, settings
from hypothesis import strategies as st
from search_world import say, search

import srpo_envs
from srpo_envs.audit import audit_episodes
from srpo_envs.budget import LIMITS, Budget, Usage
from srpo_envs.core import SetEnv
from srpo_envs.errors import BudgetExhaustedError, BudgetOverrunError, ConfigError, EnvMisuseError, TokenCountError
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.probing import default_policy
from srpo_envs.replay import replay
from srpo_envs.schedule import Role
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier


def tokens(outputs, lengths):
    """Outputs that say how long they are."""
    return [
        dataclasses.replace(output, token_mask=(1,) * length) for output, length in zip(outputs, lengths, strict=True)
    ]


def play_tokens(env, texts, lengths):
    """Play to the end; the length of an output is that of its event type, or its member's limit."""
    active = env.reset(seed=0)
    while active is not None:
        wanted = [min(lengths.get(active.event_type, 1), member.max_new_tokens) for member in active.members]
        active = env.step(tokens(active.outputs([texts[active.event_type]] * active.cardinality), wanted)).next
    return env.episode


TEXTS = {"solver": boxed(1), "revision": boxed(2), "verifier": REJECT, "aggregator": boxed(3)}


# --- the budget itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"team_token": 5}, "no limit 'team_token'; did you mean 'team_tokens'"),
        ({"calls": 0}, "calls = 0 leaves no room for any event"),
        ({"calls": 2.5}, "calls must be a whole number of at least 0, got 2.5"),
        ({"turns": True}, "turns must be a whole number"),
        ({"tool_calls": -1}, "tool_calls must be a whole number"),
        (512, "expected limits by name"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        Budget.of(value)


def test_nothing_is_limited_by_default():
    assert Budget.of(None) == Budget() == Budget.of({})
    assert (Budget().limits, Budget().share(3), Budget().exceeded_by(Usage(calls=10**9))) == ({}, None, [])


def test_what_is_left_and_what_is_exceeded():
    budget = Budget(team_tokens=10, tool_calls=2)
    assert budget.minus(Usage(team_tokens=4, calls=9, tool_calls=3)) == Budget(team_tokens=6, tool_calls=0)
    assert budget.exceeded_by(Usage(team_tokens=10, tool_calls=3)) == ["tool_calls"]


@given(left=st.integers(0, 10**6), cardinality=st.integers(1, 64))
def test_shares_of_a_set_never_exceed_what_is_left(left, cardinality):
    share = Budget(team_tokens=left).share(cardinality)
    assert left - cardinality < share * cardinality <= left


def test_a_refusal_survives_pickling():
    error = pickle.loads(pickle.dumps(BudgetExhaustedError("calls", "3 needed, 2 left")))
    assert (str(error), error.stopped_by) == ("budget of calls is used up: 3 needed, 2 left", "budget.calls")


# --- tokens -------------------------------------------------------------------------------------------------------


def test_a_set_shares_the_tokens_that_are_left():
    env = SolverVerifier(NumberTasks(), budget={"team_tokens": 20}, max_new_tokens=9)
    active = env.reset(seed=0)
    assert [member.max_new_tokens for member in active.members] == [6, 6, 6]  # 20 // 3
    active = env.step(tokens(active.outputs([boxed(1)] * 3), [6, 2, 1])).next
    assert [member.max_new_tokens for member in active.members] == [9]  # the role's own limit; 11 are left
    active = env.step(tokens(active.outputs([APPROVE]), [9])).next
    assert [member.max_new_tokens for member in active.members] == [2]
    assert env.remaining_budget == Budget(team_tokens=2)
    env.step(tokens(active.outputs([boxed(1)]), [2]))
    assert (env.episode.num_tokens, env.episode.terminated) == (20, True)


def test_a_set_without_a_token_for_each_member_ends_the_episode():
    env = SolverVerifier(NumberTasks(), budget={"team_tokens": 9})
    active = env.reset(seed=0)
    result = env.step(tokens(active.outputs([boxed(active.task_id[8:])] * 3), [3, 3, 3]))
    assert (result.next, result.truncated, result.terminated, result.reward) == (None, True, False, 0.0)
    assert result.info == {"answer": None, "correct": False, "stopped_by": "budget.team_tokens"}


def test_an_output_beyond_its_share_is_refused_and_the_event_stays():
    env = SingleAgent(NumberTasks(), budget={"team_tokens": 5})
    active = env.reset(seed=0)
    with pytest.raises(BudgetOverrunError, match=r"'solver_0' has 6 tokens, its share of the budget allows 5"):
        env.step(tokens(active.outputs([boxed(1)]), [6]))
    assert env.pending == active
    env.step(tokens(active.outputs([boxed(1)]), [5]))


def test_outputs_that_do_not_say_how_long_they_are_are_refused():
    env = SingleAgent(NumberTasks(), budget={"team_tokens": 5})
    active = env.reset(seed=0)
    with pytest.raises(TokenCountError, match=r"'solver_0' does not say how many tokens it has.*count_tokens"):
        env.step(active.outputs([boxed(1)]))
    assert issubclass(TokenCountError, EnvMisuseError)


@pytest.mark.parametrize("mask", [(0,) * 9, (-5,), (1, -1), (0.25,), (2,), ("1",)])
def test_a_count_that_cannot_be_buys_nothing(mask):
    env = SingleAgent(NumberTasks(), budget={"team_tokens": 5})
    active = env.reset(seed=0)
    with pytest.raises(TokenCountError, match=r"'solver_0' has a token_mask that counts nothing"):
        env.step([dataclasses.replace(active.outputs([boxed(1)])[0], token_mask=mask)])
    assert env.remaining_budget == Budget(team_tokens=5)


def test_tokens_of_the_environment_within_a_response_are_not_charged():
    env = SolverVerifier(NumberTasks(), num_solvers=1, budget={"team_tokens": 5})
    active = env.reset(seed=0)
    env.step([dataclasses.replace(active.outputs([boxed(1)])[0], token_mask=(1, 0, 0, 1))])
    assert env.remaining_budget == Budget(team_tokens=3)


def test_texts_alone_are_counted_by_whoever_is_asked_to_and_replay_without_it():
    env = SingleAgent(NumberTasks(), budget={"team_tokens": 5}, max_new_tokens=9)
    env.count_tokens = lambda text: len(text.split())
    active = env.reset(seed=0)
    with pytest.raises(BudgetOverrunError, match="has 6 tokens"):
        env.step(active.outputs(["one two three four five six"]))
    env.step(active.outputs(["one two three"]))
    assert env.episode.num_tokens == 3
    assert replay(env.episode, SingleAgent(NumberTasks(), budget={"team_tokens": 5}, max_new_tokens=9)) == env.episode


def test_a_gymnasium_controller_meets_the_same_budget():
    env = gymnasium.make("srpo_envs/ArithmeticSolverVerifier-v0", budget={"team_tokens": 3}).unwrapped
    env.set_env.count_tokens = lambda text: 1
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step({f"solver_{seat}": "x" for seat in range(3)})
    assert (reward, terminated, truncated) == (pytest.approx(-0.3), False, True)
    assert info["outcome"]["stopped_by"] == "budget.team_tokens"


def test_an_agent_environment_cycle_asks_a_refused_set_again():
    env = pettingzoo.make("aec", "srpo_envs/ArithmeticSolverVerifier-v0", budget={"team_tokens": 12}).unwrapped
    env.set_env.count_tokens = lambda text: len(text.split())
    env.reset(seed=0)
    for text in ("one two three four five", "one"):
        env.step(text)
    with pytest.raises(BudgetOverrunError, match=r"'solver_0' has 5 tokens"):
        env.step("one")
    assert env.agent_selection == "solver_0"
    for _ in range(3):
        env.step("one")
    assert (env.agent_selection, env.set_env.remaining_budget.team_tokens) == ("verifier_0", 9)


def test_a_joint_set_of_several_roles_shares_like_any_other():
    env = Panel(NumberTasks(), budget={"team_tokens": 31})
    assert [member.max_new_tokens for member in env.reset(seed=0).members] == [10, 10, 10]


def test_agents_of_a_parallel_world_are_told_their_share():
    env = pettingzoo.make("parallel", "srpo_envs/ArithmeticSolverVerifier-v0", budget={"team_tokens": 12})
    _, infos = env.reset(seed=0)
    assert [infos[f"solver_{seat}"]["max_new_tokens"] for seat in range(3)] == [4, 4, 4]


# --- calls, turns, tools ------------------------------------------------------------------------------------------


def stopped(env, texts=TEXTS):
    episode = play(env, texts, seed=0)
    return episode.info.get("stopped_by"), episode.terminated, Usage.of(episode)


def test_a_team_without_room_for_another_round_answers():
    fixed = functools.partial(SolverVerifier, NumberTasks(), variant="fixed", max_rounds=3)
    # Drafts and a verdict make 4 calls; two are left, too few for three revisions and enough for the answer.
    assert stopped(fixed(budget={"calls": 6})) == ("budget.calls", True, Usage(calls=5, turns=2))
    assert stopped(fixed(budget={"turns": 2})) == ("budget.turns", True, Usage(calls=9, turns=2))
    assert stopped(fixed(budget={"calls": 9, "turns": 3})) == ("budget.calls", True, Usage(calls=9, turns=3))


def test_a_team_that_cannot_answer_either_is_truncated():
    env = SolverVerifier(NumberTasks(), budget={"calls": 4})
    assert stopped(env, {**TEXTS, "verifier": APPROVE}) == ("budget.calls", False, Usage(calls=4, turns=1))
    assert (env.episode.truncated, env.episode.reward) == (True, 0.0)


def test_a_budget_too_small_for_the_first_set_is_said_at_once():
    with pytest.raises(ConfigError, match=r"a budget of {'calls': 2} has no room for the first active set"):
        SolverVerifier(NumberTasks(), budget={"calls": 2}).reset(seed=0)


def test_a_tool_beyond_the_budget_is_not_called():
    asked = []
    env = Lookup(NumberTasks(), lambda query: asked.append(query), budget={"tool_calls": 1})
    assert stopped(env, {"searcher": "x", "answerer": boxed(1)})[0] == "budget.tool_calls"
    assert (asked, env.episode.num_tool_calls, env.episode.truncated) == (["x"], 1, True)


def test_tool_calls_before_the_first_set_count():
    class Prepared(SetEnv):
        def __init__(self, **limits):
            roles = (Role("solver", prompt="$question", parse=parse_boxed_answer),)
            super().__init__(NumberTasks(), roles, **limits)

        def schedule(self, task):
            self.call_tool("fetch", lambda: 1)
            (final,) = yield self.ask("solver")
            self.call_tool("fetch", lambda: 2)
            return self.outcome(final)

    assert stopped(Prepared(budget={"tool_calls": 1}), {"solver": boxed(0)})[0] == "budget.tool_calls"
    with pytest.raises(ConfigError, match="no room for the first active set"):
        Prepared(budget={"tool_calls": 0}).reset(seed=0)


# --- a schedule that plans ----------------------------------------------------------------------------------------


class Voters(SetEnv):
    """Asks for more and more, and takes what it may have."""

    def __init__(self, body, **limits):
        self.body = body
        super().__init__(
            NumberTasks(), (Role("voter", prompt="$question", parse=parse_boxed_answer, seats=9),), **limits
        )

    def schedule(self, task):
        return self.body(self)


def test_a_schedule_may_ask_for_fewer():
    def body(env):
        try:
            votes = yield env.ask("voter", count=9)
        except BudgetExhaustedError:
            votes = yield env.ask("voter", count=env.remaining_budget.calls)
        return env.outcome(votes[0])

    assert stopped(Voters(body, budget={"calls": 4}), {"voter": boxed(0)})[2] == Usage(calls=4, turns=1)


def test_a_schedule_that_insists_is_ended():
    def body(env):
        yield env.ask("voter")
        while True:
            try:
                yield env.ask("voter", count=9)
            except BudgetExhaustedError:
                continue

    assert stopped(Voters(body, budget={"calls": 4}), {"voter": boxed(0)}) == (
        "budget.calls",
        False,
        Usage(calls=1, turns=1),
    )


def test_a_failed_transition_spends_nothing():
    fails = [True]

    def search(query):
        if fails.pop():
            raise OSError("away")
        return query

    env = Lookup(NumberTasks(), search, num_searchers=1, budget={"tool_calls": 1, "team_tokens": 8})
    active = env.reset(seed=0)
    with pytest.raises(OSError, match="away"):
        env.step(tokens(active.outputs(["x"]), [5]))
    assert env.remaining_budget == Budget(tool_calls=1, team_tokens=8)
    fails.append(False)
    env.step(tokens(env.pending.outputs(["x"]), [5]))
    assert env.remaining_budget == Budget(tool_calls=0, team_tokens=3)


# --- search workflows ---------------------------------------------------------------------------------------------

SEARCHES = {
    "searcher": search("a"),
    "refinement": search("b"),
    "verifier": REJECT,
    "answerer": say("x"),
    "agent": search("a"),
    "continuation": say("x"),
}


def make_search(name, **kwargs):
    return srpo_envs.make(f"Village{name}-v0", max_turns=4, **kwargs)


def test_searchers_share_their_tool_budget_and_then_answer():
    env = make_search("SearchFixed", budget={"tool_calls": 1})
    stopped_by, terminated, used = stopped(env, SEARCHES)
    # Three equal queries are one search; the second turn's has no room, and the answerer answers.
    assert (stopped_by, terminated, used) == ("budget.tool_calls", True, Usage(calls=8, turns=2, tool_calls=1))
    assert env.episode.info["metrics"]["num_queries"] == 3


def test_queries_of_a_set_are_made_together_or_not_at_all():
    env = make_search("SearchFixed", budget={"tool_calls": 2})
    texts = {**SEARCHES, "searcher": [search(seat) for seat in range(3)]}
    active = env.reset(seed=0)
    active = env.step(active.outputs(texts["searcher"])).next
    assert (active.event_type, env.remaining_budget.tool_calls) == ("answerer", 2)
    env.step(active.outputs([say("x")]))
    assert (env.episode.num_tool_calls, env.episode.info["stopped_by"]) == (0, "budget.tool_calls")


def test_prompts_speak_of_the_turns_there_are():
    assert "Step 1 of 4" in make_search("SearchFixed").reset(seed=0).members[0].prompt
    env = make_search("SearchFixed", budget={"turns": 2})
    assert "Step 1 of 2" in env.reset(seed=0).members[0].prompt
    assert stopped(env, SEARCHES)[0::2] == ("max_turns", Usage(calls=9, turns=2, tool_calls=2))


def test_a_team_told_to_truncate_at_its_limit_does_so_at_the_budget():
    env = make_search("SearchFixed", at_limit="truncate", budget={"tool_calls": 1})
    assert stopped(env, SEARCHES)[:2] == ("budget.tool_calls", False)
    assert "num_queries" in env.episode.info["metrics"]


@pytest.mark.parametrize("budget", [{"turns": 2}, {"calls": 2}, {"tool_calls": 1}])
def test_a_single_agent_keeps_a_step_to_answer_in(budget):
    episode = play(make_search("SearchAgent", budget=budget), SEARCHES, seed=0)
    assert (episode.info["stopped_by"], episode.num_calls, episode.num_tool_calls) == ("answer", 2, 1)


# --- any environment, any texts -----------------------------------------------------------------------------------

BUDGETS = st.fixed_dictionaries(
    {},
    optional={
        "team_tokens": st.integers(3, 60),
        "calls": st.integers(3, 14),
        "turns": st.integers(1, 4),
        "tool_calls": st.integers(0, 4),
    },
)


@functools.cache
def env_of(env_id):
    """One environment of each id for all examples: some read their questions from a file."""
    return srpo_envs.make(env_id)


def walk(env, budget, seed, most=40):
    """Play one episode of texts and lengths drawn by the seed; returns its sets and its record."""
    env.budget, env.env_kwargs = Budget.of(budget), {"budget": budget}
    rng = np.random.default_rng(seed)
    active, sets = env.reset(seed=seed), []
    while active is not None:
        sets.append(active)
        outputs = active.outputs([default_policy(member, rng) for member in active.members])
        lengths = [int(rng.integers(1, min(member.max_new_tokens, most) + 1)) for member in active.members]
        active = env.step(tokens(outputs, lengths)).next
    return sets, env.episode


@pytest.mark.parametrize("env_id", srpo_envs.list_envs())
@settings(max_examples=15, deadline=None)
@given(budget=BUDGETS, seed=st.integers(0, 2**32 - 1))
def test_no_episode_exceeds_its_budget_and_all_replay(env_id, budget, seed):
    _, episode = walk(env_of(env_id), budget, seed)
    assert Budget.of(budget).exceeded_by(Usage.of(episode)) == []
    assert audit_episodes([episode]).findings == ()
    assert replay(episode, env_of(env_id)) == episode
    if episode.truncated:
        assert (episode.reward <= 0.0, episode.info["correct"]) == (True, False)


@pytest.mark.parametrize("env_id", srpo_envs.list_envs())
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_budget_that_is_never_reached_changes_nothing(env_id, seed):
    free_sets, free = walk(env_of(env_id), {}, seed, most=8)
    sets, episode = walk(env_of(env_id), dict.fromkeys(LIMITS, 10**9), seed, most=8)
    assert sets == free_sets
    assert dataclasses.replace(episode, env_kwargs={}) == dataclasses.replace(free, env_kwargs={})
