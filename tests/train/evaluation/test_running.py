"""Evaluation: Avg@k, Pass@k, utility, and what stays the same from call to call."""

from __future__ import annotations

import dataclasses

import pytest
from factories import NumberTasks, boxed, make_episode, make_event

from srpo_envs.errors import ConfigError, NoEpisodeError, ToolError
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_train.collect import Collector
from srpo_train.engines.agent import AgentReply
from srpo_train.engines.base import Sampling
from srpo_train.engines.scripted import ScriptedEngine
from srpo_train.evaluation import evaluate, evaluate_agent, score_samples
from srpo_train.metrics import check_name


def right_for(request):
    """Answer questions with even numbers right on every sample, odd ones on the second sample only."""
    number = int(request.prompt.split(".")[0].split()[-1])
    is_right = number % 2 == 0 or "/k1/" in request.request_id
    return boxed(number if is_right else "wrong")


@pytest.fixture
def make_collector():
    collectors = []

    def make(answer=right_for, tasks=None, **settings):
        engine = ScriptedEngine("p", answer, respects_limits=False)
        family = tasks or NumberTasks()
        collectors.append(Collector(lambda: SingleAgent(family), {"p": engine}, {"*": "p"}, **settings))
        return collectors[-1], engine

    yield make
    for collector in collectors:
        collector.close()


def run(collector, num_tasks=4, samples=2, **settings):
    return evaluate(collector, num_tasks=num_tasks, samples_per_task=samples, sampling=Sampling(), **settings)


def test_avg_and_pass_at_k(make_collector):
    collector, _ = make_collector()
    metrics = run(collector).metrics
    # Tasks 0 and 2: both samples right; 1 and 3: one of two. Avg@2 = (1 + 1/2 + 1 + 1/2) / 4, Pass@2 = 1.
    assert metrics["eval/avg_at_k"] == 0.75
    assert metrics["eval/pass_at_k"] == 1.0
    assert metrics["eval/accuracy"] == 0.75


def test_a_task_never_solved_lowers_pass_at_k(make_collector):
    collector, _ = make_collector(lambda request: boxed("wrong") if "Say 0." in request.prompt else right_for(request))
    metrics = run(collector).metrics
    assert metrics["eval/pass_at_k"] == 0.75
    assert metrics["eval/avg_at_k"] == 0.5


def test_avg_at_k_weighs_tasks_and_not_samples():
    # One task kept 1 of 1 right, another 0 of 3: the mean over tasks is 1/2, over samples it would be 1/4.
    kept = make_episode(episode_id="a", group_id="a", reward=1.0)
    lost = [make_episode(episode_id=f"b{index}", group_id="b", reward=0.0) for index in range(3)]
    assert score_samples((kept, *lost))["eval/avg_at_k"] == 0.5


def test_utility_is_right_answers_per_million_tokens():
    # Eq. 9: three samples of one task with 6, 8 and 2 tokens, two right: 1e6 * 2 / 16.
    samples = [
        make_episode(episode_id=str(index), reward=reward, events=(make_event(1, lengths=[length]),))
        for index, (reward, length) in enumerate([(1.0, 6), (1.0, 8), (0.0, 2)])
    ]
    assert score_samples(tuple(samples))["eval/utility"] == 125_000.0


def test_every_call_asks_the_same_tasks_with_the_same_seeds(make_collector):
    collector, engine = make_collector()
    episodes = run(collector).episodes
    assert len({episode.seed for episode in episodes}) == 4  # samples of a task face the same world, tasks others
    run(collector)
    requests = [(request.request_id, request.prompt, request.seed) for request in engine.requests]
    assert requests[:8] == requests[8:]
    assert len({seed for _, _, seed in requests[:8]}) == 8


def test_an_episode_lost_to_its_surroundings_is_left_out_and_counted(make_collector):
    class Broken(NumberTasks):
        def grade(self, task, answer):
            if task.task_id == "numbers/1":
                raise ToolError("grader away")
            return super().grade(task, answer)

    collector, _ = make_collector(tasks=Broken(), step_retries=0)
    result = run(collector)
    assert result.metrics["eval/num_failed_episodes"] == 2
    assert result.metrics["eval/num_episodes"] == 6
    assert result.metrics["eval/avg_at_k"] == pytest.approx((1 + 1 + 0.5) / 3)


def test_an_episode_brought_beyond_the_context_is_wrong(make_collector):
    collector, engine = make_collector()
    generate = engine.generate

    def with_a_full_context(requests, sampling):
        answers = generate(requests, sampling)
        return [
            dataclasses.replace(answer, finish_reason="abort", is_hopeless=True)
            if "t0/k1" in request.request_id
            else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    engine.generate = with_a_full_context
    metrics = run(collector).metrics
    # Task 0 has one right sample and one without an answer, task 2 two right ones, tasks 1 and 3 one of two.
    assert metrics["eval/avg_at_k"] == pytest.approx((0.5 + 0.5 + 1 + 0.5) / 4)
    assert metrics["eval/accuracy"] == 5 / 8
    assert metrics["eval/num_failed_episodes"] == 1
    assert engine.num_calls == 1  # no retry of what would be given up again


def test_every_metric_is_in_the_table(make_collector):
    collector, _ = make_collector()
    for name in run(collector).metrics:
        check_name(name)


def test_nothing_finished_scores_nothing():
    assert score_samples(()) == {}


def test_a_malformed_answer_counts_as_wrong():
    episode = dataclasses.replace(make_episode(reward=0.0), info={"answer": None, "correct": False})
    assert score_samples((episode,))["eval/avg_at_k"] == 0.0


# --- anyone's agent -----------------------------------------------------------------------------------------------

TEAM = "ArithmeticSolverVerifier-v0"


def score(agent, **settings):
    return evaluate_agent(
        agent, TEAM, **{"env_kwargs": {"split": "test", "num_solvers": 2}, "num_tasks": 4, **settings}
    )


def left_to_right(question):
    """Solve ``Compute 3*7-4 from left to right, mod 10.``"""
    import re

    first, *steps = re.findall(r"[+*-]?\d+", re.search(r"Compute (\S+)", question)[1])
    value = int(first)
    for step in steps:
        value = {"+": value + int(step[1:]), "-": value - int(step[1:]), "*": value * int(step[1:])}[step[0]]
    return value % 10


def able(member):
    text = "<verify>approve</verify>" if member.role == "verifier" else boxed(left_to_right(member.prompt))
    return AgentReply(text=text, num_tokens=10)


def test_an_agent_of_ones_own_is_scored_with_the_same_metrics():
    evaluation = score(able)
    # Two drafts, a verdict and the answer: 4 calls of 10 tokens each; 1e6 / 40 right answers per million tokens.
    assert evaluation.metrics["eval/accuracy"] == 1.0
    assert evaluation.metrics["eval/num_calls"] == 4 * 4
    assert evaluation.metrics["eval/num_tokens"] == 4 * 40
    assert evaluation.metrics["eval/response_length/solver"] == 10
    assert evaluation.metrics["eval/utility"] == 25_000.0
    for name in evaluation.metrics:
        check_name(name)
    assert {m.policy_id for e in evaluation.episodes for event in e.events for m in event.members} == {"agent"}


def test_episodes_of_an_agent_pass_the_audit(tmp_path):
    from srpo_envs.audit import audit_episodes

    audit_episodes(score(able).episodes, replay=True).raise_if_failed()


def test_without_counts_there_is_no_utility():
    metrics = score(lambda member: able(member).text).metrics
    assert (metrics["eval/accuracy"], metrics["eval/num_tokens"]) == (1.0, 0.0)
    assert "eval/utility" not in metrics


def test_roles_may_be_played_by_different_agents_and_engines():
    engine = ScriptedEngine("critic", {"": "<verify>approve</verify>"})
    evaluation = score({"verifier": engine, "*": able})
    players = {m.role: m.policy_id for e in evaluation.episodes for event in e.events for m in event.members}
    assert players == {"solver": "agent", "verifier": "critic", "aggregator": "agent"}
    assert evaluation.metrics["eval/accuracy"] == 1.0


def test_an_agent_that_fails_at_a_task_is_wrong_there_and_broken_surroundings_are_left_out():
    def fragile(member):
        value = left_to_right(member.prompt)
        if value % 2:
            raise error
        return able(member)

    error = ValueError("cannot count")
    wrong = score(fragile, num_tasks=16).metrics
    error = ToolError("no calculator")
    left_out = score(fragile, num_tasks=16).metrics
    assert 0 < wrong["eval/accuracy"] < 1
    assert left_out["eval/accuracy"] == 1.0
    assert wrong["eval/num_failed_episodes"] == left_out["eval/num_failed_episodes"] > 0
    assert wrong["eval/accuracy"] == left_out["eval/num_episodes"] / 16


def test_an_agent_that_never_answers_is_told():
    with pytest.raises(NoEpisodeError, match="expected a text or an AgentReply of a text and a count, got None"):
        score(lambda member: None)


def test_misuse_of_agents_is_refused():
    with pytest.raises(ConfigError, match="another agent is called 'solver' too"):
        score({"solver": able, "*": ScriptedEngine("solver", [])})
    with pytest.raises(ConfigError, match="no policy for role 'verifier'"):
        score({"solver": able})
    with pytest.raises(ConfigError, match="100000 tasks to evaluate"):
        score(able, num_tasks=100_000)
