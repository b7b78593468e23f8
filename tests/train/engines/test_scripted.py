from __future__ import annotations

import time

import pytest

from srpo_envs.errors import EngineError
from srpo_train.engines import GenerationRequest, Sampling, ScriptedEngine
from srpo_train.engines.scripted import EOS_ID, decode_bytes


def request(prompt: str = "Compute.", *, seed: int = 0, limit: int = 50, stop=(), name: str = "r") -> GenerationRequest:
    return GenerationRequest(request_id=name, prompt=prompt, max_new_tokens=limit, seed=seed, stop=stop)


def answer(engine: ScriptedEngine, *requests: GenerationRequest):
    return engine.generate(list(requests), Sampling())


def test_an_answer_carries_its_bytes_the_end_and_one_logprob_a_token():
    (generation,) = answer(ScriptedEngine("p", lambda request: "é!"), request(name="ep/e0/0"))
    assert generation.token_ids == (0xC3, 0xA9, ord("!"), EOS_ID)
    assert (generation.request_id, generation.text, generation.finish_reason) == ("ep/e0/0", "é!", "stop")
    assert len(generation.logprobs) == 4
    assert decode_bytes(generation.prompt_token_ids) == "Compute."


def test_the_limit_cuts_an_answer_and_no_end_is_recorded():
    (generation,) = answer(ScriptedEngine("p", lambda request: "abcdef"), request(limit=4))
    assert (generation.text, generation.token_ids, generation.finish_reason) == ("abcd", tuple(b"abcd"), "length")


def test_an_answer_that_fills_the_limit_without_its_end_finishes_by_length():
    assert answer(ScriptedEngine("p", lambda request: "abcd"), request(limit=4))[0].finish_reason == "length"
    assert answer(ScriptedEngine("p", lambda request: "abcd"), request(limit=5))[0].finish_reason == "stop"


def test_limits_can_be_ignored():
    (generation,) = answer(ScriptedEngine("p", lambda request: "abcdef", respects_limits=False), request(limit=4))
    assert (generation.text, generation.finish_reason) == ("abcdef", "stop")


def test_the_first_stop_text_ends_an_answer_and_belongs_to_it():
    engine = ScriptedEngine("p", lambda request: "<a>1</a> and <b>2</b>")
    (generation,) = answer(engine, request(stop=("</b>", "</a>")))
    assert (generation.text, generation.token_ids) == ("<a>1</a>", tuple(b"<a>1</a>"))


def test_a_mapping_answers_by_the_first_key_in_the_prompt():
    engine = ScriptedEngine("p", {"Verify": "approve", "": "4"})
    assert [g.text for g in answer(engine, request("Verify 2+2"), request("Solve 2+2"))] == ["approve", "4"]


def test_a_mapping_without_a_fitting_key_fails_and_names_the_request():
    with pytest.raises(EngineError, match="'ep/e3/0'"):
        answer(ScriptedEngine("p", {"Verify": "approve"}), request("Solve", name="ep/e3/0"))


def test_a_sequence_answers_in_order_across_calls_and_then_fails():
    engine = ScriptedEngine("p", ["a", "b", "c"])
    assert [g.text for g in answer(engine, request(), request())] == ["a", "b"]
    assert answer(engine, request())[0].text == "c"
    with pytest.raises(EngineError, match="used up"):
        answer(engine, request())


def test_none_aborts_one_request_only():
    fine, lost = answer(ScriptedEngine("p", ["a", None]), request(), request())
    assert fine.finish_reason == "stop"
    assert (lost.finish_reason, lost.token_ids, lost.logprobs, lost.text) == ("abort", (), (), "")
    assert lost.abort_reason


def test_a_failing_call_raises_and_the_next_one_answers():
    engine = ScriptedEngine("p", ["a"], failing_calls=[0])
    with pytest.raises(EngineError, match="call 0"):
        answer(engine, request())
    assert answer(engine, request())[0].text == "a"
    assert engine.num_calls == 2


def test_members_with_different_seeds_may_answer_differently_and_a_seed_repeats():
    engine = ScriptedEngine("p", lambda request: str(request.seed))
    first = [g.text for g in answer(engine, request(seed=1), request(seed=2))]
    assert first == ["1", "2"]
    assert [g.text for g in answer(engine, request(seed=1), request(seed=2))] == first


def test_version_and_requests_are_recorded():
    engine = ScriptedEngine("p", lambda request: "a", policy_version=3)
    assert answer(engine, request("one"))[0].policy_version == 3
    engine.policy_version = 4
    assert answer(engine, request("two"))[0].policy_version == 4
    assert [r.prompt for r in engine.requests] == ["one", "two"]


def test_a_delay_is_waited_for():
    engine = ScriptedEngine("p", lambda request: "a", delay_s=0.02)
    started = time.perf_counter()
    answer(engine, request())
    assert time.perf_counter() - started >= 0.02
