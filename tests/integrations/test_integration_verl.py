"""SRPO in verl's registries, batches, losses and training worker, on the CPU, against our own trainer."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import make_episode, make_event, make_member

import srpo_envs
from srpo_envs.errors import ConfigError, IncompleteEventError, RecordError, ShapeError
from srpo_envs.records import Episode
from srpo_train.batching import EventBatch
from srpo_train.collect import Collector, EpisodeJob
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.experience import build_experience
from srpo_train.objective import Objective, preset
from srpo_train.policies import Policy
from srpo_train.policies.loading import resolve_source
from srpo_train.set_gradient import accumulate_set_gradient, loss_coefficients, loss_tensors, with_logprobs

verl = pytest.importorskip("verl", reason="verl is not installed (see docs/integrations-training.md)")
if verl.__version__ != "0.9.1":
    pytest.skip(f"written for the internals of verl 0.9.1, found {verl.__version__}", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # verl's own imports warn

TEAM = resolve_source("team", "builtin:tiny-team")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
SRPO = preset("srpo")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load("policy", TEAM, device="cpu")


@pytest.fixture(scope="module")
def episodes(policy) -> tuple[Episode, ...]:
    """Two questions, six rollouts each, by a team of three solvers, a verifier and an aggregator."""
    make_env = lambda: srpo_envs.make("srpo_envs/ArithmeticSolverVerifier-v0", level=2)  # noqa: E731
    collector = Collector(make_env, {"policy": TransformersEngine(policy)}, {"*": "policy"}, seed=5)
    jobs = [
        EpisodeJob(
            episode_id=f"q{number // 6}/g{number}", group_id=f"q{number // 6}", task_index=number // 6, env_seed=1
        )
        for number in range(12)
    ]
    found = collector.collect(jobs, Sampling()).episodes
    collector.close()
    return found


@pytest.fixture
def data(episodes, policy):
    """verl's batch of those episodes, through its advantage function with the registered estimator."""
    from srpo_train.integrations.verl import to_data_proto

    return with_advantages(to_data_proto(episodes, policy.tokenizer.pad_token_id), "srpo")


def with_advantages(data, name: str):
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.ray_trainer import compute_advantage

    return compute_advantage(data, name, config=AlgoConfig(adv_estimator=name))


def events_of(data) -> list[str]:
    """The event id of each row, padding left out."""
    from srpo_train.integrations.events import EventUid

    return [EventUid.parse(uid).event_id for uid in data.non_tensor_batch["uid"] if not uid.startswith("pad")]


def our_batch(episodes, event_ids, objective: Objective = SRPO) -> EventBatch:
    """Our own trainer's batch of some events."""
    whole = build_experience(episodes, objective, 10_000).batch
    return whole.select([index for index, name in enumerate(whole.event_ids) if name in set(event_ids)])


# --- advantages and coefficients ----------------------------------------------------------------------------------


def test_advantages_and_coefficients_are_our_own_trainers(data, episodes):
    batch = our_batch(episodes, events_of(data))
    _, expected = loss_coefficients(SRPO, loss_tensors(SRPO, batch, None))
    mask_NT = data.batch["response_mask"].bool()
    width = expected.logprobs_MT.shape[1]
    assert len(data) == len(batch.rows) > batch.num_events
    assert float(expected.logprobs_MT.abs().max()) > 0
    assert torch.allclose(data.batch["advantages"][:, :width].double(), expected.logprobs_MT, rtol=1e-5, atol=1e-9)
    advantage_M = batch.advantage_E[batch.event_of_row_M]
    assert torch.allclose(data.batch["returns"][:, 0], advantage_M)
    assert data.batch["advantages"][~mask_NT].eq(0).all()


def test_tokens_and_masks_are_those_that_were_sampled():
    from srpo_train.integrations.verl import to_data_proto

    # The second member's first token is the environment's.
    members = [
        make_member(0, length=2, prompt_token_ids=(5, 6, 7), token_ids=(8, 9)),
        make_member(1, length=3, prompt_token_ids=(5,), token_ids=(4, 8, 3), token_mask=(0, 1, 1)),
    ]
    event = make_event(2, group_id="g", members=tuple(members), team_return=0.5)
    batch = to_data_proto([make_episode(events=(event,))], pad_token_id=1)
    assert batch.batch["prompts"].tolist() == [[5, 6, 7], [1, 1, 5]]
    assert batch.batch["responses"].tolist() == [[8, 9, 1], [4, 8, 3]]
    assert batch.batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert batch.batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 4], [0, 0, 0, 1, 2, 3]]
    assert batch.batch["response_mask"].tolist() == [[1, 1, 0], [0, 1, 1]]
    assert batch.batch["token_level_rewards"].sum(dim=1).tolist() == [0.5, 0.5]
    assert list(batch.non_tensor_batch["uid"]) == [f'["g", "solver", "{event.event_id}", 2]'] * 2


def test_rows_whose_log_probabilities_are_those_of_top_k_are_refused(policy):
    """What the collector records under top-k, as a recipe asks for it: verl would score it among all tokens."""
    from srpo_train.integrations.verl import to_data_proto

    make_env = lambda: srpo_envs.make("srpo_envs/ArithmeticSolverVerifier-v0", level=2)  # noqa: E731
    collector = Collector(make_env, {"policy": TransformersEngine(policy)}, {"*": "policy"}, seed=5)
    job = EpisodeJob(episode_id="q0/g0", group_id="q0", task_index=0, env_seed=1)
    sampled = collector.collect([job], Sampling(top_k=4, top_p=0.9, with_kept=True)).episodes
    collector.close()
    with pytest.raises(ConfigError, match="sampled under top-k or top-p"):
        to_data_proto(sampled, policy.tokenizer.pad_token_id)


def test_the_order_of_rows_does_not_matter(data):
    shuffled = data.select_idxs(torch.randperm(len(data), generator=torch.Generator().manual_seed(1)))
    coefficients = {key(row): row[1] for row in rows_of(data)}
    again = {key(row): row[1] for row in rows_of(with_advantages(shuffled, "srpo"))}
    assert coefficients.keys() == again.keys()
    assert all(torch.equal(coefficients[name], again[name]) for name in coefficients)


def rows_of(data):
    return zip(data.batch["input_ids"].tolist(), data.batch["advantages"], data.non_tensor_batch["uid"], strict=True)


def key(row) -> tuple:
    return (tuple(row[0]), row[2])


def test_rows_that_fill_up_a_batch_change_nothing(data, episodes):
    from srpo_train.integrations.verl import split_events

    whole = set(events_of(data))
    parts = split_events(data, 3, seed=0, multiple=8)
    names = [set(events_of(part)) for part in parts]
    assert set.union(*names) == whole
    assert sum(map(len, names)) == len(whole)
    assert all(len(part) % 8 == 0 for part in parts)
    (filled,) = split_events(data, 1, seed=0, multiple=64)
    again = with_advantages(filled, "srpo")
    assert len(filled) > len(data)
    assert torch.equal(again.batch["advantages"][: len(data)], data.batch["advantages"])
    assert again.batch["advantages"][len(data) :].eq(0).all()
    assert again.batch["response_mask"][len(data) :].eq(0).all()


def test_a_lost_or_doubled_row_is_an_error(data):
    from verl.protocol import pad_dataproto_to_divisor

    with pytest.raises(IncompleteEventError, match="expected 3 members"):
        with_advantages(data.select_idxs(torch.arange(1, len(data))), "srpo")
    doubled, _ = pad_dataproto_to_divisor(data, len(data) + 1)  # verl's older padding gives rows twice
    with pytest.raises(IncompleteEventError, match=r"expected 3 members .*, got 4"):
        with_advantages(doubled, "srpo")


def test_rows_of_one_event_have_one_return(data):
    data.batch["token_level_rewards"] = data.batch["token_level_rewards"].clone()
    data.batch["token_level_rewards"][0, 0] += 1.0
    with pytest.raises(ShapeError, match="expected one return for all its rows"):
        with_advantages(data, "srpo")


def test_ids_that_name_no_event_are_refused(data):
    data.non_tensor_batch["uid"] = np.array(["q7"] * len(data), dtype=object)
    with pytest.raises(RecordError, match="expected the JSON list"):
        with_advantages(data, "srpo")


def test_objectives_with_terms_of_verls_own_are_refused():
    from srpo_train.integrations.verl import register

    with pytest.raises(ConfigError, match=r"kl_coef is 0\.1 and must be 0\.0"):
        register(preset("srpo", kl_coef=0.1), "srpo_kl")
    with pytest.raises(ConfigError, match="unit is 'token' and must be 'set'"):
        register(preset("grpo"), "our_grpo")


# --- updates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["sqrt", "mean"])
def test_updates_of_verls_worker_have_our_own_trainers_gradient(monkeypatch, tmp_path, episodes, policy, scaling):
    """Two updates of a batch in micro-batches of four rows, which split events; only the second is off-policy."""
    from verl_cpu import Actor, verl_on_cpu

    from srpo_train.integrations.verl import register, split_events, to_data_proto, update_coefficients

    name = f"srpo_{scaling}_test"
    objective = preset("srpo", scaling=scaling, clip_low=0.02, clip_high=0.03)
    register(objective, name)
    with verl_on_cpu(monkeypatch, str(tmp_path / "rendezvous")):
        actor = Actor(TEAM, name, rows_per_pass=4)
        data = with_advantages(to_data_proto(episodes, policy.tokenizer.pad_token_id), name)
        parts = split_events(data, 2, seed=0, multiple=4)
        for part in parts:
            part.batch["old_log_probs"] = actor.log_probs(part)
        for update, part in enumerate(parts):
            # The first update is made at the policy that sampled, so pass one is known for it.
            log_probs = actor.log_probs(part) if update else part.batch["old_log_probs"]
            report = update_coefficients(part, log_probs, objective)
            weights = actor.weights()
            metrics = actor.update(part)
            assert (0.0 < report["clip_fraction"] < 1.0) if update else report["clip_fraction"] == 0.0
            assert any(shared(part, 4))
            value, expected = our_gradient(episodes, events_of(part), objective, policy, weights)
            assert report["objective"] == pytest.approx(value, abs=1e-5)
            assert_close(actor.gradients, expected)
            assert metrics["grad_norm"] == [pytest.approx(norm(expected), rel=1e-4)]
    assert sum(len(set(events_of(part))) for part in parts) == len(set(events_of(data)))


def test_one_update_needs_nothing_but_the_two_names(monkeypatch, tmp_path, episodes, policy):
    """As verl's own loop has it: its advantage function, then its loss on the whole batch."""
    from verl_cpu import Actor, verl_on_cpu

    from srpo_train.integrations.verl import to_data_proto

    data = to_data_proto(episodes, policy.tokenizer.pad_token_id)
    with verl_on_cpu(monkeypatch, str(tmp_path / "rendezvous")):
        actor = Actor(TEAM, "srpo", rows_per_pass=1)
        data.batch["old_log_probs"] = actor.log_probs(data)
        data = with_advantages(data, "srpo")
        weights = actor.weights()
        actor.update(data)
    _, expected = our_gradient(episodes, events_of(data), SRPO, policy, weights)
    assert_close(actor.gradients, expected)


def shared(data, rows_per_pass: int) -> list[bool]:
    """Whether an event has rows in more than one micro-batch, event by event."""
    names = events_of(data)
    passes = {name: {row // rows_per_pass for row, other in enumerate(names) if other == name} for name in names}
    return [len(found) > 1 for found in passes.values()]


def our_gradient(episodes, event_ids, objective, policy, weights) -> tuple[float, list[torch.Tensor]]:
    """Value and gradient of our own trainer, at some weights, for events that the policy as it was loaded sampled."""
    batch = our_batch(episodes, event_ids, objective)
    batch = with_logprobs(batch, {"policy": policy.scorer()}, max_tokens=10_000)
    current = Policy.load("policy", TEAM, device="cpu")
    current.model.load_state_dict(weights, strict=False)
    step = accumulate_set_gradient(objective, batch, {"policy": current.scorer()}, max_tokens=10_000)
    return step.value, [parameter.grad for parameter in current.model.parameters()]


def norm(gradients: list[torch.Tensor]) -> float:
    return float(torch.stack([each.norm() for each in gradients]).norm())


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    largest = max(float(each.abs().max()) for each in expected)
    error = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    assert error < 1e-5 * largest


def test_the_example_makes_two_updates(capsys):
    runpy.run_path(str(EXAMPLES / "verl_policy_loss.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("update 0:") and "ratio 1.00 to 1.00, clipped 0.00" in line for line in lines)
    assert any(line.startswith("update 1:") and "clipped 0.00" not in line for line in lines)


# --- installation -------------------------------------------------------------------------------------------------


def test_verl_registers_it_where_its_environment_variable_names_the_module():
    script = (
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn\n"
        "print(get_adv_estimator_fn('srpo').__module__, get_policy_loss_fn('srpo').__name__)"
    )
    environment = os.environ | {"VERL_USE_EXTERNAL_MODULES": "srpo_train.integrations.verl"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split()[-2:] == ["srpo_train.integrations.verl", "coefficient_loss"], done.stderr
