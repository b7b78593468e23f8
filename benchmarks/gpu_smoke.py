"""The training loop on one GPU with a model of real shape: speed, memory, and how busy the update keeps the device.

    python benchmarks/gpu_smoke.py                                                       # the shape of Qwen3-0.6B
    python benchmarks/gpu_smoke.py --layers 36 --hidden 2560                             # about that of Qwen3-4B
    python benchmarks/gpu_smoke.py --device cpu --layers 1 --hidden 64 --vocabulary 512  # the same path in miniature

Weights are random, in bfloat16, so nothing is downloaded and nothing is learned. Each step plays the arithmetic world
with a team of three solvers, a verifier and an aggregator, updates, and publishes the new weights to the engine. Where
vLLM is installed, that is vLLM in the same process and on the same GPU, asleep during updates; otherwise it is the
transformers engine, which samples from the trainer's own weights. A random team earns much the same in every episode,
so advantages are drawn at random for the update to have work to do.

*Share of the matrix rate* is the arithmetic that the update needs, six operations per weight and token without what is
recomputed or attention's products, over its time, against a large bfloat16 matrix product timed on the same device.
The first step warms up and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import srpo_envs
from srpo_train.batching import EventBatch
from srpo_train.collect import Collector
from srpo_train.config import EngineConfig, OptimConfig, VllmConfig
from srpo_train.engines.base import Engine, Sampling
from srpo_train.engines.making import make_engines
from srpo_train.engines.publishing import PublishingEngine, weights_of
from srpo_train.experience import build_experience
from srpo_train.learner import Learner
from srpo_train.objective import preset
from srpo_train.policies import Policy
from srpo_train.policies.loading import resolve_source
from srpo_train.task_order import TaskOrder, step_jobs

ENV = "srpo_envs/ArithmeticSolverVerifier-v0"
MAX_ROW_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step."""

    generate_s: float
    update_s: float
    publish_s: float
    sampled_tokens: int
    update_operations: float


def make_policy(args: argparse.Namespace) -> Policy:
    """Return a random Qwen3 with the proportions of Qwen3-0.6B and the embedded policy's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_source("team", "builtin:tiny-team"))
    num_heads = max(2, args.hidden // 64)
    config = Qwen3Config(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads // 2,
        head_dim=128,
        max_position_embeddings=MAX_ROW_TOKENS,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(args.device):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return Policy(policy_id="team", model=model, tokenizer=tokenizer)


def engine_settings(args: argparse.Namespace) -> EngineConfig:
    has_vllm = importlib.util.find_spec("vllm") is not None
    if args.engine == "vllm" or (args.engine == "auto" and has_vllm):
        return EngineConfig(kind="vllm", vllm=VllmConfig(sleep=True, gpu_memory_utilization=args.gpu_share))
    return EngineConfig()


@contextlib.contextmanager
def opened(policy: Policy, args: argparse.Namespace) -> Iterator[tuple[Engine, Collector, TaskOrder]]:
    """The engine and a collector over it, closed at the end."""
    engines = make_engines([policy], engine_settings(args))

    def make_env() -> srpo_envs.SetEnv:
        return srpo_envs.make(ENV, num_solvers=3, max_new_tokens=args.new_tokens)

    collector = Collector(make_env, engines, {"*": "team"}, seed=0)
    try:
        yield engines["team"], collector, TaskOrder(make_env().tasks.num_tasks, 0)
    finally:
        collector.close()
        engines["team"].close()


def run(args: argparse.Namespace) -> tuple[str, list[StepTimes]]:
    """Return the engine's name and the counted steps."""
    policy = make_policy(args)
    objective = preset("srpo")
    optim = OptimConfig(micro_batch_tokens=args.micro_batch_tokens, max_row_tokens=MAX_ROW_TOKENS)
    learner = Learner({"team": policy}, objective, optim, num_steps=args.steps + 1)
    steps = []
    with opened(policy, args) as (engine, collector, order):
        for step in range(args.steps + 1):
            jobs = step_jobs(order, step=step + 1, prompts_per_step=args.questions, group_size=8, seed=0)
            rollout, generate_s = timed(lambda jobs=jobs: collector.collect(jobs, {"team": Sampling()}), args.device)
            batch = build_experience(rollout.episodes, objective, MAX_ROW_TOKENS).batch
            batch = with_random_advantages(batch, seed=step)
            if isinstance(engine, PublishingEngine):
                engine.release_memory()
            _, update_s = timed(lambda b=batch, s=step: learner.update(b, step=s, seed=s), args.device)
            policy.version += 1
            _, publish_s = timed(lambda: publish(engine, policy), args.device)
            if step:
                steps.append(
                    StepTimes(
                        generate_s=generate_s,
                        update_s=update_s,
                        publish_s=publish_s,
                        sampled_tokens=sum(len(row.token_ids) for row in batch.rows),
                        update_operations=operations(policy, batch),
                    )
                )
        return type(engine).__name__, steps


def publish(engine: Engine, policy: Policy) -> None:
    if isinstance(engine, PublishingEngine):
        engine.publish(policy.version, weights_of(policy))


def with_random_advantages(batch: EventBatch, seed: int) -> EventBatch:
    signs_E = torch.randint(0, 2, (batch.num_events,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    return replace(batch, advantage_E=signs_E.double(), advantage_M=signs_E.double()[batch.event_of_row_M])


def operations(policy: Policy, batch: EventBatch) -> float:
    """Forward and backward: two and four operations per weight and token; the head sees responses only."""
    head = policy.model.get_output_embeddings().weight.numel()
    body = sum(parameter.numel() for parameter in policy.model.parameters()) - head
    num_tokens = sum(row.num_tokens for row in batch.rows)
    return 6.0 * (body * num_tokens + head * sum(len(row.token_ids) for row in batch.rows))


def timed(call, device: str):
    """Return a call's result and its seconds, with what it left running on the device."""
    begun = time.perf_counter()
    result = call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return result, time.perf_counter() - begun


def matrix_rate(device: str) -> float:
    """Operations a second of a large square bfloat16 product; the best of five."""
    size = 8192 if device.startswith("cuda") else 512
    left, right = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / min(timed(lambda: left @ right, device)[1] for _ in range(5))


def report(args: argparse.Namespace, engine: str, steps: list[StepTimes], peak_rate: float) -> None:
    rate = sum(step.update_operations for step in steps) / sum(step.update_s for step in steps)
    num_tokens = sum(step.sampled_tokens for step in steps)
    is_cuda = args.device.startswith("cuda")
    rows = {
        "device": torch.cuda.get_device_name(args.device) if is_cuda else "CPU",
        "model": f"Qwen3, {args.layers} layers of {args.hidden}, {args.vocabulary:,} words, bfloat16",
        "engine": engine,
        "sampled tokens/s": f"{num_tokens / sum(step.generate_s for step in steps):,.0f}",
        "trained tokens/s": f"{num_tokens / sum(step.update_s for step in steps):,.0f}",
        "publishing, s": f"{statistics.median(step.publish_s for step in steps):.3f}",
        "peak memory of torch, GiB": f"{torch.cuda.max_memory_allocated(args.device) / 2**30:.1f}" if is_cuda else "-",
        "matrix product, TFLOP/s": f"{peak_rate / 1e12:.3g}",
        "update, TFLOP/s": f"{rate / 1e12:.3g}",
        "share of the matrix rate": f"{rate / peak_rate:.1%}",
    }
    print("| what | value |\n| :--- | ---: |")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--questions", type=int, default=32, help="a step, each answered by 8 teams")
    parser.add_argument("--new-tokens", type=int, default=512, help="limit of every role")
    parser.add_argument("--micro-batch-tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=3, help="counted ones")
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--gpu-share", type=float, default=0.4, help="of vLLM")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU: torch sees no CUDA device, so nothing is measured (--device cpu runs the path in miniature)")
        return
    peak_rate = matrix_rate(args.device)
    engine, steps = run(args)
    report(args, engine, steps, peak_rate)


if __name__ == "__main__":
    main()
