from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from srpo_envs.errors import ConfigError
from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.arithmetic.experts import CLEAN
from srpo_train.tiny.curriculum import Phase
from srpo_train.tiny.experts import Example
from srpo_train.tiny.make import CURRICULA
from srpo_train.tiny.model import new_model, tiny_config
from srpo_train.tiny.warm_start import (
    IGNORED,
    Batch,
    _batches,
    _rate_curve,
    collate,
    encode_examples,
    make_examples,
    response_loss,
    run_phase,
    single_thread,
)

EXAMPLES = [
    Example("solver", "Compute 3+4 from left to right, mod 10.\nSolve.", "<think>3+4=7</think>\\boxed{7}"),
    Example("verifier", "Verify.", "<verify>approve</verify>"),
]
LEVELS = {1: 0.1, 2: 0.6, 3: 0.3}
SHORT = Phase(
    name="short",
    habits=CLEAN,
    level_weights=LEVELS,
    num_steps=60,
    learning_rate=3e-3,
    batch_size=16,
    num_episodes=150,
)


@pytest.fixture(scope="module")
def run_short(shipped_tokenizer):
    """A function that trains a fresh model for a phase and returns it with its losses."""

    def run(phase, seed):
        with single_thread():
            model = new_model(tiny_config(shipped_tokenizer), seed)
            return model, run_phase(model, shipped_tokenizer, ARITHMETIC, phase, np.random.default_rng(seed))

    return run


# --- loss on responses only ---------------------------------------------------------------------------------------


def test_an_example_is_the_conversation_with_its_end(shipped_tokenizer):
    for item, (ids, num_prompt) in zip(EXAMPLES, encode_examples(EXAMPLES, shipped_tokenizer), strict=True):
        assert shipped_tokenizer.decode(ids[:num_prompt]) == f"<|user|>{item.prompt}<|end|><|assistant|>"
        assert shipped_tokenizer.decode(ids[num_prompt:]) == f"{item.response}<|end|>"


def test_an_example_is_encoded_as_the_policy_will_meet_it(shipped_policy):
    for item, (ids, num_prompt) in zip(EXAMPLES, encode_examples(EXAMPLES, shipped_policy.tokenizer), strict=True):
        assert tuple(ids[:num_prompt]) == shipped_policy.encode_prompt(item.prompt)


def test_labels_are_the_response_and_nothing_else():
    batch = collate([([5, 6, 7, 8, 9], 2), ([4, 3], 1)], pad_id=0)
    assert batch.input_ids_BT.tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert batch.labels_BT.tolist() == [[IGNORED, IGNORED, 7, 8, 9], [IGNORED, 3, IGNORED, IGNORED, IGNORED]]


def test_another_prompt_leaves_the_labels_alone(shipped_tokenizer):
    rows = encode_examples(EXAMPLES, shipped_tokenizer)
    perturbed = [([token + 1 for token in ids[:num]] + ids[num:], num) for ids, num in rows]
    before, after = (collate(each, shipped_tokenizer.pad_token_id) for each in (rows, perturbed))
    assert not torch.equal(before.input_ids_BT, after.input_ids_BT)
    assert torch.equal(before.labels_BT, after.labels_BT)


def test_the_loss_is_the_mean_over_response_tokens_of_the_batch():
    # Three response tokens: token 1 with probability 1/2, token 2 with 1/4 (row 0), token 1 with 1/8 (row 1). The mean
    # of -log is (1 + 2 + 3) / 3 * ln 2 = 2 ln 2. All other positions predict with probability 0 what stands there.
    def predict(token, probability, size=4):
        rest = torch.full((size,), math.log((1 - probability) / (size - 1)))
        rest[token] = math.log(probability)
        return rest

    sure_of_0 = predict(0, 1 - 1e-9)
    logits = torch.stack(
        [
            torch.stack([sure_of_0, predict(1, 1 / 2), predict(2, 1 / 4)]),
            torch.stack([predict(1, 1 / 8), sure_of_0 * 3, sure_of_0 * 3]),
        ]
    )
    labels = torch.tensor([[IGNORED, IGNORED, 1, 2], [IGNORED, 1, IGNORED, IGNORED]])
    batch = Batch(torch.tensor([[3, 3, 1, 2], [3, 1, 3, 3]]), labels)
    asked = []

    def model(input_ids, use_cache):
        asked.append(input_ids.tolist())
        return SimpleNamespace(logits=logits)

    assert response_loss(model, batch).item() == pytest.approx(2 * math.log(2), rel=1e-5)
    assert asked == [[[3, 3, 1], [3, 1, 3]]]  # the last token predicts nothing


def test_padding_changes_no_loss(shipped_policy):
    rows = encode_examples(EXAMPLES, shipped_policy.tokenizer)
    sizes = [len(ids) - num_prompt for ids, num_prompt in rows]
    with torch.inference_mode():
        alone = [response_loss(shipped_policy.model, collate([row], 0)).item() for row in rows]
        together = response_loss(shipped_policy.model, collate(rows, 0)).item()
    expected = sum(loss * size for loss, size in zip(alone, sizes, strict=True)) / sum(sizes)
    assert together == pytest.approx(expected, rel=1e-5)


# --- learning -----------------------------------------------------------------------------------------------------


def test_a_phase_learns(run_short, shipped_tokenizer):
    model, losses = run_short(SHORT, 0)
    assert losses[0] == pytest.approx(math.log(len(shipped_tokenizer)), rel=0.02)  # an untrained model knows nothing
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    assert not model.training


def test_equal_seeds_give_bit_identical_weights_and_others_do_not(run_short):
    phase = dataclasses.replace(SHORT, num_steps=4, batch_size=8, num_episodes=20)
    (first, losses), (again, same), (other, _) = (run_short(phase, seed) for seed in (3, 3, 4))
    assert losses == same
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert not torch.equal(first.model.norm.weight, other.model.norm.weight)


def test_every_step_is_reported(shipped_tokenizer):
    phase = dataclasses.replace(SHORT, num_steps=3, batch_size=2, num_episodes=10)
    seen = []
    model = new_model(tiny_config(shipped_tokenizer), 0)
    rng = np.random.default_rng(0)
    losses = run_phase(model, shipped_tokenizer, ARITHMETIC, phase, rng, lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(losses, start=1))


def test_a_new_model_leaves_the_global_random_state_alone(shipped_tokenizer):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    new_model(tiny_config(shipped_tokenizer), 0)
    assert torch.equal(before, torch.get_rng_state())


def test_batches_draw_kinds_by_their_weights(shipped_tokenizer):
    # One distinguishable response per kind: the last token before the end is its number.
    weights = ARITHMETIC.role_weights
    kinds = list(weights)
    pools = {kind: [Example(kind, "Go.", str(number))] for number, kind in enumerate(kinds)}
    batch = next(_batches(pools, weights, shipped_tokenizer, 4000, np.random.default_rng(0)))
    drawn = [int(shipped_tokenizer.decode([token])) for token in batch.input_ids_BT[:, -2].tolist()]
    for number, share in enumerate(weights.values()):
        # Four standard deviations of a share among 4000 are at most 4 * (1/4 / 4000)**0.5 = 0.032.
        assert drawn.count(number) / 4000 == pytest.approx(share, abs=0.032)


@pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=list(CURRICULA))
def test_examples_come_in_every_kind_that_has_a_weight(curriculum):
    phase = dataclasses.replace(curriculum.phases[-1], habits=curriculum.clean, num_episodes=60)
    pools = make_examples(curriculum, phase, np.random.default_rng(0))
    assert list(pools) == list(curriculum.role_weights)
    assert all({item.event_type for item in pool} == {kind} for kind, pool in pools.items())


@pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=list(CURRICULA))
def test_weights_are_shares(curriculum):
    assert sum(curriculum.role_weights.values()) == pytest.approx(1)
    assert all(sum(phase.level_weights.values()) == pytest.approx(1) for phase in curriculum.phases)


def test_the_rate_rises_over_fifty_steps_and_falls_to_a_twentieth():
    factor = _rate_curve(1000)
    # Rise 1/50 at step 0; half of the cosine at step 500: 0.05 + 0.95 / 2; a twentieth at the end.
    assert factor(0) == pytest.approx(0.02)
    assert factor(24) == pytest.approx(0.5, abs=0.005)
    assert factor(500) == pytest.approx(0.525)
    assert factor(1000) == factor(1001) == pytest.approx(0.05)


def test_one_thread_inside_and_as_before_outside():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), single_thread():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_phase_plays_its_levels():
    played = []

    def play(level, habits, rng):
        played.append((level, habits))
        return iter(())

    curriculum = dataclasses.replace(ARITHMETIC, play=play)
    phase = dataclasses.replace(SHORT, level_weights={1: 0.25, 3: 0.75}, num_episodes=400)
    make_examples(curriculum, phase, np.random.default_rng(0))
    assert {habits for _, habits in played} == {CLEAN}
    # Four standard deviations of a share among 400 are 4 * (3/16 / 400)**0.5 = 0.087.
    assert sum(level == 1 for level, _ in played) / 400 == pytest.approx(0.25, abs=0.087)


def test_a_wider_model_has_wider_layers_and_the_same_heads(shipped_tokenizer):
    narrow, wide = tiny_config(shipped_tokenizer), tiny_config(shipped_tokenizer, 96)
    assert (narrow.hidden_size, narrow.intermediate_size) == (64, 160)
    assert (wide.hidden_size, wide.intermediate_size, wide.head_dim) == (96, 240, narrow.head_dim)
    assert new_model(wide, 0)(torch.tensor([[1, 2]])).logits.shape == (1, 2, len(shipped_tokenizer))


@pytest.mark.parametrize("width", [0, -2, 65])
def test_a_width_that_no_model_can_have_is_refused(shipped_tokenizer, width):
    with pytest.raises(ConfigError, match=f"width: expected a positive even number, got {width}"):
        tiny_config(shipped_tokenizer, width)
