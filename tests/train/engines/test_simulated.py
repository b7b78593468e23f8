"""The simulated engine: seats, steps, seeds and what it counts."""

from __future__ import annotations

import statistics

from srpo_train.engines import GenerationRequest, Sampling, StreamingEngine
from srpo_train.engines.simulated import LogNormalLengths, SimulatedEngine, Usage

SAMPLING = Sampling()


def request(length: int, name: str = "", *, limit: int = 1000, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(request_id=name or str(length), prompt=str(length), max_new_tokens=limit, seed=seed)


def open_engine(max_batch_size: int = 64, script=lambda request: "ten tokens"):
    return SimulatedEngine("p", script, lambda request: int(request.prompt), max_batch_size=max_batch_size, step_s=0.0)


def poll_names(engine):
    return [answer.request_id for answer in engine.poll(0.0)]


def test_a_response_leaves_with_its_last_token():
    engine = open_engine()
    engine.submit([request(3), request(1), request(2)], SAMPLING)
    assert [poll_names(engine) for _ in range(4)] == [["1"], ["2"], ["3"], []]
    assert (engine.usage.num_steps, engine.usage.num_tokens) == (3, 3 + 2 + 1)
    assert isinstance(engine, StreamingEngine)


def test_a_request_joins_a_running_batch_as_soon_as_there_is_a_seat():
    engine = open_engine(max_batch_size=2)
    engine.submit([request(4), request(2)], SAMPLING)
    engine.poll(0.0)
    engine.submit([request(1)], SAMPLING)
    assert [poll_names(engine) for _ in range(3)] == [["2"], ["1"], ["4"]]


def test_waiting_for_a_seat_is_not_counted_as_generation():
    engine = open_engine(max_batch_size=1)
    first, second = engine.generate([request(2), request(3)], SAMPLING)
    assert first.timings["queue_s"] < first.timings["generate_s"] <= second.timings["queue_s"]
    assert second.timings["generate_s"] > 0


def test_a_cancelled_request_leaves_its_seat():
    engine = open_engine(max_batch_size=1)
    engine.submit([request(5), request(2), request(1)], SAMPLING)
    engine.poll(0.0)
    engine.cancel(["5", "2", "unknown"])
    assert poll_names(engine) == ["1"]
    assert poll_names(engine) == []


def test_generate_answers_in_request_order_and_keeps_what_streams():
    engine = open_engine()
    engine.submit([request(1, "streamed")], SAMPLING)
    answers = engine.generate([request(3), request(2)], SAMPLING)
    assert [answer.request_id for answer in answers] == ["3", "2"]
    assert [len(answer.token_ids) for answer in answers] == [3, 2]
    assert poll_names(engine) == ["streamed"]


def test_a_limit_cuts_tokens_and_text():
    (answer,) = open_engine().generate([request(10, limit=3)], SAMPLING)
    assert (answer.text, len(answer.token_ids), answer.finish_reason) == ("ten", 3, "length")
    (whole,) = open_engine().generate([request(10, limit=10)], SAMPLING)
    assert (whole.text, whole.finish_reason) == ("ten tokens", "stop")


def test_a_request_can_be_given_up():
    (answer,) = open_engine(script=lambda request: None).generate([request(2)], SAMPLING)
    assert (answer.finish_reason, answer.token_ids, answer.text) == ("abort", (), "")


def test_lengths_are_log_normal_and_belong_to_the_seed():
    lengths = LogNormalLengths(median=200, sigma=1.0)
    drawn = [lengths(request(1, seed=seed)) for seed in range(2000)]
    assert drawn[:50] == [lengths(request(1, "other", seed=seed)) for seed in range(50)]
    assert abs(statistics.median(drawn) - 200) < 15
    # 1.2816 standard deviations of the logarithm are the ninth decile.
    assert abs(sorted(drawn)[1800] - 720) < 80


def test_busy_time_is_counted_from_the_last_reset():
    engine = SimulatedEngine("p", lambda request: "a", lambda request: 5, step_s=0.002, step_s_per_row=0.001)
    engine.generate([request(1, "a"), request(1, "b")], SAMPLING)
    assert engine.usage.busy_s >= 5 * 0.004
    engine.usage = Usage()
    engine.generate([request(1, "c")], SAMPLING)
    assert engine.usage.num_tokens == 5
