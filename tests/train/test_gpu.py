"""A GPU computes what the CPU does: sampling, scoring and the update. Each check runs on the CPU too, against itself.

``pytest -m gpu tests/train/test_gpu.py`` runs the part that needs CUDA.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import EngineConfig, OptimConfig, VllmConfig
from srpo_train.engines.base import Engine, GenerationRequest, Sampling
from srpo_train.engines.making import make_engines
from srpo_train.learner import Learner
from srpo_train.objective import preset
from srpo_train.optimizer import PolicyOptimizer
from srpo_train.policies import Policy
from srpo_train.policies.critic import Critic
from srpo_train.value_learner import ValueLearner

ROOT = Path(__file__).parents[2]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]


def load(checkpoint: Path | str, device: str, dtype: str) -> Policy:
    return Policy.load("tiny", checkpoint, device=device, dtype=dtype)


def make_batch(vocab_size: int) -> EventBatch:
    """Six events of one to three random rows with advantages of either sign."""
    random = torch.Generator().manual_seed(3)
    cardinality = [1, 2, 3, 1, 2, 3]
    rows = [
        MemberRow(
            event_index=event,
            member_index=member,
            policy_id="tiny",
            prompt_ids=torch.randint(vocab_size, (5 + event,), generator=random).tolist(),
            token_ids=torch.randint(vocab_size, (4 + 2 * member,), generator=random).tolist(),
        )
        for event, size in enumerate(cardinality)
        for member in range(size)
    ]
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -0.3], dtype=torch.float64)
    return EventBatch(rows=rows, cardinality_E=torch.tensor(cardinality), advantage_E=advantages)


def score(policy: Policy, batch: EventBatch) -> torch.Tensor:
    with torch.no_grad():
        return policy.scorer()(batch.rows).logprobs_MT.float().cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_an_update_in_bfloat16_is_that_of_float32_on_the_cpu(tiny_checkpoint: Path, device: str) -> None:
    exact, tested = load(tiny_checkpoint, "cpu", "float32"), load(tiny_checkpoint, device, "bfloat16")
    batch = make_batch(exact.model.config.vocab_size)
    changes, norms = [], []
    for policy in (exact, tested):
        before = score(policy, batch)
        learner = Learner({"tiny": policy}, preset("srpo"), OptimConfig(lr=3e-3, max_grad_norm=1e6), num_steps=1)
        norms.append(learner.update(batch, step=0, seed=0)["train/grad_norm"])
        changes.append((score(policy, batch) - before).flatten())
    assert norms[1] == pytest.approx(norms[0], rel=0.03)
    assert changes[0].abs().mean() > 0.1, "the update moves too little to be compared"
    assert torch.cosine_similarity(changes[0], changes[1], dim=0) > 0.98
    assert (changes[1] - changes[0]).abs().mean() < 0.15 * changes[0].abs().mean()


@pytest.mark.parametrize("device", DEVICES)
def test_a_critic_learns_what_it_learns_on_the_cpu(tiny_checkpoint: Path, device: str) -> None:
    batch = make_batch(load(tiny_checkpoint, "cpu", "float32").model.config.vocab_size)
    batch = replace(batch, value_E=torch.zeros(6), value_target_E=batch.advantage_E)
    outcomes = []
    for place in ("cpu", device):
        critic = Critic.load(tiny_checkpoint, device=place)
        learner = ValueLearner(critic, OptimConfig(lr=1e-3, num_epochs=5), value_clip=10.0, num_steps=1)
        learner.update(batch, step=0, seed=0)
        outcomes.append(learner.values(batch))
    assert outcomes[0].abs().max() > 0.05, "the values move too little to be compared"
    torch.testing.assert_close(outcomes[1], outcomes[0], atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_log_probs_of_the_engine_are_those_of_the_cpu(
    tiny_checkpoint: Path, device: str, dtype: str, tolerance: float
) -> None:
    policy = load(tiny_checkpoint, device, dtype)
    check_logprobs(make_engines([policy], EngineConfig())["tiny"], load(tiny_checkpoint, "cpu", "float32"), tolerance)


@pytest.mark.gpu
@needs_cuda
def test_log_probs_of_vllm_are_those_of_the_cpu_after_it_slept() -> None:
    pytest.importorskip("vllm")
    source = "builtin:tiny-team"  # heads of 32, the least that vLLM runs
    policy = load(source, "cuda", "bfloat16")
    settings = VllmConfig(sleep=True, enforce_eager=True, gpu_memory_utilization=0.2, max_model_len=256)
    engine = make_engines([policy], EngineConfig(kind="vllm", vllm=settings))["tiny"]
    try:
        engine.release_memory()
        check_logprobs(engine, load(source, "cpu", "float32"), 0.3)
    finally:
        engine.close()


@pytest.mark.gpu
@needs_cuda
def test_a_step_of_the_optimiser_needs_no_memory_beyond_what_is_planned() -> None:
    weights = [nn.Parameter(torch.zeros(1 << 20, device="cuda", dtype=torch.bfloat16)) for _ in range(16)]
    optimizer = PolicyOptimizer(weights, OptimConfig())
    for _ in range(2):  # the first makes the moments
        sum(weight.sum() for weight in weights).backward()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step(1e-3)
        peak = torch.cuda.max_memory_allocated() - before
    assert peak < 4 << 20  # a buffer for all weights would have 64 MiB


def check_logprobs(engine: Engine, exact: Policy, tolerance: float) -> None:
    requests = [GenerationRequest(request_id=str(n), prompt="a?", max_new_tokens=12, seed=n) for n in range(8)]
    rows, sampled = [], []
    for index, generation in enumerate(engine.generate(requests, Sampling())):
        assert generation.token_ids
        sampled += generation.logprobs
        rows.append(
            MemberRow(
                event_index=index,
                member_index=0,
                policy_id="tiny",
                prompt_ids=generation.prompt_token_ids,
                token_ids=generation.token_ids,
            )
        )
    with torch.no_grad():
        scored = exact.scorer()(rows).logprobs_MT
    expected = torch.cat([line[: len(row.token_ids)] for line, row in zip(scored, rows, strict=True)])
    torch.testing.assert_close(torch.tensor(sampled), expected.float(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_the_smoke_benchmark_runs_the_loop(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = smoke(
        monkeypatch, capsys, "--device", device, "--engine", "transformers", *["--layers", "1", "--hidden", "64"]
    )
    rows = dict(line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("| "))
    assert float(rows["sampled tokens/s"].replace(",", "")) > 0
    assert 0 < float(rows["share of the matrix rate"].rstrip("%")) < 100


def test_the_smoke_benchmark_says_so_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert smoke(monkeypatch, capsys).startswith("no GPU")


def smoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    small = ["--vocabulary", "512", "--questions", "1", "--new-tokens", "6", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu_smoke.py", *small, *options])
    import gpu_smoke

    gpu_smoke.main()
    return capsys.readouterr().out
