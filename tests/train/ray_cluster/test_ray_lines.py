"""A line to an actor: what is raised there is raised here, and an actor that does not answer in time is ended."""

from __future__ import annotations

import pytest

ray = pytest.importorskip("ray")

from srpo_envs.errors import ToolError, WorkerLostError  # noqa: E402
from srpo_train.cluster.lines import ActorLine, Answer  # noqa: E402


class Method:
    def remote(self, *arguments):
        return arguments


class Actor:
    ask = Method()


@pytest.fixture
def got(monkeypatch):
    """What `ray.get` is asked for, and what it does."""
    asked = []

    def get(reference, timeout=None):
        asked.append((reference, timeout))
        answer = reference[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    return asked


def test_an_answer_comes_back_and_an_error_is_raised(got):
    line = ActorLine("environments 0", Actor())
    assert line.send("ask", Answer(3))() == 3
    with pytest.raises(ToolError, match="grader away"):
        line.send("ask", Answer(error=ToolError("grader away")))()
    assert [timeout for _, timeout in got] == [None, None]


def test_an_actor_that_takes_too_long_is_killed_so_that_ray_starts_it_again(got, monkeypatch):
    killed = []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append((actor, no_restart)))
    actor = Actor()
    line = ActorLine("engine of team 1", actor, timeout_s=10.0)
    with pytest.raises(WorkerLostError, match=r"engine of team 1 did not answer for 10 s and is killed"):
        line.send("ask", ray.exceptions.GetTimeoutError("late"))()
    assert killed == [(actor, False)]
    assert got[0][1] == 10.0


def test_an_actor_that_died_is_lost_and_left_to_ray(got, monkeypatch):
    monkeypatch.setattr(ray, "kill", None)
    with pytest.raises(WorkerLostError, match="engine of team 1 is lost"):
        ActorLine("engine of team 1", Actor()).send("ask", ray.exceptions.RayActorError())()
