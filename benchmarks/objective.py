"""Log-probabilities, loss and backward pass: this project against TRL, on the same tensors.

    python benchmarks/objective.py --max-tokens 16384

Each case is a process of its own: hidden states [N, H] and an output head [V, H] become log-probabilities of N sampled
tokens, a clipped token-level loss (the same in all implementations, so that loss and gradients can be compared), and
gradients of both. Time is the best of the repeats after a short warm-up, as CPU seconds of the process (a busy machine
disturbs them least; with one thread on an idle one they are wall seconds, also shown). Memory is the rise of the
process's peak above its state with the inputs in place, the gradients included. TRL's peers are the tiled head of its
``GRPOTrainer`` (needs ``pip install trl==1.16.0``) and ``selective_log_softmax`` over full logits, which others use.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROW_TOKENS = 256
CARDINALITY = 4
OURS = "srpo"
IMPLEMENTATIONS = (OURS, "trl tiled head", "trl full logits")


def main() -> None:
    args = parse_arguments()
    if args.case:
        print(json.dumps(run_case(json.loads(args.case))))
        return
    cases, token_count = [], 2048
    while token_count <= args.max_tokens:
        for with_entropy in (False, True):
            for name in IMPLEMENTATIONS:
                cases.append({**vars(args), "tokens": token_count, "entropy": with_entropy, "name": name})
        token_count *= 2
    print_table(map(measure, cases), args)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-tokens", type=int, default=16384, help="largest case; they double from 2048")
    parser.add_argument("--hidden", type=int, default=64, help="hidden size of the head")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--memory-limit-gb", type=float, default=8.0, help="skip full logits that would need more")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(case: dict) -> dict:
    """Run one case in a fresh process, unless it would not fit."""
    needed_gb = 3 * 4 * case["tokens"] * case["vocabulary"] / 1e9  # logits, their gradient, one temporary
    if case["name"] == "trl full logits" and needed_gb > case["memory_limit_gb"]:
        return case | {"skipped": f"needs about {needed_gb:.0f} GB"}
    environment = os.environ | {"OMP_NUM_THREADS": str(case["threads"])}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--case", json.dumps(case | {"case": None})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return case | {"skipped": (done.stderr.strip().splitlines() or ["killed"])[-1][:60]}
    return case | json.loads(done.stdout.splitlines()[-1])


def run_case(case: dict) -> dict:
    import torch

    torch.set_num_threads(case["threads"])
    step = {OURS: step_srpo, "trl tiled head": step_trl_tiled, "trl full logits": step_trl_full}[case["name"]]
    step(make_inputs(case | {"tokens": ROW_TOKENS * CARDINALITY}), case["entropy"])
    inputs = make_inputs(case)
    before = reset_peak()
    best = (math.inf, math.inf)
    for _ in range(case["repeats"]):
        inputs["hidden"].grad = inputs["weight"].grad = None
        start = time.process_time(), time.perf_counter()
        loss = step(inputs, case["entropy"])
        best = min(best, (time.process_time() - start[0], time.perf_counter() - start[1]))
    return {
        "seconds": best[0],
        "wall_s": best[1],
        "peak_mb": (peak_bytes() - before) / 2**20,
        "loss": loss,
        "grad_norms": [inputs[name].grad.norm().item() for name in ("hidden", "weight")],
    }


def reset_peak() -> int:
    """Forget the warm-up's peak where the system can, and return the peak from which memory is counted."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory of this process alone; ru_maxrss would start at the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def make_inputs(case: dict) -> dict:
    import torch

    generator = torch.Generator().manual_seed(0)
    num_tokens, hidden_size, vocabulary = case["tokens"], case["hidden"], case["vocabulary"]
    num_rows = num_tokens // ROW_TOKENS
    return {
        "hidden": torch.randn((num_tokens, hidden_size), generator=generator).requires_grad_(),
        "weight": torch.randn((vocabulary, hidden_size), generator=generator).mul_(0.2).requires_grad_(),
        "target": torch.randint(0, vocabulary, (num_tokens,), generator=generator),
        "advantage_E": torch.randn(num_rows // CARDINALITY, generator=generator),
    }


def step_srpo(inputs: dict, with_entropy: bool) -> float:
    import torch

    from srpo_train.objective import LossTensors, objective_value, preset
    from srpo_train.policies.logprobs import head_logprobs

    target_NY = inputs["target"][:, None]
    logprob, _ = head_logprobs(inputs["hidden"], inputs["weight"], None, target_NY, with_entropy=with_entropy)
    logprobs_MT = logprob.view(-1, ROW_TOKENS)
    num_events = len(inputs["advantage_E"])
    tensors = LossTensors(
        current_MT=logprobs_MT,
        old_MT=logprobs_MT.detach(),
        token_mask_MT=torch.ones_like(logprobs_MT, dtype=torch.bool),
        event_of_row_M=torch.arange(num_events).repeat_interleave(CARDINALITY),
        cardinality_E=torch.full((num_events,), CARDINALITY),
        advantage_E=inputs["advantage_E"],
    )
    loss = -objective_value(preset("dapo", clip_high=0.2), tensors)
    loss.backward()
    return loss.item()


def step_trl_tiled(inputs: dict, with_entropy: bool) -> float:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    outputs = ("entropy",) if with_entropy else ()
    logprob = ChunkedLogProbFunction.apply(
        inputs["hidden"], inputs["weight"], None, inputs["target"], 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, outputs
    )[0]
    return grpo_loss(logprob, inputs)


def step_trl_full(inputs: dict, with_entropy: bool) -> float:
    from trl.trainer.utils import selective_log_softmax, selective_log_softmax_and_entropy

    logits = (inputs["hidden"] @ inputs["weight"].t()).view(-1, ROW_TOKENS, len(inputs["weight"]))
    target = inputs["target"].view(-1, ROW_TOKENS)
    if with_entropy:
        logprob = selective_log_softmax_and_entropy(logits, target, entropy_requires_grad=False)[0]
    else:
        logprob = selective_log_softmax(logits, target)
    del logits
    return grpo_loss(logprob.flatten(), inputs)


def grpo_loss(logprob, inputs: dict) -> float:
    """The loss of ``GRPOTrainer`` with its default ``dapo`` type, at the first update of a batch."""
    import torch

    advantage = inputs["advantage_E"].repeat_interleave(CARDINALITY)[:, None]
    per_token = logprob.view(-1, ROW_TOKENS)
    ratio = (per_token - per_token.detach()).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / per_token.numel()
    loss.backward()
    return loss.item()


def print_table(results: Iterable[dict], args: argparse.Namespace) -> None:
    print(f"hidden {args.hidden}, vocabulary {args.vocabulary}, {args.threads} thread(s), float32, CPU")
    columns = f"{'CPU s':>8} {'ratio':>6} {'wall s':>8} {'peak MB':>8} {'ratio':>6}  equal"
    print(f"{'tokens':>7} {'entropy':>8} {'implementation':<16} {columns}", flush=True)
    ours: dict = {}
    for result in results:
        if result["name"] == OURS:
            ours = result
        head = f"{result['tokens']:>7} {'yes' if result['entropy'] else 'no':>8} {result['name']:<16}"
        if "skipped" in result or "skipped" in ours:
            print(f"{head} {result.get('skipped', '')}", flush=True)
            continue
        slower, larger = result["seconds"] / ours["seconds"], result["peak_mb"] / ours["peak_mb"]
        equal = "yes" if agrees(result, ours) else "NO"
        times = f"{result['seconds']:8.2f} {slower:6.2f} {result['wall_s']:8.2f}"
        print(f"{head} {times} {result['peak_mb']:8.0f} {larger:6.2f}  {equal}", flush=True)


def agrees(result: dict, ours: dict) -> bool:
    pairs = zip([result["loss"], *result["grad_norms"]], [ours["loss"], *ours["grad_norms"]], strict=True)
    return all(math.isclose(theirs, mine, rel_tol=1e-4) for theirs, mine in pairs)


if __name__ == "__main__":
    main()
