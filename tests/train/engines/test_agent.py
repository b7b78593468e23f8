"""Anyone's own code as an engine."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from srpo_envs.errors import ConfigError, ToolError
from srpo_envs.records import Member
from srpo_train.engines.agent import AgentEngine, AgentReply
from srpo_train.engines.base import GenerationRequest, Sampling


def request(prompt="Compute 3+4.", *, role="solver", index=0):
    member = Member(index=index, agent=f"{role}_{index}", role=role, prompt=prompt, max_new_tokens=40)
    return GenerationRequest(
        request_id=f"ep/e0/{index}", prompt=prompt, max_new_tokens=40, seed=0, member=member
    )  # fmt: skip


def answer(agent, *requests, **settings):
    return AgentEngine("mine", agent, **settings).generate(list(requests) or [request()], Sampling())


def test_an_agent_is_told_whose_answer_is_asked():
    seen = []
    (generation,) = answer(lambda member: seen.append(member) or "7", request("Say 7.", role="judge"))
    assert (seen[0].role, seen[0].agent, seen[0].prompt, seen[0].max_new_tokens) == ("judge", "judge_0", "Say 7.", 40)
    assert (generation.text, generation.finish_reason, generation.num_tokens) == ("7", "stop", 0)


def test_an_agent_may_say_what_its_answer_cost():
    (generation,) = answer(lambda member: AgentReply(text="7", num_tokens=31))
    assert (generation.text, generation.num_tokens, generation.token_ids) == ("7", 31, ())


def test_several_are_asked_at_once_within_the_limit_and_keep_their_order():
    now, most, lock = 0, 0, threading.Lock()

    def slow(member):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.03 if member.index == 0 else 0.01)
        with lock:
            now -= 1
        return str(member.index)

    generations = answer(slow, *(request(index=index) for index in range(7)), max_concurrent=3)
    assert [generation.text for generation in generations] == list("0123456")
    assert most == 3


IMPOSSIBLE = [AgentReply(text="7", num_tokens=count) for count in (-1, 2.5, None, "3", 10**9)]


@pytest.mark.parametrize("value", [None, 7, b"7", AgentReply(text=None), *IMPOSSIBLE])
def test_what_is_no_answer_is_the_agents_failure(value):
    (generation,) = answer(lambda member: value)
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", True)
    assert "expected a text or an AgentReply" in generation.abort_reason


def test_an_agent_that_raises_has_failed_and_its_neighbours_have_not(caplog):
    def fragile(member):
        return {"0": "a"}[str(member.index)]

    good, bad = answer(fragile, request(index=0), request(index=1))
    assert (good.text, bad.finish_reason, bad.is_hopeless) == ("a", "abort", True)
    assert bad.abort_reason == "agent 'mine': KeyError: '1'"
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_an_agent_that_ends_its_thread_has_failed_at_once(error):
    def leaves(member):
        raise error

    (generation,) = answer(leaves, timeout_s=20.0)
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", True)
    assert generation.abort_reason.startswith(f"agent 'mine': {type(error).__name__}")


def test_broken_surroundings_are_not_the_agents_failure():
    def unlucky(member):
        raise ToolError("the search engine is down")

    (generation,) = answer(unlucky)
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)


def test_an_agent_that_hangs_is_left_behind():
    release = threading.Event()
    begun = time.monotonic()
    hung, fine = answer(
        lambda member: str(release.wait(20)) if member.index == 0 else "7",
        request(index=0),
        request(index=1),
        max_concurrent=1,
        timeout_s=0.1,
    )
    assert time.monotonic() - begun < 10
    assert (hung.finish_reason, hung.is_hopeless, fine.text) == ("abort", True, "7")
    assert "no answer within 0.1 s" in hung.abort_reason
    release.set()


def test_a_request_without_a_member_is_refused():
    with pytest.raises(ConfigError, match="'r' does not say which member"):
        answer(lambda member: "7", GenerationRequest(request_id="r", prompt="", max_new_tokens=4, seed=0))


@pytest.mark.parametrize("settings", [{"max_concurrent": 0}, {"timeout_s": 0}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError):
        AgentEngine("mine", lambda member: "7", **settings)
