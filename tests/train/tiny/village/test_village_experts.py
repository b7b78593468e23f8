from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_envs.parsing import (
    STOP,
    Malformed,
    parse_answer,
    parse_route,
    parse_search,
    parse_step,
    parse_verdict,
)
from srpo_envs.schedule import Role
from srpo_envs.search import Passage
from srpo_envs.tasks.village import Village, facts, passages
from srpo_envs.workflows.search import Search
from srpo_envs.workflows.search_agent import SearchAgent
from srpo_train.tiny.experts import play_examples
from srpo_train.tiny.village.curriculum import SPOILED, VILLAGE, rates_by_kind
from srpo_train.tiny.village.experts import (
    CLEAN,
    SearchCast,
    SearchHabits,
    names_and_relations,
    sample_environment,
    with_random_company,
)

TASKS = Village(level=4)
READERS = {
    "router": partial(parse_route, low=1, high=3),
    "searcher": parse_search,
    "refinement": parse_search,
    "verifier": parse_verdict,
    "answerer": parse_answer,
    "agent": parse_step,
    "continuation": parse_step,
}


class Lookup:
    """Finds the fact a well-formed query asks for, and nothing else."""

    def __init__(self):
        self.passages = {passage.id: passage for passage in passages()}

    def search(self, queries, top_k) -> list[list[Passage]]:
        relations_and_names = [query.split(" of ") for query in queries]
        return [[self.passages[f"{name}-{relation}"]][:top_k] for relation, name in relations_and_names]


def search_team(**changes):
    settings = {"num_searchers": 2, "max_turns": 2, "top_k": 1, "retriever": Lookup()}
    return Search(TASKS, **(settings | changes))


def single_agent(**changes):
    return SearchAgent(TASKS, **({"max_turns": 4, "top_k": 1, "retriever": Lookup()} | changes))


WORKFLOWS = {
    "routed": search_team,
    "routed-3": partial(search_team, num_searchers=3, max_turns=3),
    "routed-1": partial(search_team, num_searchers=1, max_turns=4),
    "fixed": partial(search_team, variant="fixed"),
    "agent": single_agent,
}


def play(env, num_episodes, *, target=CLEAN, committed=CLEAN, seed=0):
    """(environment, example) of every example of the first episodes."""
    rng = np.random.default_rng(seed)
    for index in range(num_episodes):
        yield from play_examples(env, SearchCast, task_index=index, rng=rng, target=target, committed=committed)


def examples(env, event_type, habits, num_episodes=600):
    return [item for item in play(env, num_episodes, target=habits) if item.event_type == event_type]


def near(count, total, rate):
    """Whether a count is within four standard deviations of its binomial mean; the seeds are fixed."""
    return abs(count - total * rate) < 4 * (total * rate * (1 - rate)) ** 0.5


# --- what experts write is what the environment reads --------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_clean_experts_answer_every_question_in_every_workflow(workflow):
    env = WORKFLOWS[workflow]()
    for index in range(24):
        rng = np.random.default_rng(index)
        list(play_examples(env, SearchCast, task_index=index, rng=rng, target=CLEAN, committed=CLEAN))
        assert env.episode.reward == 1.0, env.episode.task
        assert all(member.is_valid for event in env.episode.events for member in event.members)


def test_a_clean_routed_team_asks_each_query_once_and_no_more():
    env = search_team()
    for index in range(24):
        rng = np.random.default_rng(index)
        list(play_examples(env, SearchCast, task_index=index, rng=rng, target=CLEAN, committed=CLEAN))
        turns = [event for event in env.episode.events if event.event_type in ("searcher", "refinement")]
        wanted = [list(turn) for turn in env.episode.task["info"]["queries"]]
        assert [[call.arguments["query"] for call in event.tool_calls] for event in turns] == wanted
        assert [event.cardinality for event in turns] == list(map(len, wanted))


def test_clean_targets_stay_right_in_bad_company():
    env = search_team(max_turns=3)
    company = SearchHabits(careless_query=0.7, random_route=0.7, random_verdict=0.7)
    seen = Counter()
    for index in range(80):
        rng = np.random.default_rng(index)
        task = TASKS.task(index)
        wanted = {f"{query.split()[2]}-{query.split()[0]}" for turn in task.info["queries"] for query in turn}
        for item in play_examples(env, SearchCast, task_index=index, rng=rng, target=CLEAN, committed=company):
            found = {f"{line.split()[3]}-{line.split()[1]}" for line in item.prompt.splitlines() if line[:4] == "The "}
            parsed = READERS[item.event_type](item.response).value
            if item.event_type == "verifier":
                assert parsed == ("approve" if wanted <= found else "reject")
            elif item.event_type == "router":
                assert (parsed == STOP) == (wanted <= found)
            elif item.event_type == "answerer" and wanted <= found:
                assert parsed == task.gold
            elif item.event_type in ("searcher", "refinement") and not wanted <= found:
                relation, name = parsed.split(" of ")
                assert f"{name}-{relation}" in wanted - found
            seen[item.event_type, wanted <= found] += 1
    assert min(seen[kind, known] for kind in ("router", "verifier", "answerer") for known in (True, False)) > 10


def test_searchers_with_prompts_of_their_own_are_examples_of_their_own():
    first, second = [item for item in play(search_team(variant="fixed"), 3) if item.event_type == "searcher"][-2:]
    assert first.prompt.endswith("Search 1.") and second.prompt.endswith("Search 2.")
    assert first.response != second.response  # of a pair, each works on its own branch


def test_a_thought_says_what_is_known_of_the_first_fact():
    known = Counter()
    for item in play(single_agent(), 40):
        if "<search>" not in item.response:
            continue
        thought = item.response.removeprefix("<think> ").partition("</think>")[0]
        assert thought[:3] in ("1) ", "2) ") if "1)" in item.prompt else ")" not in thought
        fact, _, value = thought.rpartition(") ")[2].partition(" is ")
        relation, name = fact.split(" of ")
        assert value == (facts()[name][relation] if f"The {fact} is" in item.prompt else "unknown")
        known[value != "unknown"] += 1
    assert min(known[True], known[False]) > 10


def test_a_single_agent_answers_with_its_last_step():
    env = single_agent(max_turns=1)
    for _ in play(env, 12, committed=SearchHabits(random_step=0.5)):
        pass
    assert not env.episode.truncated


def test_a_role_without_an_expert_is_refused():
    class Critics(SetEnv):
        def __init__(self):
            super().__init__(TASKS, roles=(Role("critic", parse=parse_verdict, prompt="$question", max_new_tokens=4),))

        def schedule(self, task):
            (reply,) = yield self.ask("critic")
            return self.outcome(reply)

    with pytest.raises(ConfigError, match="no expert plays role 'critic'; expected one of agent, answerer"):
        list(play(Critics(), 1))


# --- spoiled habits have the rates they state ---------------------------------------------------------------------


def test_careless_queries_ask_for_anything_of_anybody_mentioned():
    written = examples(search_team(), "searcher", SearchHabits(careless_query=0.5))
    careless = [item for item in written if item.response.startswith("<think></think>")]
    assert near(len(careless), len(written), 0.5)
    queries = [parse_search(item.response).value.split(" of ") for item in careless]
    assert all(name in item.prompt for (_, name), item in zip(queries, careless, strict=True))
    for relation in ("friend", "teacher", "boss", "age"):
        assert near([query[0] for query in queries].count(relation), len(queries), 0.25), relation


def test_wrong_relations_keep_the_right_person():
    written = examples(search_team(), "searcher", SearchHabits(wrong_relation=0.4))
    wrong = 0
    for item in written:
        thought, query = item.response.split("</think>")
        *_, relation, _, name, _, _ = thought.split()
        assert f" of {name}<" in query
        wrong += f" {relation} of" not in query
    assert near(wrong, len(written), 0.4 * 3 / 4)  # one random relation in four is the right one


def test_careless_answers_name_anybody_mentioned():
    written = examples(search_team(), "answerer", SearchHabits(careless_answer=0.4))
    careless = [item for item in written if item.response.startswith("<think></think>")]
    assert near(len(careless), len(written), 0.4)
    guesses = [(parse_answer(item.response).value.split(" and "), item.prompt) for item in careless]
    assert all(len(names) == 1 + (" and 2)" in prompt) for names, prompt in guesses)
    assert all(name in prompt for names, prompt in guesses for name in names)


def test_random_verdicts_are_tossed():
    written = examples(search_team(), "verifier", SearchHabits(random_verdict=0.3))
    last = [item.response for item in written if "Step 2 of 2" in item.prompt]
    assert len(last) == 300  # half of the questions need two turns, after which everything is known
    assert near(sum("reject" in text for text in last), 300, 0.3 / 2)


def test_random_routes_choose_any_set():
    written = examples(search_team(), "router", SearchHabits(random_route=1.0))
    counts = Counter(item.response for item in written)
    for route in ("1", "2", "1,2", "STOP"):
        assert near(counts[f"<route>{route}</route>"], len(written), 0.25), route


def test_a_random_step_searches_or_answers():
    written = examples(single_agent(), "agent", SearchHabits(random_step=0.6))
    assert near(sum("<answer>" in item.response for item in written), len(written), 0.3)  # a first step needs a search


def test_malformed_responses_of_every_role_decide_nothing():
    broken = SearchHabits(malformed=1.0)
    for env in (search_team(), single_agent()):
        kinds = set()
        for item in play(env, 60, target=broken):
            assert isinstance(READERS[item.event_type](item.response), Malformed)
            kinds.add(item.event_type)
        assert kinds >= ({"router", "searcher"} if "searcher" in env.roles else {"agent", "continuation"})


# --- the mixture of the warm start --------------------------------------------------------------------------------


def test_the_mixture_covers_every_kind_of_event_and_workflow():
    rng = np.random.default_rng(5)
    kinds, worlds = set(), Counter()
    for _ in range(300):
        env = sample_environment(rng, level=4)
        env.retriever = Lookup()
        worlds[type(env).__name__, getattr(env, "variant", None)] += 1
        index = int(rng.integers(env.tasks.num_tasks))
        company = with_random_company(SPOILED, rng)
        for item in play_examples(env, SearchCast, task_index=index, rng=rng, target=SPOILED, committed=company):
            kinds.add(item.event_type)
        assert env.tasks.split == "train"
    assert kinds == set(VILLAGE.role_weights)
    assert set(worlds) == {("Search", "routed"), ("Search", "fixed"), ("SearchAgent", None)}


def test_every_name_and_relation_is_written_with_the_blank_of_its_token():
    env = search_team()
    for item in play(env, 40, target=SPOILED, committed=SPOILED):
        text = item.prompt + item.response
        for word in names_and_relations():
            assert text.count(word.strip()) == text.count(word), (word, text)


def test_company_is_of_every_quality_and_keeps_the_other_habits():
    rng = np.random.default_rng(7)
    companies = [with_random_company(SPOILED, rng) for _ in range(400)]
    shares = [company.careless_query for company in companies]
    assert 0 <= min(shares) < 0.05 and 0.45 < max(shares) <= 0.5
    kept = ("wrong_relation", "careless_answer")
    assert all(getattr(company, name) == getattr(SPOILED, name) for company in companies for name in kept)


# --- what is reported ---------------------------------------------------------------------------------------------


def test_rates_are_by_kind_of_question():
    env = search_team()
    episodes = []
    for index, company in ((0, CLEAN), (4, SearchHabits(random_route=1.0, careless_answer=1.0)), (3, CLEAN)):
        rng = np.random.default_rng(3)
        list(play_examples(env, SearchCast, task_index=index, rng=rng, target=CLEAN, committed=company))
        episodes.append(env.episode)
    assert [episode.task["info"]["kind"] for episode in episodes] == ["lookup", "lookup", "pair_of_chains"]
    queries = [episode.num_tool_calls for episode in episodes]
    assert queries[0] == 1 and queries[2] == 4
    assert rates_by_kind(episodes) == {
        "right/lookup": sum(episode.info["correct"] for episode in episodes[:2]) / 2,
        "queries/lookup": (1 + queries[1]) / 2,
        "right/pair_of_chains": 1.0,
        "queries/pair_of_chains": 4.0,
    }
