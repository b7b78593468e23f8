"""The gradient over whole events is the same however the rows are dealt out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from srpo_envs.errors import ConfigError, IncompleteEventError, ShapeError
from srpo_train.batching import EventBatch, MemberRow, micro_batches, pad_rows
from srpo_train.objective import PRESETS, Clip, Objective, correction_weight, objective_value, preset
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.set_gradient import (
    accumulate_set_gradient,
    backpropagate,
    event_clips,
    loss_coefficients,
    loss_tensors,
    score_rows,
    with_logprobs,
)

CARDINALITIES = [3, 1, 2, 1, 4]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def tiny_model(seed: int, dtype: torch.dtype) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.2,
        tie_word_embeddings=seed % 2 == 0,
    )
    return Qwen3ForCausalLM(config).to(dtype)


def make_batch(seed: int = 0, policy_ids: tuple[str, ...] = ("router", "solver")) -> EventBatch:
    """Events of 1 to 4 members by different policies, with responses of 0 to 6 tokens and some environment text."""
    rng = random.Random(seed)
    rows = []
    for event, cardinality in enumerate(CARDINALITIES):
        for member in range(cardinality):
            response = [rng.randrange(37) for _ in range(rng.randrange(7))]
            rows.append(
                MemberRow(
                    event_index=event,
                    member_index=member,
                    policy_id=rng.choice(policy_ids),
                    prompt_ids=[rng.randrange(37) for _ in range(rng.randrange(1, 6))],
                    token_ids=response,
                    token_mask=[rng.random() < 0.8 for _ in response],
                )
            )
    rng.shuffle(rows)
    generator = torch.Generator().manual_seed(seed)
    advantage_E = torch.randn(len(CARDINALITIES), generator=generator)
    return EventBatch(rows=rows, cardinality_E=torch.tensor(CARDINALITIES), advantage_E=advantage_E)


class Team:
    """Two policies, a mini-batch scored by them, and then a step away from it so that ratios differ from 1."""

    def __init__(self, dtype: torch.dtype, shift: float = 0.01) -> None:
        self.models = {"router": tiny_model(0, dtype), "solver": tiny_model(1, dtype)}
        self.policies = {name: ModelScorer(model=model, with_entropy=True) for name, model in self.models.items()}
        batch = with_logprobs(make_batch(), self.policies, max_tokens=1000)
        self.move(shift, seed=8)
        batch = with_logprobs(batch, self.policies, max_tokens=1000, name="reference_logprobs")
        self.move(shift, seed=9)
        self.batch = batch

    def move(self, shift: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(shift * noise.to(parameter))

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for model in self.models.values() for parameter in model.parameters()]

    def take_gradient(self) -> torch.Tensor:
        gradient = torch.cat([parameter.grad.flatten() for parameter in self.parameters()])
        for parameter in self.parameters():
            parameter.grad = None
        return gradient


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["float64", "float32"])
def team(request) -> Team:
    return Team(request.param)


@pytest.fixture(scope="module")
def team64() -> Team:
    return Team(torch.float64)


def autograd_reference(objective: Objective, team: Team) -> tuple[float, torch.Tensor]:
    """Everything in one graph: every row scored alone, one objective, one backward."""
    width = max(len(row.token_ids) for row in team.batch.rows)
    scored = [team.policies[row.policy_id]([row]) for row in team.batch.rows]

    def stack(name):
        lines = [getattr(score, name)[0] for score in scored]
        return torch.stack([torch.nn.functional.pad(line, (0, width - len(line))) for line in lines]).double()

    tensors = loss_tensors(objective, team.batch, score_rows(team.batch.rows, team.policies, [[0]]))
    entropy_MT = stack("entropy_MT") if objective.entropy_coef else None
    value = objective_value(objective, replace(tensors, current_MT=stack("logprobs_MT"), entropy_MT=entropy_MT))
    (-value).backward()
    return value.item(), team.take_gradient()


def random_partition(rows: list[MemberRow], seed: int) -> list[list[int]]:
    """Rows in random order, cut at random places and wherever the policy changes."""
    rng = random.Random(seed)
    order = list(range(len(rows)))
    rng.shuffle(order)
    parts: list[list[int]] = []
    for index in order:
        same_policy = parts and rows[parts[-1][-1]].policy_id == rows[index].policy_id
        if same_policy and rng.random() < 0.6:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def with_engine_logprobs(batch: EventBatch, spread: float = 0.3) -> EventBatch:
    """An engine whose log-probabilities are those of the trainer and some noise."""
    rng = random.Random(5)
    rows = [replace(row, engine_logprobs=[p + rng.gauss(0, spread) for p in row.old_logprobs]) for row in batch.rows]
    return replace(batch, rows=rows)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize(
    "extras",
    [{}, {"entropy_coef": 0.02}, {"kl_coef": 0.3, "entropy_coef": 0.02}],
    ids=["plain", "entropy", "kl and entropy"],
)
def test_gradient_equals_autograd_through_the_whole_objective(name, extras, team):
    objective = preset(name, **extras)
    value, expected = autograd_reference(objective, team)
    dtype = expected.dtype
    for seed in range(3):
        result = accumulate_set_gradient(
            objective,
            team.batch,
            team.policies,
            max_tokens=0,
            partition=random_partition(team.batch.rows, seed),
        )
        assert relative_error(team.take_gradient(), expected) < TOLERANCE[dtype]
        assert result.value == pytest.approx(value, rel=1e-5)


def test_the_reference_case_clips_some_events_and_not_others(team64):
    """The equality above is worth something only where gates differ."""
    objective = preset("srpo")
    result = accumulate_set_gradient(objective, team64.batch, team64.policies, max_tokens=1000)
    team64.take_gradient()
    assert 0.0 < result.diagnostics["clip_fraction"] < 1.0
    assert result.num_rows_trained < len(team64.batch.rows)


@pytest.mark.parametrize("level", ["token", "member", "event"])
@pytest.mark.parametrize("name", ["srpo", "gspo", "grpo", "magrpo"])
def test_gradient_with_a_correction_equals_autograd_through_the_whole_objective(name, level, team64):
    """The reference is plain autograd: a log-probability is its value plus a weighted difference that is zero."""
    objective = preset(name, correction=level, kl_coef=0.3)
    team, batch = team64, with_engine_logprobs(team64.batch)
    tensors = loss_tensors(objective, batch, score_rows(batch.rows, team.policies, [[0]]))
    scored = [team.policies[row.policy_id]([row]).logprobs_MT[0] for row in batch.rows]
    width = tensors.old_MT.shape[1]
    current_MT = torch.stack([torch.nn.functional.pad(line, (0, width - len(line))) for line in scored])
    here_MT, weight_MT = current_MT.detach(), correction_weight(objective, tensors)
    plain = replace(objective, correction="none")
    without_kl = replace(plain, kl_coef=0.0)
    weighted = replace(tensors, current_MT=here_MT + weight_MT * (current_MT - here_MT))
    unweighted = replace(tensors, current_MT=current_MT)
    penalty = objective_value(plain, unweighted) - objective_value(without_kl, unweighted)
    (-objective_value(without_kl, weighted) - penalty).backward()
    expected = team.take_gradient()
    for seed in range(2):
        partition = random_partition(batch.rows, seed)
        accumulate_set_gradient(objective, batch, team.policies, max_tokens=0, partition=partition)
        assert relative_error(team.take_gradient(), expected) < 1e-10
    accumulate_set_gradient(plain, batch, team.policies, max_tokens=1000)
    assert relative_error(team.take_gradient(), expected) > 1e-3


@pytest.mark.parametrize("level", ["token", "member", "event"])
def test_the_free_path_weighs_as_the_scored_one_does(level):
    team = Team(torch.float64, shift=0.0)
    batch, objective = with_engine_logprobs(team.batch), preset("srpo", correction=level)
    gradients = []
    for on_policy in (False, True):
        accumulate_set_gradient(objective, batch, team.policies, max_tokens=1000, on_policy=on_policy)
        gradients.append(team.take_gradient())
    assert relative_error(gradients[1], gradients[0]) < 1e-10


@pytest.mark.parametrize("missing", ["old_logprobs", "engine_logprobs"])
def test_a_correction_needs_both_log_probabilities(missing, team64):
    batch = with_engine_logprobs(team64.batch)
    batch = replace(batch, rows=[replace(row, **{missing: None}) for row in batch.rows])
    with pytest.raises(ShapeError, match=f"no {missing}"):
        loss_tensors(preset("srpo", correction="event"), batch, None)


@given(st.integers(0, 2**20), st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_any_partition_and_member_placement_gives_the_same_gradient(team64, seed, max_tokens):
    """Ranks: each scores and back-propagates its own rows; only the matrix of log-probabilities is summed over them."""
    objective, rows = preset("srpo"), team64.batch.rows
    accumulate_set_gradient(objective, team64.batch, team64.policies, max_tokens=1000)
    expected = team64.take_gradient()

    rng = random.Random(seed)
    rank_of_row = [rng.randrange(3) for _ in rows]
    parts = random_partition(rows, seed) if seed % 2 else micro_batches(rows, max_tokens)
    local = [[[i for i in part if rank_of_row[i] == rank] for part in parts] for rank in range(3)]
    partitions = [[part for part in of_rank if part] for of_rank in local]
    scored = [score_rows(rows, team64.policies, partition).logprobs_MT for partition in partitions]

    total = torch.zeros_like(expected)
    for rank, partition in enumerate(partitions):
        others = sum(scored[other] for other in range(3) if other != rank)
        accumulate_set_gradient(
            objective,
            team64.batch,
            team64.policies,
            max_tokens=1,
            partition=partition,
            share=lambda matrix, others=others: matrix + others,
        )
        for parameter in team64.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        total += team64.take_gradient()
    assert relative_error(total, expected) < 1e-10


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_first_update_needs_no_scoring_and_never_clips(name):
    """With old log-probs recomputed by the trainer, ratios are 1: no clip, and the free path has the same gradient."""
    team = Team(torch.float32, shift=0.0)
    # The scored path sees ratios that differ from 1 by rounding only; a clip of 3e-4 would not notice either.
    gradients = []
    for on_policy in (False, True):
        result = accumulate_set_gradient(PRESETS[name], team.batch, team.policies, max_tokens=1000, on_policy=on_policy)
        assert result.diagnostics["clip_fraction"] == 0.0
        assert result.diagnostics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        gradients.append(team.take_gradient())
    assert relative_error(gradients[1], gradients[0]) < 1e-4


def test_the_free_path_calls_each_row_once_and_needs_no_old_log_probs():
    team, calls = Team(torch.float64, shift=0.0), []
    counting = {
        name: lambda rows, scorer=scorer: (calls.extend(rows), scorer(rows))[1]
        for name, scorer in team.policies.items()
    }
    bare = replace(team.batch, rows=[replace(row, old_logprobs=None) for row in team.batch.rows])
    accumulate_set_gradient(preset("srpo"), bare, counting, max_tokens=1000, on_policy=True)
    free = team.take_gradient()
    assert len(calls) == len([row for row in bare.rows if any(row.token_mask)])
    accumulate_set_gradient(preset("srpo"), team.batch, counting, max_tokens=1000)
    assert relative_error(team.take_gradient(), free) < 1e-10


def test_rows_without_effect_are_not_back_propagated(team64):
    quiet = replace(team64.batch, advantage_E=torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    result = accumulate_set_gradient(preset("srpo", clip_high=10.0), quiet, team64.policies, max_tokens=1000)
    assert result.num_rows_trained <= 1
    for parameter in team64.parameters():
        parameter.grad = None


def test_the_coefficient_of_a_token_is_the_closed_form(team64):
    objective = preset("srpo", clip_low=10.0, clip_high=10.0)
    scores = score_rows(team64.batch.rows, team64.policies, micro_batches(team64.batch.rows, 1000))
    tensors = loss_tensors(objective, team64.batch, scores)
    _, coefficients = loss_coefficients(objective, tensors)
    for index, row in enumerate(team64.batch.rows):
        event = row.event_index
        members = [i for i, other in enumerate(team64.batch.rows) if other.event_index == event]
        log_ratio = sum(((tensors.current_MT - tensors.old_MT) * tensors.token_mask_MT)[i].sum() for i in members)
        root = CARDINALITIES[event] ** 0.5
        expected = team64.batch.advantage_E[event].double() * (log_ratio / root).exp() / root / len(CARDINALITIES)
        wanted = expected * tensors.token_mask_MT[index]
        torch.testing.assert_close(coefficients.logprobs_MT[index], wanted, rtol=1e-10, atol=1e-12)


def test_perturbed_environment_text_changes_no_coefficient(team64):
    """br-015: log-probs at masked positions can be anything."""
    scores = score_rows(team64.batch.rows, team64.policies, micro_batches(team64.batch.rows, 1000))
    tensors = loss_tensors(preset("srpo"), team64.batch, scores)
    noisy = torch.where(tensors.token_mask_MT, tensors.current_MT, 123.0)
    expected = loss_coefficients(preset("srpo"), tensors)
    actual = loss_coefficients(preset("srpo"), replace(tensors, current_MT=noisy))
    assert actual[0] == expected[0]
    assert torch.equal(actual[1].logprobs_MT, expected[1].logprobs_MT)


def test_rows_may_carry_advantages_of_their_own():
    # Two members of one event, ratio 1, mean over rows: each token's coefficient is its row's advantage over 2 rows.
    rows = [MemberRow(event_index=0, member_index=j, policy_id="p", prompt_ids=[1], token_ids=[2]) for j in (0, 1)]
    batch = EventBatch(
        rows=rows,
        cardinality_E=torch.tensor([2]),
        advantage_E=torch.tensor([9.0]),
        advantage_M=torch.tensor([1.0, -3.0]),
    )
    objective = Objective(unit="sequence", reduction="row")
    _, coefficients = loss_coefficients(objective, loss_tensors(objective, batch, None))
    assert coefficients.logprobs_MT.flatten().tolist() == [0.5, -1.5]


def test_a_nan_coefficient_reaches_the_parameters(team64):
    batch = replace(team64.batch, advantage_E=torch.tensor([float("nan"), 0.0, 0.0, 0.0, 0.0]))
    accumulate_set_gradient(preset("srpo"), batch, team64.policies, max_tokens=1000)
    gradients = [parameter.grad for parameter in team64.parameters() if parameter.grad is not None]
    assert any(torch.isnan(gradient).any() for gradient in gradients)
    for parameter in team64.parameters():
        parameter.grad = None


def test_misuse_is_named(team64):
    batch, policies, objective = team64.batch, team64.policies, preset("srpo")
    rows = batch.rows
    with pytest.raises(ShapeError, match="expected each of 11 rows once, got 12"):
        accumulate_set_gradient(objective, batch, policies, max_tokens=1, partition=[*([i] for i in range(11)), [0]])
    with pytest.raises(ShapeError, match="no advantage_E"):
        accumulate_set_gradient(objective, replace(batch, advantage_E=None), policies, max_tokens=100)
    with pytest.raises(ConfigError, match="no scorer for policy 'solver'; known: \\['router'\\]"):
        accumulate_set_gradient(objective, batch, {"router": policies["router"]}, max_tokens=100)
    with pytest.raises(IncompleteEventError, match="expected 4 members"):
        short = replace(batch, rows=[row for row in rows if (row.event_index, row.member_index) != (4, 2)])
        accumulate_set_gradient(objective, short, policies, max_tokens=100)
    with pytest.raises(ShapeError, match="rows of policies"):
        score_rows(rows, policies, [list(range(len(rows)))])
    bare = {name: ModelScorer(model=model) for name, model in team64.models.items()}
    with pytest.raises(ConfigError, match="entropy"):
        accumulate_set_gradient(preset("srpo", entropy_coef=0.1), batch, bare, max_tokens=100)
    assert all(parameter.grad is None for parameter in team64.parameters())


def test_an_event_whose_members_have_different_clips_is_refused(team64):
    objective, batch = preset("srpo"), replace(team64.batch, event_ids=[f"ep/e{event}" for event in range(5)])
    other = {"solver": Clip.of(preset("srpo", clip_high=0.3))}
    with pytest.raises(
        ConfigError, match=r"event 'ep/e\d': its members' policies \['router', 'solver'\] have different"
    ):
        accumulate_set_gradient(objective, batch, team64.policies, max_tokens=100, clips=other)
    assert event_clips(objective, batch, {"solver": Clip.of(objective)}) is None
    rows = [replace(row, policy_id="solver" if row.event_index < 2 else "router") for row in batch.rows]
    clips = event_clips(objective, replace(batch, rows=rows), other)
    assert clips is not None
    assert clips.upper.tolist() == [1.3, 1.3, 1.2, 1.2, 1.2]


def test_steps_compose_by_hand(team64):
    """The three steps are public: score, differentiate, back-propagate."""
    objective, batch = preset("srpo"), team64.batch
    partition = micro_batches(batch.rows, 30)
    scores = score_rows(batch.rows, team64.policies, partition)
    _, coefficients = loss_coefficients(objective, loss_tensors(objective, batch, scores))
    backpropagate(batch.rows, team64.policies, coefficients, partition)
    by_hand = team64.take_gradient()
    accumulate_set_gradient(objective, batch, team64.policies, max_tokens=30)
    assert torch.equal(team64.take_gradient(), by_hand)
    assert pad_rows(batch.rows).token_ids_MT.shape == scores.logprobs_MT.shape
