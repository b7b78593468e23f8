"""The retriever protocol: names that open, answers that are held against their promise, and the scripted retriever."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import time
import types

import pytest
from search_world import passage

import srpo_envs.search
from srpo_envs.errors import (
    RegistrationError,
    RetrieverError,
    SearchIndexError,
    SurroundingsError,
    UnknownIdError,
)
from srpo_envs.search import (
    RETRIEVER_GROUP,
    Passage,
    ScriptedRetriever,
    open_retriever,
    register_retriever,
    search_all,
)


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    """Schemes and opened retrievers of one test are gone after it."""
    monkeypatch.setattr(srpo_envs.search, "_factories", {})
    monkeypatch.setattr(srpo_envs.search, "_opened", {})
    monkeypatch.setattr(srpo_envs.search, "_locks", {})


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("lab:facts", "facts"),
        ("lab:a/b:c", "a/b:c"),
        ("lab:", ""),
        ("lab://host:8000/x?y=1", "lab://host:8000/x?y=1"),  # a URL is handed over whole
    ],
)
def test_a_factory_gets_the_location(spec, given):
    seen = []
    register_retriever("lab", lambda location: seen.append(location) or ScriptedRetriever({}))
    open_retriever(spec)
    assert seen == [given]


def test_a_name_is_opened_once_and_shared_between_threads():
    opened = []
    gate = threading.Barrier(8)

    def factory(location):
        opened.append(location)
        time.sleep(0.05)  # long enough for every thread to ask
        return ScriptedRetriever({})

    def open_at_once():
        gate.wait()
        found.append(open_retriever("lab:facts"))

    register_retriever("lab", factory)
    found: list = []
    threads = [threading.Thread(target=open_at_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == ["facts"]
    assert len(set(map(id, found))) == 1
    assert open_retriever("lab:other") is not found[0]


def test_a_forked_child_opens_its_own(monkeypatch):
    register_retriever("lab", lambda location: ScriptedRetriever({}))
    ours = open_retriever("lab:facts")
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert open_retriever("lab:facts") is not ours


def test_what_failed_to_open_is_tried_again():
    answers = [SearchIndexError("no index at 'facts'"), ScriptedRetriever({})]

    def factory(location):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    register_retriever("lab", factory)
    with pytest.raises(SearchIndexError, match="no index at 'facts'"):
        open_retriever("lab:facts")
    assert isinstance(open_retriever("lab:facts"), ScriptedRetriever)


@pytest.mark.parametrize("spec", ["labb:facts", "lab", "", ":facts", "LAB:facts"])
def test_an_unknown_name_raises(spec):
    register_retriever("lab", lambda location: ScriptedRetriever({}))
    with pytest.raises(UnknownIdError, match="expected scheme:location with a known scheme"):
        open_retriever(spec)


def test_the_nearest_scheme_is_named():
    register_retriever("lab", lambda location: ScriptedRetriever({}))
    with pytest.raises(UnknownIdError, match=r"no retriever 'labb:facts'.*did you mean 'lab'"):
        open_retriever("labb:facts")


@pytest.mark.parametrize("scheme", ["", "Lab", "my lab", "lab:", "lab-2"])
def test_a_scheme_is_a_plain_word(scheme):
    with pytest.raises(RegistrationError, match="expected lower-case letters and digits"):
        register_retriever(scheme, lambda location: ScriptedRetriever({}))


def test_a_scheme_is_registered_once():
    register_retriever("lab", lambda location: ScriptedRetriever({}))
    with pytest.raises(RegistrationError, match="'lab' is already registered"):
        register_retriever("lab", lambda location: ScriptedRetriever({}))


def test_installed_packages_bring_schemes_that_are_imported_when_used(monkeypatch):
    entry = importlib.metadata.EntryPoint("plugged", "plugged_search:open_it", RETRIEVER_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == RETRIEVER_GROUP else [])
    with pytest.raises(RegistrationError, match="'plugged' is already registered"):
        register_retriever("plugged", lambda location: ScriptedRetriever({}))
    with pytest.raises(ModuleNotFoundError):
        open_retriever("plugged:here")  # only now
    module = types.ModuleType("plugged_search")
    module.open_it = lambda location: ScriptedRetriever({location: []})
    monkeypatch.setitem(sys.modules, "plugged_search", module)
    assert isinstance(open_retriever("plugged:here"), ScriptedRetriever)


def test_this_projects_engines_are_installed():
    installed = {entry.name for entry in importlib.metadata.entry_points(group=RETRIEVER_GROUP)}
    assert {"bm25", "lucene", "dense", "hybrid", "http", "https"} <= installed


# --- answers are held against the protocol ------------------------------------------------------------------------


class Engine:
    """Answers with whatever it is given: a value, or an error to raise."""

    def __init__(self, answer):
        self.answer = answer

    def search(self, queries, top_k):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


A, B, C = passage("a"), passage("b"), passage("c")


@pytest.mark.parametrize("answer", [[[], []], [[A], []], [[A, B], [B, A]]])
def test_a_proper_answer_is_passed_on(answer):
    assert search_all(Engine(answer), ["x", "y"], 2) is answer


GARBAGE = {
    "nothing": None,
    "a text": "passages",
    "a generator": (row for row in ([A], [B])),
    "too few lists": [[A]],
    "too many lists": [[A], [B], [C]],
    "a passage for a list": [A, B],
    "a missing list": [[A], None],
    "more than asked for": [[A, B, C], []],
    "one passage twice": [[A, passage("a", "other words")], []],
    "a row that is no passage": [[{"id": "a", "contents": "x"}], []],
    "an id that is no text": [[Passage(id=7, title="", text="x")], []],
    "a text that is none": [[Passage(id="a", title="", text=None)], []],
    "a title that is none": [[Passage(id="a", title=None, text="x")], []],
    "a text that is no Unicode": [[Passage(id="a", title="", text="half \ud800")], []],
    "a score that is no number": [[passage("a", score="high")], []],
    "a score that is not finite": [[passage("a", score=float("nan"))], []],
    "an id that cannot be compared": [[Passage(id=[], title="", text="x")], []],
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_failure_and_never_no_evidence(name):
    with pytest.raises(RetrieverError, match="expected"):
        search_all(Engine(GARBAGE[name]), ["x", "y"], 2)


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError(), KeyError("result"), ValueError("bad")])
def test_whatever_an_engine_raises_is_a_failure_of_the_surroundings(error):
    with pytest.raises(RetrieverError, match=f"search of 2 queries failed: {type(error).__name__}") as caught:
        search_all(Engine(error), ["x", "y"], 2)
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, SurroundingsError)


@pytest.mark.parametrize("error", [RetrieverError("503"), SearchIndexError("damaged")])
def test_an_error_that_says_what_it_is_passes_unchanged(error):
    with pytest.raises(type(error)) as caught:
        search_all(Engine(error), ["x"], 2)
    assert caught.value is error


def test_an_interrupt_is_no_failed_search():
    with pytest.raises(KeyboardInterrupt):
        search_all(Engine(KeyboardInterrupt()), ["x"], 2)


# --- the scripted retriever ---------------------------------------------------------------------------------------


def test_the_scripted_retriever_answers_by_query_and_remembers_the_queries():
    retriever = ScriptedRetriever({"x": [A, B], "y": []})
    assert retriever.search(["x", "y", "z"], 1) == [[A], [], []]
    assert retriever.search(["x"], 3) == [[A, B]]
    assert retriever.queries == ["x", "y", "z", "x"]


def test_the_scripted_retriever_keeps_to_the_protocol():
    with pytest.raises(ValueError, match="top_k: expected at least 1, got 0"):
        ScriptedRetriever({}).search(["x"], 0)
