"""An OpenAI-compatible endpoint as an engine, against a server on this machine."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from json_server import Answer, JsonServer

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.openai import OpenAIEngine
from srpo_train.engines.openai_chat import cut_stop_text, is_too_long, read_completion


def request(prompt="Compute 3+4.", *, name="ep/e0/0", limit=50, seed=7, stop=()):
    return GenerationRequest(request_id=name, prompt=prompt, max_new_tokens=limit, seed=seed, stop=stop)


def chat(content="7", *, reason="stop", tokens=5, **message):
    return {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens},
    }


def in_turn(*answers):
    """Give one answer after another; the last one for good."""
    remaining = list(answers)
    return lambda asked: remaining.pop(0) if len(remaining) > 1 else remaining[0]


@pytest.fixture
def served():
    """Start a server with these answers and an engine that asks it."""
    opened = []

    def serve(answer, **settings):
        server = JsonServer(answer if callable(answer) else in_turn(answer))
        engine = OpenAIEngine("p", server.url + "/v1", "qwen", **{"first_pause_s": 0.001, "timeout_s": 5.0, **settings})
        opened.append((engine, server))
        return engine, server

    yield serve
    for engine, server in opened:
        engine.close()
        server.stop()


def answer(engine, *requests, sampling=None):
    return engine.generate(list(requests), sampling or Sampling())


# --- what is asked, and what comes back ---------------------------------------------------------------------------


def test_an_answer_has_a_text_and_a_cost_and_no_tokens(served):
    engine, _ = served(Answer(chat("It is 7.", tokens=12)))
    (generation,) = answer(engine, request())
    assert (generation.text, generation.finish_reason, generation.request_id) == ("It is 7.", "stop", "ep/e0/0")
    assert (generation.token_ids, generation.prompt_token_ids, generation.logprobs) == ((), (), ())
    assert generation.num_tokens == 12
    assert generation.timings["generate_s"] > 0


def test_the_request_carries_what_was_asked_and_leaves_out_what_is_default(served):
    engine, server = served(Answer(chat()), api_key="secret")
    answer(engine, request("Say é.", limit=9, seed=2**40 + 3))
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == (
        "POST", "/v1/chat/completions", "Bearer secret",
    )  # fmt: skip
    assert asked.body == {
        "model": "qwen",
        "messages": [{"role": "user", "content": "Say é."}],
        "max_tokens": 9,
        "temperature": 1.0,
        "seed": 3,  # 2**40 is a multiple of 2**31
    }


def test_sampling_stops_and_fields_of_ones_own_are_sent(served):
    engine, server = served(
        Answer(chat()), limit_field="max_completion_tokens", extra={"seed": None, "reasoning_effort": "low"}
    )
    answer(engine, request(stop=("</a>",)), sampling=Sampling(temperature=0.5, top_p=0.9, top_k=20))
    body = server.asked[0].body
    assert {name: body[name] for name in ("temperature", "top_p", "top_k", "stop")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "stop": ["</a>"],
    }  # fmt: skip
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (50, "low")
    assert "seed" not in body
    assert "max_tokens" not in body


def test_answers_keep_the_order_of_requests_and_run_at_once_within_the_limit(served):
    three = threading.Barrier(3)

    def echo(asked):
        three.wait(60.0)  # fails unless three requests are here at once, three times
        prompt = asked.body["messages"][0]["content"]
        return Answer(chat(prompt), delay_s=0.05 if prompt in "048" else 0.0)

    engine, server = served(echo, max_concurrent=3)
    generations = answer(engine, *(request(str(number), name=f"r{number}") for number in range(9)))
    assert [generation.text for generation in generations] == [str(number) for number in range(9)]
    assert server.most_at_once == 3


def test_a_cut_answer_and_an_empty_one(served):
    engine, _ = served(in_turn(Answer(chat("It is", reason="length")), Answer(chat(None)), Answer(chat(""))))
    cut, none, empty = (answer(engine, request())[0] for _ in range(3))
    assert (cut.text, cut.finish_reason) == ("It is", "length")
    assert (none.text, none.finish_reason, none.num_tokens) == ("", "stop", 5)
    assert (empty.text, empty.finish_reason) == ("", "stop")


def test_missing_counts_are_told_once(served, caplog):
    engine, _ = served(Answer({"choices": chat()["choices"]}))
    with caplog.at_level(logging.WARNING):
        assert [g.num_tokens for g in answer(engine, request(), request(name="other"))] == [0, 0]
    assert len([line for line in caplog.messages if "no token counts" in line]) == 1


# --- reasoning and stop texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_kept_apart_is_put_back_in_front(field):
    completion = read_completion(chat("\n\n\\boxed{7}", **{field: "3 and 4.\n"}), ())
    assert completion.text == "<think>\n3 and 4.\n</think>\n\n\\boxed{7}"


def test_reasoning_that_was_cut_stays_open():
    assert read_completion(chat(None, reason="length", reasoning="3 and"), ()).text == "<think>\n3 and\n"


def test_text_in_parts_is_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal"}, {"type": "text", "text": "b"}]
    assert read_completion(chat(parts), ()).text == "ab"


@pytest.mark.parametrize(
    ("text", "stop", "choice", "expected"),
    [
        ("<a>4", ("</a>",), {}, "</a>"),  # the tag is open
        ("no tag", ("</a>",), {}, ""),  # a natural end
        ("<a>4</a> <a>5", ("</a>",), {}, "</a>"),
        ("<a>4</a>", ("</a>",), {}, ""),  # not cut off
        ("<a>4", ("</a>", "</b>"), {}, "</a>"),
        ("<a>4 <b>5", ("</a>", "</b>"), {}, ""),  # cannot be told
        ("4", ("END",), {}, "END"),  # the only one
        ("4", ("END", "DONE"), {}, ""),
        ("4", ("END", "DONE"), {"stop_reason": "DONE"}, "DONE"),
        ("4", ("END",), {"stop_reason": None}, ""),  # a server that says so: a natural end
        ("<a>4", ("</a>",), {"stop_reason": 151645}, ""),  # a token ended it
        ("4", ("END",), {"matched_stop": "END"}, "END"),
        ("4", (), {}, ""),
    ],
)  # fmt: skip
def test_the_stop_text_is_put_back_where_it_was_cut_off(text, stop, choice, expected):
    assert cut_stop_text(text, stop, choice) == expected


def test_a_cut_answer_gets_no_stop_text():
    assert read_completion(chat("<a>4", reason="length"), ("</a>",)).text == "<a>4"
    assert read_completion(chat("<a>4"), ("</a>",)).text == "<a>4</a>"


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Answer(status=500), Answer(status=429), Answer(None), Answer("<html>", 200)])
def test_passing_trouble_is_asked_again(served, trouble):
    engine, server = served(in_turn(trouble, trouble, Answer(chat("7"))))
    assert answer(engine, request())[0].text == "7"
    assert len(server.asked) == 3


def test_the_endpoint_decides_how_long_to_wait(served):
    engine, _ = served(in_turn(Answer(status=429, headers={"Retry-After": "0.3"}), Answer(chat())))
    begun = time.monotonic()
    answer(engine, request())
    assert time.monotonic() - begun >= 0.3


def test_an_endpoint_that_wants_to_be_left_alone_for_longer_than_an_answer_may_take_is_not_waited_for(served):
    engine, server = served(Answer(status=429, headers={"Retry-After": "86400"}))
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)
    assert len(server.asked) == 1


def test_a_request_that_fails_to_the_last_is_given_up_and_its_neighbour_is_not(served):
    def fail_one(asked):
        return Answer(status=500) if "bad" in asked.body["messages"][0]["content"] else Answer(chat())

    engine, server = served(fail_one, max_retries=2)
    bad, good = answer(engine, request("bad"), request("good", name="other"))
    assert (bad.finish_reason, bad.is_hopeless, good.finish_reason) == ("abort", False, "stop")
    assert "status 500" in bad.abort_reason
    assert len(server.asked) == 3 + 1


def test_an_answer_that_takes_too_long_is_given_up(served):
    engine, _ = served(Answer(chat(), delay_s=1.0), timeout_s=0.05, max_retries=1)
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)
    assert "no answer within 0." in generation.abort_reason


def test_a_refused_request_is_hopeless_and_says_why(served):
    engine, server = served(Answer({"error": {"message": "stop: at most 4 items"}}, status=400))
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", True)
    assert "at most 4 items" in generation.abort_reason
    assert len(server.asked) == 1


def test_a_prompt_beyond_the_context_is_hopeless(served):
    too_long = {"error": {"message": "This model's maximum context length is 128 tokens.", "code": 400}}
    engine, server = served(Answer(too_long, status=400))
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", True)
    assert ["max_tokens" in asked.body for asked in server.asked] == [True, False]


def test_a_prompt_that_leaves_less_room_than_asked_for_is_answered_up_to_the_context(served):
    def fits(asked):
        if "max_tokens" in asked.body:
            return Answer({"error": {"message": "maximum context length is 128 tokens"}}, status=400)
        return Answer(chat("7 and", reason="length"))

    engine, _ = served(fits)
    (generation,) = answer(engine, request())
    assert (generation.text, generation.finish_reason) == ("7 and", "length")


def test_what_an_endpoint_holds_back_is_hopeless(served):
    engine, _ = served(Answer(chat("I", reason="content_filter")))
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless, generation.text) == ("abort", True, "")
    assert "content_filter" in generation.abort_reason


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"text": "7"}]}, {"choices": "7"}])
def test_a_reply_that_is_no_completion_is_given_up(served, body):
    engine, _ = served(Answer(body))
    (generation,) = answer(engine, request())
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)


@pytest.mark.parametrize("status", [307, 401, 402, 403, 404, 405])
def test_a_wrong_key_or_model_fails_the_call(served, status):
    engine, _ = served(Answer({"error": {"message": "no such model"}}, status=status))
    with pytest.raises(EngineError, match=r"refuses model 'qwen': status \d+: no such model; check URL, key and model"):
        answer(engine, request(), request(name="other"))


def test_an_endpoint_where_nobody_listens_fails_the_call(served):
    engine, server = served(Answer(chat()), max_retries=1)
    server.stop()
    with pytest.raises(EngineError, match=f"{server.url}/v1 cannot be reached"):
        answer(engine, request())


def test_context_errors_of_several_servers_are_known():
    assert is_too_long("This model's maximum context length is 4097 tokens. However, you requested 5000 tokens")
    assert is_too_long("the request exceeds the available context size")
    assert is_too_long("The prompt (total length 500) is too long to fit into the model")
    assert is_too_long("Input is too long for requested model.")
    assert not is_too_long("top_k is not supported")


# --- one by one ---------------------------------------------------------------------------------------------------


def test_answers_can_be_polled_as_they_come(served):
    release = threading.Event()

    def hold_one(asked):
        if asked.body["messages"][0]["content"] == "slow":
            release.wait(60)
        return Answer(chat())

    engine, _ = served(hold_one)
    engine.submit([request("slow", name="slow"), request("fast", name="fast")], Sampling())
    assert [generation.request_id for generation in engine.poll(60.0)] == ["fast"]
    assert engine.poll(0.01) == []
    release.set()
    assert [generation.request_id for generation in engine.poll(60.0)] == ["slow"]
    assert engine.poll(0.0) == []


# --- a URL that says all ------------------------------------------------------------------------------------------


@pytest.fixture
def opened():
    engines = []
    yield lambda location: engines.append(OpenAIEngine.open("p", location)) or engines[-1]
    for engine in engines:
        engine.close()


def test_a_url_names_model_and_settings(opened, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with JsonServer(in_turn(Answer(chat()))) as server:
        engine = opened(f"{server.url}/v1/chat/completions?model=qwen&api_key_env=MY_KEY&max_concurrent=2&timeout_s=3")
        answer(engine, request())
        assert (server.asked[0].path, server.asked[0].body["model"]) == ("/v1/chat/completions", "qwen")
        assert server.asked[0].headers["authorization"] == "Bearer secret"


def test_the_only_model_need_not_be_named_and_one_of_several_must(opened):
    models = {"data": [{"id": "qwen"}]}
    with JsonServer(lambda asked: Answer(models)) as server:
        assert opened(f"{server.url}/v1").model == "qwen"
        models["data"].append({"id": "llama"})
        with pytest.raises(ConfigError, match=r"\['qwen', 'llama'\]; add \?model=NAME"):
            opened(f"{server.url}/v1")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://127.0.0.1:1/v1?mdel=qwen", "did you mean 'model'"),
        ("http://127.0.0.1:1/v1?model=q&max_concurrent=few", "expected a number as in 'max_concurrent=32'"),
        ("http://127.0.0.1:1/v1?model=q&max_concurrent=0", "max_concurrent must be at least 1"),
        ("http://127.0.0.1:1/v1?model=q&timeout_s=0", "timeout_s: expected at least"),
        ("ftp://host?model=q", "expected the URL of a server"),
    ],
)
def test_wrong_settings_are_refused(opened, location, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        opened(location)


def test_nobody_at_the_url_is_told(opened):
    with pytest.raises(EngineError, match="cannot be reached"):
        opened("http://127.0.0.1:9/v1")


def test_a_closed_engine_refuses_and_can_be_closed_again(served):
    engine, _ = served(Answer(chat()))
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        answer(engine, request())
