"""Faults public systems had that cross several modules here; ids are those of the collection of such faults."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from factories import NumberTasks, boxed, make_episode, make_event

from srpo_envs.errors import MemberMismatchError
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.alarms import Alarms, AlarmsConfig
from srpo_train.collect import Collector, EpisodeJob
from srpo_train.engines.base import Sampling
from srpo_train.engines.scripted import ScriptedEngine
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.experience import build_experience
from srpo_train.objective import LossTensors, objective_value, preset
from srpo_train.summary import summarize_rollout


def jobs(count):
    return [EpisodeJob(episode_id=f"e{i}", group_id=f"g{i // 2}", task_index=i, env_seed=i) for i in range(count)]


@pytest.fixture
def collect():
    collectors = []

    def run(make_env, engine, count):
        collectors.append(Collector(make_env, {engine.policy_id: engine}, {"*": engine.policy_id}))
        return collectors[-1].collect(jobs(count), Sampling()).episodes

    yield run
    for collector in collectors:
        collector.close()


def test_br_004_the_prompt_that_is_trained_on_is_the_prompt_that_was_sampled_from(tiny_policy, collect):
    episodes = collect(lambda: SolverVerifier(NumberTasks(), max_rounds=1), TransformersEngine(tiny_policy), 4)
    batch = build_experience(episodes, preset("srpo"), max_row_tokens=10_000).batch
    members = [member for episode in episodes for event in episode.events for member in event.members]
    assert len(batch.rows) == len(members) > 0
    for row, member in zip(batch.rows, members, strict=True):
        assert row.prompt_ids == member.prompt_token_ids == tiny_policy.encode_prompt(member.prompt)
        assert row.token_ids == member.token_ids


def test_br_007_the_length_limit_is_that_of_the_stored_row(tiny_policy, collect):
    episodes = collect(lambda: SingleAgent(NumberTasks()), TransformersEngine(tiny_policy), 4)
    lengths = [
        len(member.prompt_token_ids) + len(member.token_ids)
        for episode in episodes
        for event in episode.events
        for member in event.members
    ]
    limit = sorted(lengths)[1]
    experience = build_experience(episodes, preset("srpo"), max_row_tokens=limit)
    assert [row.num_tokens for row in experience.batch.rows] == [length for length in lengths if length <= limit]
    assert experience.dropped["overlong"] == sum(length > limit for length in lengths)


def test_br_016_a_divergence_penalty_sees_sampled_tokens_only():
    # Two sampled tokens, then two of the environment; k3 with log-ratios 0.5 and -0.5 over two tokens:
    # (e^-0.5 - 1 + 0.5 + e^0.5 - 1 - 0.5) / 2 = 0.127626, so J = 0 - 1 * 0.127626.
    def value(environment_text):
        return objective_value(
            preset("srpo", kl_coef=1.0),
            LossTensors(
                current_MT=torch.tensor([[-1.0, -2.0, environment_text, -4.0]]),
                old_MT=torch.tensor([[-1.0, -2.0, environment_text, -4.0]]),
                reference_MT=torch.tensor([[-1.5, -1.5, -9.0, 3.0]]),
                token_mask_MT=torch.tensor([[True, True, False, False]]),
                event_of_row_M=torch.tensor([0]),
                cardinality_E=torch.tensor([1]),
                advantage_E=torch.tensor([0.0]),
            ),
        ).item()

    assert value(-3.0) == value(-50.0) == pytest.approx(-0.127626, abs=1e-6)


def test_br_025_an_event_exists_only_when_every_member_has_arrived():
    env = SolverVerifier(NumberTasks())
    outputs = env.reset(seed=0).outputs([boxed(1)] * 3)
    for arrived in range(3):
        with pytest.raises(MemberMismatchError):
            env.step(outputs[:arrived])
        assert env.episode.events == ()
    assert env.step(outputs).event.is_complete


def test_br_045_the_grader_and_the_statistics_see_real_answers_only(collect):
    # Three episodes over groups of two: the last group is short, and nothing stands in for its missing member.
    tasks = NumberTasks()
    engine = ScriptedEngine("p", lambda request: boxed(0), respects_limits=False)
    episodes = collect(lambda: SingleAgent(tasks), engine, 3)
    assert sorted(tasks.graded) == [("numbers/0", "0"), ("numbers/1", "0"), ("numbers/2", "0")]
    assert build_experience(episodes, preset("srpo"), max_row_tokens=100).batch.num_events == 3


def test_br_046_a_step_without_any_difference_in_reward_is_said():
    same = [make_episode(episode_id=f"e{i}", reward=0.0) for i in range(4)]
    raised = Alarms(AlarmsConfig()).check(summarize_rollout(same))
    assert any("every episode of the step has reward 0" in alarm.message for alarm in raised)
    different = [dataclasses.replace(same[0], reward=1.0, events=(make_event(1, team_return=1.0),)), *same[1:]]
    assert Alarms(AlarmsConfig()).check(summarize_rollout(different)) == []
