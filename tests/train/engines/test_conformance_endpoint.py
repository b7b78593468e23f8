"""The endpoint over which engines of texts are tried."""

from __future__ import annotations

import pytest

from srpo_envs.errors import EngineError
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.conformance_endpoint import MODEL, Batches, cut_at_stop, serve_texts
from srpo_train.engines.openai import OpenAIEngine
from srpo_train.engines.scripted import ScriptedEngine


class Broken(ScriptedEngine):
    def generate(self, requests, sampling):
        raise EngineError("out of memory")


def ask(engine, *, model=MODEL, stop=(), limit=40):
    """The answer that comes through HTTP."""
    batches = Batches(engine)
    request = GenerationRequest(request_id="r", prompt="Compute 3+4.", max_new_tokens=limit, seed=0, stop=stop)
    try:
        with serve_texts(batches, context_length=200) as url:
            client = OpenAIEngine("p", url, model, max_retries=0)
            try:
                return client.generate([request], Sampling())[0]
            finally:
                client.close()
    finally:
        batches.close()


def test_an_answer_comes_with_its_count_and_reason():
    generation = ask(ScriptedEngine("p", {"": "It is é."}))
    assert (generation.text, generation.finish_reason, generation.num_tokens) == ("It is é.", "stop", 10)


def test_a_response_ends_after_the_stop_text_that_came_first():
    assert cut_at_stop("a</b>c", ("c", "</b>", "d")) == ("a", "</b>")
    assert cut_at_stop("a", ("b",)) == ("a", None)
    assert ask(ScriptedEngine("p", {"": "a</b>c"}), stop=("c", "</b>")).text == "a</b>"


def test_a_request_beyond_the_context_is_cut_there():
    assert ask(ScriptedEngine("p", {"": "7"}), limit=10_000).text == "7"


def test_a_failure_of_the_engine_is_one_of_the_server():
    generation = ask(Broken("p", {"": ""}))
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)
    assert "status 500: out of memory" in generation.abort_reason


def test_another_model_is_refused():
    with pytest.raises(EngineError, match="'other' does not exist"):
        ask(ScriptedEngine("p", {"": ""}), model="other")
