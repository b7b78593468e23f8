from __future__ import annotations

import threading
import time

import pytest
import torch

from srpo_envs.errors import EngineError
from srpo_train.engines import Generation
from srpo_train.engines.publishing import PushProgress, WeightSpecs, of_version, run_within, weights_of

WEIGHTS = {"embed.weight": torch.zeros(4, 3), "head.weight": torch.zeros(4, 3), "norm.weight": torch.ones(3)}


@pytest.fixture
def specs():
    return WeightSpecs("solver", WEIGHTS.items())


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in WEIGHTS.items() if key != name}


def test_weights_that_fit_come_back_by_name_without_gradients(specs):
    trained = {**WEIGHTS, "norm.weight": torch.nn.Parameter(torch.full((3,), 2.0))}
    checked = specs.check(1, trained.items())
    assert list(checked) == list(WEIGHTS)
    assert not checked["norm.weight"].requires_grad
    assert checked["norm.weight"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (without("head.weight"), r"1 missing: 'head.weight'"),
        (without("head.weight") | {"lm_head.weight": torch.zeros(4, 3)}, r"1 missing: .*1 unknown: 'lm_head.weight'"),
        (WEIGHTS | {"norm.weight": torch.ones(4)}, r"'norm.weight' is \[4\] float32, expected \[3\] float32"),
        (WEIGHTS | {"norm.weight": torch.ones(3, dtype=torch.bfloat16)}, r"is \[3\] bfloat16, expected \[3\] float32"),
    ],
    ids=["missing", "renamed", "shape", "dtype"],
)
def test_weights_that_do_not_fit_are_refused_by_name(specs, weights, problem):
    with pytest.raises(EngineError, match=f"'solver'.*version 3.*{problem}.*nothing has moved"):
        specs.check(3, weights.items())


def test_a_tensor_that_comes_twice_is_refused(specs):
    with pytest.raises(EngineError, match=r"'norm\.weight' twice"):
        specs.check(1, [*WEIGHTS.items(), ("norm.weight", torch.ones(3))])


def test_many_missing_tensors_are_counted_and_three_are_named():
    specs = WeightSpecs("solver", {f"layer.{number}": torch.zeros(1) for number in range(10)}.items())
    with pytest.raises(EngineError, match=r"10 missing: 'layer\.0', 'layer\.1', 'layer\.2' \.\.\."):
        specs.check(1, [])


def test_a_policy_s_weights_name_both_ends_of_a_tied_tensor(tiny_policy):
    names = dict(weights_of(tiny_policy))
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(names)


def test_progress_tells_rank_and_tensor():
    progress = PushProgress(WEIGHTS, rank=2)
    assert str(progress) == "rank 2 at the first tensor"
    tensors = iter(progress)
    next(tensors)
    next(tensors)
    assert str(progress) == "rank 2 at 'head.weight' (2 of 3 tensors)"


def test_progress_of_other_processes_is_read_from_their_notes(tmp_path):
    for rank, count in ((0, 3), (1, 1)):
        tensors = iter(PushProgress(WEIGHTS, rank, tmp_path))
        for _ in range(count):
            next(tensors)
    sender = PushProgress(WEIGHTS)
    sender.follow(tmp_path)
    assert str(sender) == "rank 0 at 'norm.weight' (3 of 3 tensors), rank 1 at 'embed.weight' (1 of 3 tensors)"


def test_a_call_within_its_time_returns_its_result_or_raises_its_error():
    assert run_within(10.0, lambda: 7) == 7

    def fail() -> None:
        raise ValueError("lost peer")

    with pytest.raises(ValueError, match="lost peer"):
        run_within(10.0, fail)


def test_a_call_that_hangs_is_left_behind():
    release = threading.Event()
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        run_within(0.05, lambda: release.wait(30))
    assert time.monotonic() - begun < 25
    release.set()


def make_generation(version: int) -> Generation:
    return Generation(
        request_id="ep/e0/0",
        text="4",
        prompt_token_ids=(1, 2),
        token_ids=(3,),
        logprobs=(-0.5,),
        finish_reason="stop",
        policy_version=version,
    )


def test_a_generation_of_the_published_version_passes():
    generation = make_generation(4)
    assert of_version(generation, 4) is generation


def test_a_generation_of_another_version_is_refused_and_may_be_asked_again():
    refused = of_version(make_generation(3), 4)
    assert (refused.finish_reason, refused.token_ids, refused.logprobs, refused.text) == ("abort", (), (), "")
    assert refused.abort_reason == "sampled by version 3, while version 4 is published"
    assert not refused.is_hopeless
