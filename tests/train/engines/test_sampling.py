from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from srpo_train.engines import Sampling
from srpo_train.engines import sampling as sampling_module
from srpo_train.engines.sampling import draw, inverse_cdf, request_uniforms

NEARLY_ONE = 1 - 2**-53


def uniforms(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def draw_one(probabilities, uniform, **sampling) -> tuple[int, float]:
    drawn = draw(logits_of(*probabilities), uniforms(uniform), Sampling(**sampling))
    return drawn.tokens_R.item(), drawn.logprobs_R.item()


def left_of(probabilities, **sampling) -> list[int]:
    return draw(logits_of(*probabilities), uniforms(0.5), Sampling(**sampling, with_kept=True)).kept[0]


def test_a_smaller_count_gives_a_prefix_of_the_same_uniforms():
    assert request_uniforms(5, 3).tolist() == request_uniforms(5, 10)[:3].tolist()


def test_seeds_give_different_uniforms_and_any_integer_is_a_seed():
    seeds = [0, 1, -1, 2**63, 2**200]
    assert len({request_uniforms(seed, 1)[0] for seed in seeds}) == len(seeds)


def test_a_token_is_drawn_exactly_on_its_interval_of_the_cumulative_weights():
    # Cumulative 1/4, 1/4, 1/2, 1, all exact in binary: token 0 on [0, 1/4), 2 on [1/4, 1/2), 3 on [1/2, 1).
    points = [0.0, 0.25 - 2**-54, 0.25, 0.5 - 2**-54, 0.5, NEARLY_ONE]
    weights = torch.tensor([[0.25, 0.0, 0.25, 0.5]]).expand(len(points), -1)
    assert inverse_cdf(weights, uniforms(*points)).tolist() == [0, 0, 2, 2, 3, 3]


def test_weights_need_not_be_normalised():
    # 3 of 12 = 1/4.
    assert inverse_cdf(torch.tensor([[3.0, 9.0], [3.0, 9.0]]), uniforms(0.2499, 0.25)).tolist() == [0, 1]


@pytest.mark.parametrize("weights", [[0.0, 1.0, 0.0], [0.0, 3e-38, 0.0], [0.0, 0.3, 0.0]])
@pytest.mark.parametrize("point", [0.0, 0.5, NEARLY_ONE])
def test_a_token_of_weight_zero_is_never_drawn(weights, point):
    assert inverse_cdf(torch.tensor([weights]), uniforms(point)).item() == 1


def test_the_rounding_of_a_parallel_sum_cannot_give_weight_to_a_token_without(monkeypatch):
    # An accelerator may sum to [1/4, 1/4 + 2^-40, 1]; the point falls into the sliver that token 1 seems to have.
    rounded = torch.tensor([[0.25, 0.25 + 2**-40, 1.0]], dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda tensor, dim: rounded)
    assert inverse_cdf(torch.tensor([[0.25, 0.0, 0.75]]), uniforms(0.25 + 2**-41)).item() == 2


def test_every_token_of_a_long_tail_has_its_own_interval():
    # Token 0 weighs 1, each of 200,000 others 2^-30. Cumulative weight of token i is 1 + i 2^-30, so a threshold of
    # 1 + 100,000.5 * 2^-30 is first exceeded by token 100,001. Next to 1, float32 has steps of 128 such tokens.
    weights = torch.full((1, 200_001), 2.0**-30)
    weights[0, 0] = 1.0
    point = (1 + 100_000.5 * 2**-30) / (1 + 200_000 * 2**-30)
    assert inverse_cdf(weights, uniforms(point)).item() == 100_001


def test_logprob_is_that_of_the_softmax():
    assert draw_one((0.25, 0.75), 0.5) == (1, pytest.approx(math.log(0.75), abs=1e-6))


def test_temperature_divides_the_logits_in_draw_and_logprob():
    # Temperature 1/2 squares the odds 1:3 to 1:9, so token 0 has 0.1 and u = 0.15 already draws token 1.
    assert draw_one((0.25, 0.75), 0.15) == (0, pytest.approx(math.log(0.25), abs=1e-6))
    assert draw_one((0.25, 0.75), 0.15, temperature=0.5) == (1, pytest.approx(math.log(0.9), abs=1e-6))


def test_temperature_zero_takes_the_most_likely_token_with_its_logprob_at_temperature_one():
    assert draw_one((0.2, 0.5, 0.3), 0.99, temperature=0) == (1, pytest.approx(math.log(0.5), abs=1e-6))


def test_a_logprob_is_that_within_what_top_k_left():
    # Without the filter u = 0.99 draws token 2; with it 0.5 and 0.3 are left, so 0.3 / 0.8 = 0.375.
    assert draw_one((0.5, 0.3, 0.2), 0.99)[0] == 2
    assert draw_one((0.5, 0.3, 0.2), 0.99, top_k=2) == (1, pytest.approx(math.log(0.375), abs=1e-6))


def test_a_logprob_is_that_within_what_top_p_left_of_top_k():
    # top-k leaves 0.4, 0.3, 0.2; 0.75 of their 0.9 is 0.675, which the first two reach: 0.3 / 0.7.
    assert draw_one((0.4, 0.3, 0.2, 0.1), 0.99, top_k=3, top_p=0.75) == (1, pytest.approx(math.log(3 / 7), abs=1e-6))


def test_what_was_left_is_returned_in_token_order_where_asked_for():
    assert left_of((0.1, 0.4, 0.2, 0.3), top_k=3) == [1, 2, 3]
    assert left_of((0.1, 0.4, 0.2, 0.3), top_k=3, top_p=0.5) == [1, 3]
    assert left_of((0.1, 0.4, 0.2, 0.3), top_k=4) == [0, 1, 2, 3]
    assert draw(logits_of(0.5, 0.5), uniforms(0.5), Sampling(top_k=1)).kept is None


def test_greedy_sampling_leaves_nothing_to_return():
    drawn = draw(logits_of(0.2, 0.8), uniforms(0.5), Sampling(temperature=0, top_k=1, with_kept=True))
    assert (drawn.kept, drawn.logprobs_R.item()) == (None, pytest.approx(math.log(0.8)))


def test_top_k_larger_than_the_vocabulary_keeps_all():
    assert draw_one((0.5, 0.3, 0.2), 0.99, top_k=50)[0] == 2


def test_equal_probabilities_are_kept_in_token_order():
    assert draw_one((0.25, 0.25, 0.25, 0.25), 0.99, top_k=2)[0] == 1


@pytest.mark.parametrize(("top_p", "last"), [(0.45, 0), (0.6, 1), (0.79, 1), (0.81, 2), (1.0, 2)])
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p, last):
    # Sorted mass 0.5, 0.8, 1.0: a token stays while the mass before it is below top-p.
    assert draw_one((0.5, 0.3, 0.2), NEARLY_ONE, top_p=top_p)[0] == last


def test_top_p_counts_what_top_k_left_as_one():
    # top-k leaves 0.4 and 0.3; half of their 0.7 is 0.35, reached by the first token alone.
    assert draw_one((0.4, 0.3, 0.2, 0.1), NEARLY_ONE, top_k=2, top_p=0.5)[0] == 0
    assert draw_one((0.4, 0.3, 0.2, 0.1), NEARLY_ONE, top_p=0.5)[0] == 1


def test_filters_do_not_depend_on_the_order_of_the_vocabulary():
    assert draw_one((0.2, 0.5, 0.3), 0.0, top_k=2)[0] == 1
    assert draw_one((0.2, 0.5, 0.3), NEARLY_ONE, top_k=2)[0] == 2


def test_chunks_of_rows_change_nothing(monkeypatch):
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    points = torch.from_numpy(request_uniforms(1, 7))
    sampling = Sampling(top_p=0.9, top_k=9, with_kept=True)
    whole = draw(logits, points, sampling)
    monkeypatch.setattr(sampling_module, "MAX_ELEMENTS", 23)  # two rows at a time
    parts = draw(logits, points, sampling)
    assert torch.equal(whole.tokens_R, parts.tokens_R)
    assert torch.equal(whole.logprobs_R, parts.logprobs_R)
    assert whole.kept == parts.kept


def test_logits_that_are_not_numbers_give_a_logprob_that_is_not_one():
    assert draw(torch.tensor([[math.nan, 0.0]]), uniforms(0.5), Sampling()).logprobs_R.isnan().all()
    assert draw(torch.tensor([[math.nan, 0.0]]), uniforms(0.5), Sampling(top_k=1)).logprobs_R.isnan().all()


def test_draws_of_many_seeds_follow_the_probabilities():
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    num_draws = 20_000
    points = torch.tensor([request_uniforms(seed, 1)[0] for seed in range(num_draws)])
    drawn = draw(logits_of(*probabilities).expand(num_draws, -1), points, Sampling())
    observed = np.bincount(drawn.tokens_R.numpy(), minlength=6)
    expected = num_draws * probabilities
    # Chi-square with 5 degrees of freedom exceeds 20.5 once in a thousand; the seeds are fixed.
    assert ((observed - expected) ** 2 / expected).sum() < 20.5
