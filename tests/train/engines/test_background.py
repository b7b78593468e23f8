"""Any engine as a streaming one: batches of what waits, cancellation, failures, rest."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from srpo_envs.errors import EngineError
from srpo_train.engines import BackgroundEngine, GenerationRequest, Sampling, ScriptedEngine, StreamingEngine

SAMPLING = Sampling()


def request(name: str, prompt: str = "Compute.") -> GenerationRequest:
    return GenerationRequest(request_id=name, prompt=prompt, max_new_tokens=50, seed=0)


def requests(*names: str) -> list[GenerationRequest]:
    return [request(name) for name in names]


class Gated(ScriptedEngine):
    """Waits at a gate before every batch, and keeps the batches."""

    def __init__(self, **settings) -> None:
        super().__init__("p", lambda request: request.request_id, **settings)
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.batches: list[list[str]] = []
        self.samplings: list[Sampling] = []

    def generate(self, requests, sampling):
        self.batches.append([request.request_id for request in requests])
        self.samplings.append(sampling)
        self.begun.set()
        assert self.gate.wait(20.0)
        return super().generate(requests, sampling)


@pytest.fixture
def open_background():
    opened = []

    def make(engine, **settings):
        opened.append((engine, BackgroundEngine(engine, **settings)))
        return opened[-1][1]

    yield make
    for engine, background in opened:
        engine.gate.set()
        background.close()


def drain(engine, count, limit_s=20.0):
    """Poll until so many answers are there."""
    answers, deadline = [], time.monotonic() + limit_s
    while len(answers) < count and time.monotonic() < deadline:
        answers += engine.poll(0.1)
    return [answer.request_id for answer in answers]


def test_it_streams_and_a_scripted_engine_does_not(open_background):
    engine = Gated()
    assert isinstance(open_background(engine), StreamingEngine)
    assert not isinstance(engine, StreamingEngine)


def test_what_waits_makes_one_batch(open_background):
    engine = Gated()
    background = open_background(engine)
    background.submit(requests("a", "b"), SAMPLING)
    assert engine.begun.wait(20.0)
    background.submit(requests("c"), SAMPLING)
    background.submit(requests("d"), SAMPLING)
    assert background.poll(0.01) == []
    engine.gate.set()
    assert drain(background, 4) == ["a", "b", "c", "d"]
    assert engine.batches == [["a", "b"], ["c", "d"]]


def test_batches_are_bounded_and_never_mix_ways_of_sampling(open_background):
    engine = Gated()
    background = open_background(engine, max_batch_size=2)
    greedy = dataclasses.replace(SAMPLING, temperature=0.0)
    background.submit(requests("a"), SAMPLING)
    assert engine.begun.wait(20.0)
    background.submit(requests("b"), SAMPLING)
    background.submit(requests("c"), greedy)
    background.submit(requests("d", "e"), SAMPLING)
    engine.gate.set()
    assert sorted(drain(background, 5)) == ["a", "b", "c", "d", "e"]
    assert engine.batches == [["a"], ["b", "d"], ["c"], ["e"]]
    assert engine.samplings == [SAMPLING, SAMPLING, greedy, SAMPLING]


def test_a_waiting_request_that_is_cancelled_is_never_sampled(open_background):
    engine = Gated()
    background = open_background(engine)
    background.submit(requests("a"), SAMPLING)
    assert engine.begun.wait(20.0)
    background.submit(requests("b", "c"), SAMPLING)
    background.cancel(["b", "unknown"])
    engine.gate.set()
    assert drain(background, 2) == ["a", "c"]
    assert engine.batches == [["a"], ["c"]]


def test_a_cancelled_answer_is_thrown_away_even_when_its_id_is_used_again(open_background):
    engine = Gated()
    background = open_background(engine)
    background.submit([request("a")], SAMPLING)
    assert engine.begun.wait(20.0)
    background.cancel(["a"])
    background.submit([request("a", "again")], SAMPLING)
    engine.gate.set()
    deadline = time.monotonic() + 20.0
    while not (answers := background.poll(0.1)) and time.monotonic() < deadline:
        pass
    assert [bytes(answer.prompt_token_ids) for answer in answers] == [b"again"]
    assert background.poll(0.0) == []


def test_a_poll_with_nothing_wanted_returns_when_the_engine_is_at_rest(open_background):
    engine = Gated()
    background = open_background(engine)
    background.submit(requests("a"), SAMPLING)
    assert engine.begun.wait(20.0)
    background.cancel(["a"])
    threading.Timer(0.2, engine.gate.set).start()
    assert background.poll(0.0) == []
    assert engine.num_calls == 1  # counted at the end of the batch
    begun = time.monotonic()
    assert background.poll(10.0) == []
    assert time.monotonic() - begun < 5.0


def test_a_failure_is_raised_once_and_the_engine_goes_on(open_background):
    engine = Gated(failing_calls={0})
    background = open_background(engine)
    background.submit(requests("a"), SAMPLING)
    assert engine.begun.wait(20.0)
    background.submit(requests("b"), SAMPLING)  # forgotten with it
    engine.gate.set()
    with pytest.raises(EngineError, match="call 0 fails"):
        drain(background, 1)
    assert background.poll(0.0) == []
    background.submit(requests("a"), SAMPLING)
    assert drain(background, 1) == ["a"]


def test_generate_waits_for_the_running_batch(open_background):
    engine = Gated()
    background = open_background(engine)
    background.submit(requests("a"), SAMPLING)
    assert engine.begun.wait(20.0)
    threading.Timer(0.1, engine.gate.set).start()
    assert [answer.request_id for answer in background.generate(requests("b"), SAMPLING)] == ["b"]
    assert engine.batches == [["a"], ["b"]]
    assert drain(background, 1) == ["a"]


def test_closing_twice_is_harmless_and_ends_the_thread(open_background):
    before = threading.active_count()
    background = open_background(Gated())
    assert threading.active_count() == before + 1
    background.close()
    background.close()
    assert threading.active_count() == before
