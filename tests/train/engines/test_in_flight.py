"""Requests under way: order, errors, cancellation and rest."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import pytest

from srpo_envs.errors import EngineError
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.in_flight import InFlight


def requests(*names):
    return [GenerationRequest(request_id=name, prompt=name, max_new_tokens=4, seed=0) for name in names]


def generation(request):
    return Generation(
        request_id=request.request_id, text="", prompt_token_ids=(), token_ids=(), logprobs=(), finish_reason="stop"
    )


class Answers:
    """Answers a request once its name has been released; ``bad`` ones raise."""

    def __init__(self):
        self.begun = set()
        self.cut_off = set()
        self.released = set()

    async def __call__(self, request, sampling):
        name = request.request_id
        self.begun.add(name)
        try:
            while not name.startswith("fast") and name not in self.released:
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # a connection takes its time to close
            self.cut_off.add(name)
            raise
        if "bad" in name:
            raise EngineError(f"{name} failed")
        return generation(request)


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def in_flight(answers):
    made = InFlight("test", answers)
    yield made
    made.close()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def names(generations):
    return [generation.request_id for generation in generations]


def test_a_batch_comes_back_in_order(in_flight, answers):
    answers.released |= {"b"}
    threading.Timer(0.03, answers.released.add, ["a"]).start()
    assert names(in_flight.generate(requests("a", "fast", "b"), Sampling())) == ["a", "fast", "b"]


def test_a_failure_ends_the_batch_and_cuts_off_the_others(in_flight, answers):
    answers.released |= {"bad"}
    with pytest.raises(EngineError, match="bad failed"):
        in_flight.generate(requests("held", "bad"), Sampling())
    wait_until(lambda: "held" in answers.cut_off)


def test_a_failure_forgets_all_that_was_submitted(in_flight, answers):
    answers.released |= {"bad"}
    in_flight.submit(requests("held", "bad"), Sampling())
    with pytest.raises(EngineError, match="bad failed"):
        in_flight.poll(5.0)
    assert in_flight.poll(5.0) == []
    assert answers.cut_off == {"held"}


def test_what_is_cancelled_never_comes_and_its_name_is_free_again(in_flight, answers):
    in_flight.submit(requests("a", "b"), Sampling())
    wait_until(lambda: answers.begun == {"a", "b"})
    in_flight.cancel(["a", "unknown"])
    answers.released |= {"a", "b"}
    assert names(in_flight.poll(5.0)) == ["b"]
    in_flight.submit(requests("a"), Sampling())
    assert names(in_flight.poll(5.0)) == ["a"]


def test_with_nothing_wanted_a_poll_waits_for_rest(in_flight, answers):
    in_flight.submit(requests("a"), Sampling())
    wait_until(lambda: "a" in answers.begun)
    in_flight.cancel(["a"])
    assert in_flight.poll(0.0) == []
    assert answers.cut_off == {"a"}


def test_a_finished_answer_can_still_be_cancelled(in_flight):
    in_flight.submit(requests("fast", "fast2"), Sampling())
    wait_until(lambda: len(in_flight._done) == 2)
    in_flight.cancel(["fast"])
    assert names(in_flight.poll(0.0)) == ["fast2"]


def test_a_batch_and_submitted_requests_do_not_mix(in_flight, answers):
    in_flight.submit(requests("a"), Sampling())
    assert names(in_flight.generate(requests("fast"), Sampling())) == ["fast"]
    assert in_flight.poll(0.0) == []
    answers.released.add("a")
    assert names(in_flight.poll(5.0)) == ["a"]


def test_rest_does_not_wait_for_work_beside(in_flight):
    async def begin():
        in_flight.beside(asyncio.sleep(60))

    in_flight.call(begin())
    assert in_flight.poll(0.0) == []


def test_an_interruption_cuts_off_what_is_under_way_and_marks_what_has_come(in_flight, answers):
    in_flight.submit(requests("a", "fast"), Sampling())
    wait_until(lambda: "a" in answers.begun and in_flight._done)
    in_flight.interrupt(
        lambda request: dataclasses.replace(generation(request), abort_reason="cut off"),
        lambda answer: dataclasses.replace(answer, abort_reason="too late"),
    )
    assert {g.request_id: g.abort_reason for g in in_flight.poll(0.0)} == {"fast": "too late", "a": "cut off"}
    assert answers.cut_off == {"a"}
    assert in_flight.poll(0.0) == []


def test_closing_gives_up_what_is_under_way_and_runs_one_last_thing(answers):
    in_flight = InFlight("test", answers)
    in_flight.submit(requests("a"), Sampling())
    wait_until(lambda: "a" in answers.begun)
    ended = []

    async def last():
        ended.append(set(answers.cut_off))

    in_flight.close(last())
    in_flight.close(last())
    assert ended == [{"a"}]
    with pytest.raises(EngineError, match="closed"):
        in_flight.submit(requests("b"), Sampling())
