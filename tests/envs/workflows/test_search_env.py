"""What all search workflows share: a retriever that is opened late, failures that leave no trace, and conformance."""

from __future__ import annotations

import functools

import pytest
from factories import APPROVE, REJECT
from search_world import ANSWERS, STOP, VILLAGE, AtlasTasks, passage, play_script, route, say, search

import srpo_envs
import srpo_envs.search
from srpo_envs.errors import ConfigError, RetrieverError, UnknownIdError
from srpo_envs.evidence import Evidence, Turn
from srpo_envs.parsing import parse_search
from srpo_envs.records import read_episodes, write_episodes
from srpo_envs.replay import branch, replay
from srpo_envs.schedule import Role
from srpo_envs.search import ScriptedRetriever, register_retriever
from srpo_envs.workflows.search import Search
from srpo_envs.workflows.search_agent import SearchAgent
from srpo_envs.workflows.search_env import SearchEnv, describe

DIRECTOR, COUNTRY = "director of Silver Tide", "country of Varna"

TEAM = (
    ("router", route(1, 2)),
    ("searcher", search(DIRECTOR), search(COUNTRY)),
    ("verifier", REJECT),
    ("router", "?"),
    ("router", route(3)),
    ("refinement", search("nothing to find")),
    ("verifier", APPROVE),
    ("answerer", say("Sofia")),
)
AGENT = (("agent", search(DIRECTOR)), ("continuation", "?"), ("continuation", say("Sofia")))
WORKFLOWS = {"team": (Search, TEAM), "agent": (SearchAgent, AGENT)}


class Flaky:
    """Plays a list of troubles, one a call, before it answers: an error to raise, or garbage to return."""

    def __init__(self, *troubles):
        self.troubles = list(troubles)
        self.engine = ScriptedRetriever(ANSWERS)
        self.requests = []

    def search(self, queries, top_k):
        self.requests.append((list(queries), top_k))
        if self.troubles:
            trouble = self.troubles.pop(0)
            if isinstance(trouble, BaseException):
                raise trouble
            return trouble
        return self.engine.search(queries, top_k)


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """Locations that the scheme ``lab`` was opened at, in order."""
    monkeypatch.setattr(srpo_envs.search, "_factories", {})
    monkeypatch.setattr(srpo_envs.search, "_opened", {})
    locations = []
    register_retriever("lab", lambda location: locations.append(location) or ScriptedRetriever(ANSWERS))
    return locations


def test_a_named_retriever_is_opened_at_the_first_search_and_once(opened):
    env = Search(AtlasTasks(), retriever="lab:atlas")
    play_script(env, ("router", STOP), ("answerer", say("Sofia")))
    assert opened == []
    play_script(env, *TEAM)
    play_script(Search(AtlasTasks(), retriever="lab:atlas"), *TEAM)
    assert opened == ["atlas"]


def test_the_task_family_names_the_retriever_where_nobody_else_does(opened):
    assert Search(AtlasTasks()).retriever == "nowhere:atlas"
    assert Search(AtlasTasks(), retriever="lab:atlas").retriever == "lab:atlas"


def test_a_retriever_that_counts_as_false_is_used_all_the_same():
    class Empty(ScriptedRetriever):
        def __len__(self):
            return 0

    env = Search(AtlasTasks(), retriever=Empty(ANSWERS))
    assert play_script(env, *TEAM).info["metrics"]["num_tool_calls"] == 3.0


def test_a_name_that_opens_nothing_is_said_at_the_first_search():
    env = Search(AtlasTasks(), retriever="nowhere:atlas")
    active = env.reset(seed=0)
    active = env.step(active.outputs([route(1)])).next
    with pytest.raises(UnknownIdError, match="no retriever 'nowhere:atlas'"):
        env.step(active.outputs([search(DIRECTOR)]))
    assert env.pending == active


# --- replay -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_replay_needs_no_search_engine(name, tmp_path):
    workflow, script = WORKFLOWS[name]
    episode = play_script(workflow(AtlasTasks(), retriever=ScriptedRetriever(ANSWERS)), *script)
    write_episodes(tmp_path / "events.jsonl", [episode])
    (stored,) = read_episodes(tmp_path / "events.jsonl")
    tasks = AtlasTasks()
    rebuilt = replay(stored, workflow(tasks, retriever="nowhere:at-all"))
    assert rebuilt == episode
    assert [event.state_id for event in rebuilt.events] == [event.state_id for event in episode.events]
    assert tasks.graded == []


def test_a_branch_searches_only_beyond_its_history():
    episode = play_script(Search(AtlasTasks(), retriever=ScriptedRetriever(ANSWERS)), *TEAM)
    retriever = ScriptedRetriever(ANSWERS)
    env = branch(episode, 5, Search(AtlasTasks(), retriever=retriever))
    assert retriever.queries == []
    assert env.pending.event_type == "refinement"
    result = env.step(env.pending.outputs([search("capital of Bulgaria")]))
    assert retriever.queries == ["capital of Bulgaria"]
    assert "[bulgaria]" in result.next.members[0].prompt
    assert "[film]" in result.next.members[0].prompt


def test_other_passages_lead_to_another_state():
    def state_after(answers):
        env = Search(AtlasTasks(), retriever=ScriptedRetriever(answers))
        return play_script(env, *TEAM).events[2].state_id

    assert state_after(ANSWERS) == state_after(dict(ANSWERS))
    assert state_after(ANSWERS) != state_after({**ANSWERS, COUNTRY: []})


# --- failures -----------------------------------------------------------------------------------------------------

A, B = passage("a"), passage("b")
TROUBLES = {
    "refused": ConnectionError("refused"),
    "said so": RetrieverError("503 after 3 tries"),
    "bug": KeyError("result"),
    "too few lists": [[A]],
    "no lists": [],
    "none": None,
    "twice": [[A, A], []],
    "too many": [[A, B, passage("c"), passage("d")], []],
    "no passages": [["a"], ["b"]],
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_failed_search_leaves_the_set_pending_and_a_retry_gives_what_no_failure_would_have(name):
    retriever = Flaky(TROUBLES[name], TROUBLES[name])
    env = Search(AtlasTasks(), retriever=retriever)
    active = env.step(env.reset(seed=0, options={"task_index": 0}).outputs([route(1, 2)])).next
    outputs = active.outputs([search(DIRECTOR), search(COUNTRY)])
    for _ in range(2):
        with pytest.raises(RetrieverError):
            env.step(outputs)
        assert env.pending == active
        assert len(env.episode.events) == 1
    following = env.step(outputs).next
    assert [queries for queries, _ in retriever.requests] == [[DIRECTOR, COUNTRY]] * 3

    calm = Search(AtlasTasks(), retriever=ScriptedRetriever(ANSWERS))
    expected = calm.step(calm.reset(seed=0, options={"task_index": 0}).outputs([route(1, 2)])).next
    expected = calm.step(expected.outputs([search(DIRECTOR), search(COUNTRY)])).next
    assert following == expected


def test_a_failure_in_a_later_turn_searches_nothing_again_that_was_found():
    retriever = Flaky()
    env = SearchAgent(AtlasTasks(), retriever=retriever)
    active = env.step(env.reset(seed=0).outputs([search(DIRECTOR)])).next
    retriever.troubles = [ConnectionError("refused")]
    outputs = active.outputs([search(COUNTRY)])
    with pytest.raises(RetrieverError, match="ConnectionError: refused"):
        env.step(outputs)
    env.step(outputs)
    assert [queries for queries, _ in retriever.requests] == [[DIRECTOR], [COUNTRY], [COUNTRY]]


def test_nothing_found_is_an_answer():
    env = SearchAgent(AtlasTasks(), retriever=ScriptedRetriever({}))
    episode = play_script(env, ("agent", search(DIRECTOR)), ("continuation", say("Sofia")))
    assert episode.events[0].tool_calls[0].result == ()
    assert episode.info["metrics"]["num_queries"] == 1.0
    assert episode.events[1].state_label == "0 passages"


# --- searches -----------------------------------------------------------------------------------------------------


def test_one_set_is_one_request_for_as_many_passages_as_configured():
    retriever = Flaky()
    env = Search(AtlasTasks(), variant="fixed", retriever=retriever, top_k=1, max_turns=1)
    episode = play_script(
        env,
        ("searcher", search(COUNTRY), search(DIRECTOR), search(COUNTRY)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert retriever.requests == [([COUNTRY, DIRECTOR], 1)]
    calls = episode.events[0].tool_calls
    assert [dict(call.arguments) for call in calls] == [
        {"query": COUNTRY, "top_k": 1},
        {"query": DIRECTOR, "top_k": 1},
    ]
    assert [[found["id"] for found in call.result] for call in calls] == [["varna"], ["film"]]


# --- the contract -------------------------------------------------------------------------------------------------


def searching_policy(member, rng):
    """Speaks every role's format half of the time, and nonsense otherwise."""
    if rng.random() < 0.5:
        return ["", "?", "<think>x", search(""), "\ud800"][rng.integers(5)]
    names = ["Bafa", "nobody", "age of Bafa"]
    by_role = {
        "router": [STOP, route(1), route(2, 1)],
        "searcher": list(map(search, names)),
        "verifier": [APPROVE, REJECT],
        "answerer": list(map(say, names)),
        "agent": [search("Bafa"), say("Bafa")],
    }
    return by_role[member.role][rng.integers(len(by_role[member.role]))]


@pytest.mark.parametrize("env_id", ["VillageSearch-v0", "VillageSearchFixed-v0", "VillageSearchAgent-v0"])
def test_the_registered_workflows_keep_the_contract(env_id):
    make_env = functools.partial(srpo_envs.make, env_id, retriever=VILLAGE)
    report = srpo_envs.check_set_env(make_env, num_episodes=16, policy=searching_policy)
    assert [line for line in report.not_checked if line.startswith("role")] == []


def test_a_value_that_is_refused_names_the_environment():
    with pytest.raises(ConfigError, match=r"VillageSearch-v0: .*top_k.*got 0, 3 and 12000"):
        srpo_envs.make("VillageSearch-v0", top_k=0)


def test_search_workflows_take_the_arguments_of_search_and_of_every_environment():
    arguments = srpo_envs.spec("VillageSearch-v0").arguments()
    shared = {"retriever", "top_k", "max_turns", "max_evidence_chars", "query_cost", "max_events", "invalid_penalty"}
    assert shared | {"num_searchers", "at_limit", "level"} <= arguments.keys()
    assert shared <= srpo_envs.spec("VillageSearchAgent-v0").arguments().keys()
    assert "variant" not in arguments


def test_another_schedule_over_the_same_search():
    """A workflow of one's own: everything but roles and schedule comes from `SearchEnv`."""

    class OneShot(SearchEnv):
        def __init__(self, tasks, **search):
            roles = (
                Role.of(tasks, "searcher", parse=parse_search, seats=2),
                Role.of(tasks, "answerer", parse=tasks.parse_answer),
            )
            super().__init__(tasks, roles, **search)

        def schedule(self, task):
            queries = yield self.ask_about("searcher", Evidence(), seats=(0, 1), active="1, 2")
            turn = Turn(results=self.look_up([(query.agent, query.parsed) for query in queries]))
            (final,) = yield self.ask_about("answerer", Evidence((turn,)))
            return self.conclude(task, Evidence((turn,)), final, "answer")

    env = OneShot(AtlasTasks(), retriever=ScriptedRetriever(ANSWERS), max_turns=1)
    episode = play_script(env, ("searcher", search(DIRECTOR), search(COUNTRY)), ("answerer", say("Sofia")))
    assert (episode.reward, episode.info["stopped_by"]) == (1.0, "answer")
    assert [event.state_label for event in episode.events] == ["question, no evidence", "2 passages"]
    assert describe(Evidence()) == "question, no evidence"
