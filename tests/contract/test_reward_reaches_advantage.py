"""The team reward an environment pays arrives, with its sign, in the advantage every event is trained with."""

from __future__ import annotations

import pytest
from factories import APPROVE, NumberTasks, answer, boxed, with_tokens

from srpo_envs.workflows.solver_verifier import SolverVerifier


def rollout(final: str, number: int):
    env = SolverVerifier(NumberTasks())
    active = env.reset(seed=0, options={"task_index": 7, "episode_id": f"rollout-{number}"})
    while active is not None:
        outputs = answer(active, {"solver": boxed(7), "verifier": APPROVE, "aggregator": boxed(final)})
        active = env.step(with_tokens(outputs, seed=number)).next
    return env.episode


def test_br_023_the_environments_reward_alone_gives_advantages():
    pytest.importorskip("torch")
    from srpo_train.experience import build_experience
    from srpo_train.objective.spec import Objective

    right, wrong = rollout("7", 0), rollout("8", 1)
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    batch = build_experience([right, wrong], Objective(), max_row_tokens=1000).batch
    # Per event type the two returns are 1 and 0: mean 0.5, sample deviation 0.7071, so the advantages are +-0.7071.
    assert batch.advantage_E.tolist() == pytest.approx([0.7071] * 3 + [-0.7071] * 3, abs=1e-4)
