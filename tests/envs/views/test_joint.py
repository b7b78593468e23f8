"""The Gymnasium view, alone and in vector environments."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import srpo_envs
from srpo_envs.errors import MemberMismatchError
from srpo_envs.views import JointSetEnv

ID = "srpo_envs/ArithmeticSolverVerifierFixed-v0"
make_team = functools.partial(gymnasium.make, ID, num_solvers=2, max_rounds=1)

VECTORS = {
    "sync": SyncVectorEnv,
    "async": functools.partial(AsyncVectorEnv, shared_memory=False),
}


@pytest.fixture(params=VECTORS)
def make_vector(request):
    made = []

    def make(num_envs, mode=AutoresetMode.SAME_STEP):
        made.append(VECTORS[request.param]([make_team] * num_envs, autoreset_mode=mode))
        return made[-1]

    yield make
    for vector in made:
        vector.close()


def same_for_all(vector, **texts):
    """The same texts for every environment of a vector; agents left out answer with an empty text."""
    agents = vector.single_action_space
    return {agent: (texts.get(agent, ""),) * vector.num_envs for agent in agents}


def test_the_action_is_the_whole_set_and_inactive_entries_are_ignored(team, script):
    env = JointSetEnv(team)
    env.reset(seed=0)
    first, *_ = script(team.episode.task["gold"])
    env.step({**first, "verifier_0": "ignored", "aggregator_0": "ignored"})
    assert [member.agent for member in team.episode.events[0].members] == ["solver_0", "solver_1"]


def test_every_observation_and_sampled_action_is_in_its_space(team):
    env = JointSetEnv(team)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    is_over = False
    while not is_over:
        action = env.action_space.sample()
        assert action in env.action_space
        observation, _, terminated, truncated, _ = env.step(action)
        assert observation in env.observation_space
        is_over = terminated or truncated


def test_info_names_the_set_the_malformed_texts_and_the_outcome(team, script):
    env = JointSetEnv(team)
    _, info = env.reset(seed=0)
    assert info["agents"] == ("solver_0", "solver_1")
    assert info["cardinality"] == 2
    gold = team.episode.task["gold"]
    infos = [env.step(actions)[4] for actions in script(gold)]
    assert infos[0]["malformed"] == {"solver_1": "no boxed answer"}
    assert infos[0]["penalty"] == pytest.approx(0.1)
    assert infos[2]["agents"] == ()
    metrics = {"num_drafts": 2, "num_malformed_drafts": 1, "approved": True}
    expected = {"reward": 1.0, "answer": gold, "correct": True, "stopped_by": "approval", "metrics": metrics}
    assert infos[2]["outcome"] == expected


def test_a_missing_active_member_raises(team):
    env = JointSetEnv(team)
    env.reset(seed=0)
    with pytest.raises(MemberMismatchError, match="solver_1"):
        env.step({"solver_0": "x"})


def test_the_terminal_info_belongs_to_the_finished_question(make_vector):
    # br-030: the automatic reset must not hide the outcome.
    vector = make_vector(2)
    _, start = vector.reset(seed=[3, 4])
    finished = [event_id.partition("/")[0] for event_id in start["event_id"]]
    boxed = "\\boxed{1}"
    vector.step(same_for_all(vector, solver_0=boxed, solver_1=boxed))
    vector.step(same_for_all(vector, verifier_0="<verify>approve</verify>"))
    _, _, terminated, _, infos = vector.step(same_for_all(vector, aggregator_0=boxed))
    assert terminated.tolist() == [True, True]
    assert list(infos["final_info"]["outcome"]["answer"]) == ["1", "1"]
    assert [observation["solver_0"]["active"] for observation in infos["final_obs"]] == [0, 0]
    started = [event_id.partition("/")[0] for event_id in infos["event_id"]]
    assert not set(started) & set(finished)


def test_no_action_is_swallowed_when_the_reset_is_explicit(make_vector):
    vector = make_vector(2, AutoresetMode.DISABLED)
    vector.reset(seed=0)
    for _ in range(3):
        _, _, terminated, _, infos = vector.step(same_for_all(vector))
    assert terminated.all()
    assert infos["outcome"]["correct"].tolist() == [False, False]
    vector.reset(options={"reset_mask": np.array([True, True])})
    *_, infos = vector.step(same_for_all(vector, solver_0="\\boxed{1}", solver_1="\\boxed{1}"))
    assert infos["penalty"].tolist() == [0.0, 0.0]


def test_infos_keep_one_entry_per_environment_however_many_turns(make_vector):
    # br-019
    vector = make_vector(3)
    vector.reset(seed=0)
    for _ in range(5):
        *_, infos = vector.step(same_for_all(vector))
        assert len(infos["event_id"]) == 3
        assert infos["_event_id"].all()


def test_sync_and_async_vectors_agree():
    vectors = [make([make_team] * 2, autoreset_mode=AutoresetMode.SAME_STEP) for make in VECTORS.values()]
    sync, parallel = [vector.reset(seed=5)[0] for vector in vectors]
    assert [sync[agent]["prompt"] for agent in sync] == [parallel[agent]["prompt"] for agent in sync]
    for _ in range(4):
        steps = [vector.step(same_for_all(vector)) for vector in vectors]
        assert list(steps[0][4]["state_id"]) == list(steps[1][4]["state_id"])
    for vector in vectors:
        vector.close()


def test_seeds_decide_the_sequence_of_questions():
    # br-027, br-029
    def episodes(seed):
        env = make_team()
        ids = [env.reset(seed=seed)[1]["state_id"], *(env.reset()[1]["state_id"] for _ in range(3))]
        env.close()
        return ids

    assert episodes(0) == episodes(0)
    assert episodes(0) != episodes(1)
    assert len(set(episodes(0))) == 4


def test_the_sequence_of_questions_does_not_depend_on_when_episodes_end():
    # br-028: an approved team ends after three events, one that keeps rejecting after seven.
    def questions(verdict):
        env = srpo_envs.make(ID, max_rounds=3)
        tasks = []
        for seed in (0, None, None):
            active = env.reset(seed=seed)
            tasks.append(env.episode.task_id)
            while active is not None:
                text = verdict if active.event_type == "verifier" else "\\boxed{1}"
                active = env.step(active.outputs([text] * active.cardinality)).next
        return tasks

    assert questions("<verify>approve</verify>") == questions("<verify>reject</verify>")
