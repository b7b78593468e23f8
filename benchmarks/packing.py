"""Rows of an update padded against rows packed end to end: padding, passes and time, as ratios.

    python benchmarks/packing.py                                  # a small Qwen3 on the CPU
    python benchmarks/packing.py --device cuda:0 --dtype bfloat16 --hidden 1024 --layers 28 --tokens 16384

The rows are of three kinds: those of one step of the arithmetic world played by the embedded team (short, much alike),
lengths spread as those of reasoning (log-normal), and one long row among short ones.
Each way scores all rows and then back-propagates them, as an update does, with passes of at most ``--tokens`` tokens:

- *padded*: rows of a pass padded to its longest; rows sorted by length, and a pass cut short where padding would cost
  more than another pass.
- *packed*: rows end to end, passes filled by best fit of falling lengths, attention of rows of like length side by
  side (`srpo_train.policies.packing`).
- *block mask*: the same lines with the mask that transformers makes of restarting positions, which is what TRL's
  ``padding_free`` and ``packing`` compute where flash attention is not installed.

Where TRL is installed, its ``bfd`` packing of the same lengths stands beside, as the lines it makes of them (it cuts
rows that do not fit; none is so long here). Ways take turns; times are the least of several, of
processor time on a CPU, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import srpo_envs
from srpo_train.batching import MemberRow, micro_batches
from srpo_train.collect import Collector
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.experience import build_experience
from srpo_train.objective import preset
from srpo_train.policies import Policy
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.policies.packing import resolve_packing
from srpo_train.task_order import TaskOrder, step_jobs

PADDED, PACKED, BLOCKS = "padded", "packed", "block mask"
COLUMNS = ("rows", "way", "padding", "passes", "score", "backward", "score, times", "backward, times")


def arithmetic_lengths() -> list[tuple[int, int]]:
    """Prompt and response lengths of one step of the three-solver team."""
    policy = Policy.load("team", "builtin:tiny-team", device="cpu")
    env = srpo_envs.make("srpo_envs/ArithmeticSolverVerifier-v0", num_solvers=3)
    collector = Collector(lambda: env, {"team": TransformersEngine(policy)}, {"*": "team"}, max_concurrent=1)
    jobs = step_jobs(TaskOrder(env.tasks.num_tasks, 0), step=1, prompts_per_step=4, group_size=4, seed=0)
    episodes = collector.collect(jobs, Sampling()).episodes
    collector.close()
    rows = build_experience(episodes, preset("srpo"), 4096).batch.rows
    return [(len(row.prompt_ids), len(row.token_ids)) for row in rows]


def spread_lengths(num_rows: int, median: int, longest: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(0).lognormal(np.log(median), 1.0, num_rows)
    return [(median // 4, int(np.clip(length, 1, longest))) for length in draw]


def make_rows(lengths: Sequence[tuple[int, int]], vocabulary: int) -> list[MemberRow]:
    draw = np.random.default_rng(1)
    return [
        MemberRow(
            event_index=index,
            member_index=0,
            policy_id="team",
            prompt_ids=draw.integers(0, vocabulary, prompt).tolist(),
            token_ids=draw.integers(0, vocabulary, response).tolist(),
        )
        for index, (prompt, response) in enumerate(lengths)
    ]


def make_model(args: argparse.Namespace) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=max(2, args.hidden // 64),
        num_key_value_heads=max(2, args.hidden // 64) // 2,
        head_dim=64,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(args.device, getattr(torch, args.dtype))


def make_scorers(model: Qwen3ForCausalLM) -> dict[str, ModelScorer]:
    """One scorer for each way, each with a model of its own, for the way of attention is the model's."""
    packed = copy.deepcopy(model)
    if not resolve_packing("team", packed, True):
        raise SystemExit("the model does not pack")
    return {
        PADDED: ModelScorer(model=model),
        PACKED: ModelScorer(model=packed, packing=True),
        BLOCKS: ModelScorer(model=model, packing=True),  # never prepared: transformers makes its own mask
    }


def seconds(work: Callable[[], None], device: str) -> float:
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    begun = clock()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return clock() - begun


def measure(
    scorers: dict[str, ModelScorer], rows: Sequence[MemberRow], args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    parts = {
        name: [[rows[i] for i in part] for part in micro_batches(rows, args.tokens, ("team",) if s.packing else ())]
        for name, s in scorers.items()
    }

    def score(name: str) -> None:
        with torch.no_grad():
            for part in parts[name]:
                scorers[name](part)

    def backward(name: str) -> None:
        for part in parts[name]:
            scorers[name](part).logprobs_MT.sum().backward()

    times: dict[tuple[str, str], list[float]] = {}
    for _, name in itertools.product(range(args.rounds), scorers):
        for kind, work in (("score", score), ("backward", backward)):
            spent = seconds(lambda work=work, name=name: work(name), args.device)
            times.setdefault((name, kind), []).append(spent)
    num_tokens = sum(row.num_tokens for row in rows)
    found = {}
    for name, scorer in scorers.items():
        slots = num_tokens
        if not scorer.packing:
            slots = sum(len(part) * max(row.num_tokens for row in part) for part in parts[name])
        found[name] = {"padding": 1 - num_tokens / slots, "passes": len(parts[name])}
        found[name] |= {kind: min(times[name, kind]) for kind in ("score", "backward")}
    return found


def trl_lines(rows: Sequence[MemberRow], max_tokens: int) -> int:
    import datasets
    from trl import pack_dataset

    datasets.disable_progress_bars()

    longest = max(max_tokens, *(row.num_tokens for row in rows))
    ids = [[0] * row.num_tokens for row in rows]
    return len(pack_dataset(datasets.Dataset.from_dict({"input_ids": ids}), seq_length=longest, strategy="bfd"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=2048, help="of a pass at most")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    cases = {
        "arithmetic team": arithmetic_lengths(),
        "spread": spread_lengths(args.rows, args.tokens // 32, args.tokens - args.tokens // 128),
        "one long": [(8, args.tokens // 2)] + [(8, args.tokens // 64)] * args.rows,
    }
    scorers = make_scorers(make_model(args))
    has_trl = importlib.util.find_spec("trl") is not None
    print("| " + " | ".join(COLUMNS) + " |\n|---|---|" + "---:|" * (len(COLUMNS) - 2))
    for case, lengths in cases.items():
        rows = make_rows(lengths, args.vocabulary)
        found = measure(scorers, rows, args)
        for name, row in found.items():
            cells = [f"{row['padding']:.1%}", f"{row['passes']}"]
            cells += [f"{1e3 * row[kind]:,.0f} ms" for kind in ("score", "backward")]
            cells += [f"{row[kind] / found[PADDED][kind]:.2f}" for kind in ("score", "backward")]
            print("| " + " | ".join([f"{case}, {len(rows)}", name, *cells]) + " |", flush=True)
        if has_trl:
            print(f"| {case}, {len(rows)} | TRL's bfd | 0.0% | {trl_lines(rows, args.tokens)} | | | | |", flush=True)


if __name__ == "__main__":
    main()
