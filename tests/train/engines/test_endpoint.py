"""One HTTP server: what counts as an answer, as a refusal, and as trouble that passes."""

from __future__ import annotations

import asyncio
import email.utils
import time

import pytest
from json_server import Answer, JsonServer

from srpo_envs.errors import ConfigError
from srpo_train.engines.endpoint import Endpoint, Patience, Reply, checked_url, retry_after_s


def ask(server_or_url, *, path="/x", payload=None, timeout_s=60.0):
    async def run():
        endpoint = Endpoint(getattr(server_or_url, "url", server_or_url), patience=Patience(timeout_s=timeout_s))
        try:
            return await endpoint.post(path, payload)
        finally:
            await endpoint.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "reason", "may_pass"),
    [
        (Answer({"a": 1}), "", False),
        (Answer(""), "", False),  # done, without a word
        (Answer("<html>"), "status 200, but not a JSON object: '<html>'", True),
        (Answer([1]), "status 200, but not a JSON object: '[1]'", True),
        (Answer("[" * 100_000), f"status 200, but not a JSON object: {'[' * 80!r}", True),
        (Answer({"error": {"message": "no"}}, 400), "status 400: no", False),
        (Answer({"error": "no"}, 422), "status 422: no", False),
        (Answer({"detail": "busy"}, 429), "status 429: busy", True),
        (Answer("gone", 503), "status 503: gone", True),
        (Answer("", 500), "status 500", True),
    ],
)
def test_what_came_back(answer, reason, may_pass):
    with JsonServer(lambda asked: answer) as server:
        reply = ask(server)
    assert (reply.reason, reply.may_pass, reply.is_good, reply.is_down) == (reason, may_pass, not reason, False)


def test_silence_is_not_death():
    with JsonServer(lambda asked: Answer(delay_s=5.0)) as server:
        reply = ask(server, timeout_s=0.05)
    assert (reply.status, reply.may_pass, reply.is_down) == (None, True, False)


def test_a_broken_connection_is():
    with JsonServer(lambda asked: Answer(None)) as server:
        reply = ask(server)
    assert (reply.status, reply.may_pass, reply.is_down) == (None, True, True)
    assert ask("http://127.0.0.1:9").is_down


def test_pauses_double_with_some_chance_and_respect_the_server():
    patience = Patience(first_pause_s=1.0, longest_pause_s=5.0)
    for attempt, most in [(0, 1), (1, 2), (2, 4), (3, 5), (9, 5)]:
        assert most / 2 <= patience.pause_s(attempt, 0.0) <= most
    assert patience.pause_s(0, 60.0) == 60.0


def test_retry_after_is_seconds_or_a_date():
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < retry_after_s({"retry-after": soon}) <= 30
    for nothing in ({}, {"retry-after": "soon"}, {"retry-after": "-3"}, {"retry-after": "nan"}, {"retry-after": "inf"}):
        assert retry_after_s(nothing) == 0.0


@pytest.mark.parametrize(
    "url", ["host", "ftp://host", "http://", "http://host?a=1", "http://host:port", "http://host#a"]
)
def test_what_is_no_server_is_refused(url):
    with pytest.raises(ConfigError):
        checked_url(url)


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"max_retries": -1}, {"first_pause_s": -1}]
)
def test_impatience_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Patience(**wrong)


def test_a_redirect_is_a_refusal():
    assert not Reply(307, {}, "status 307").may_pass
