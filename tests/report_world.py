"""Runs and evaluations as small literal directories, for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from srpo_train.config import load_recipe
from srpo_train.evaluation import BenchmarkResult, Results, SeedResult, TaskResult, write_results
from srpo_train.metrics import MetricLogger

RECIPE = Path(__file__).parents[1] / "recipes/tiny-arithmetic.toml"
SOFTWARE = {
    "platform": "Linux",
    "revision": "0123456789abcdef0123-dirty",
    "packages": {"srpo": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
}

HOSTILE = (
    "a|b",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\\input{/etc/passwd} \\\\ & x",
    "$x^2$ 100% #1 ~a_b_c",
    "**bold** _it_ `code`",
    "[link](javascript:alert(1)) ![i](x)",
    "two\nlines\r\n\n# heading",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnitset\x00\x1b[31m",
    "&lt;b&gt; &amp;",
    "[9pt] *",
    "}{",
    "--- a --",
)
"""Names that are something else in Markdown, LaTeX, HTML, Jinja or a terminal."""


def make_run(
    run_dir: Path,
    *changes: str,
    evaluations: Mapping[int, tuple[float, float]] | None = None,
    steps: Sequence[Mapping[str, float]] = ({},),
    roles: Sequence[str] = ("solver", "verifier"),
) -> Path:
    """Write a run: Avg@k and Pass@k by step, and what each training step adds to the usual values."""
    run_dir.mkdir(parents=True, exist_ok=True)
    overrides = [f"name={run_dir.name}", f"output_dir={run_dir.parent}", *changes]
    (run_dir / "recipe.toml").write_text(load_recipe(RECIPE, overrides).to_toml())
    (run_dir / "software.jsonl").write_text(json.dumps(SOFTWARE) + "\n")
    evaluations = evaluations or {}
    with MetricLogger(run_dir) as metrics:
        if 0 in evaluations:
            metrics.log(0, evaluation_values(*evaluations[0]))
        for step, values in enumerate(steps, start=1):
            scored = evaluation_values(*evaluations[step]) if step in evaluations else {}
            metrics.log(step, training_values(roles) | dict(values) | scored)
    return run_dir


def training_values(roles: Sequence[str] = ("solver", "verifier")) -> dict[str, float]:
    """A step of 10 events, 20 calls and 200 tokens."""
    return {
        "rollout/accuracy": 0.5,
        "rollout/reward_mean": 0.5,
        "rollout/event_completeness": 1.0,
        "rollout/num_events": 10.0,
        "rollout/num_calls": 20.0,
        "rollout/num_tokens": 200.0,
        "train/grad_norm": 1.0,
        "time/step_s": 30.0,
        **{f"rollout/response_length/{role}": 10.0 for role in roles},
        **{f"rollout/cardinality/{role}": 3.0 if role == "solver" and len(roles) > 1 else 1.0 for role in roles},
    }


def evaluation_values(avg_at_k: float, pass_at_k: float) -> dict[str, float]:
    """An evaluation of 64 episodes with 640 tokens, 320 calls and no tools."""
    return {
        "eval/avg_at_k": avg_at_k,
        "eval/pass_at_k": pass_at_k,
        "eval/num_episodes": 64.0,
        "eval/num_tokens": 640.0,
        "eval/num_calls": 320.0,
        "eval/num_tool_calls": 0.0,
        "eval/num_failed_episodes": 0.0,
        "eval/utility": 1e6 * avg_at_k / 10,
    }


def make_evaluation(
    directory: Path,
    correct: Mapping[str, Mapping[int, Sequence[int]]],
    *,
    samples: int = 4,
    method: str = "mine",
    model: str = "Qwen3-4B",
    digest: str = "d1",
    costs: Mapping[str, float] | None = None,
    num_failed: int = 0,
    set_size: int | None = None,
    source: str = "",
) -> Path:
    """Write an evaluation: by benchmark and seed, how many of the samples of each task are right."""
    directory.mkdir(parents=True, exist_ok=True)
    benchmarks = {
        name: BenchmarkResult(
            env_id="srpo_envs/MathSolverVerifier-v0",
            num_tasks=len(next(iter(seeds.values()))),
            set_size=set_size or len(next(iter(seeds.values()))),
            expected_tasks=None,
            digest=digest,
            seeds={seed: _seed_result(counts, samples, costs or {}, num_failed) for seed, counts in seeds.items()},
        )
        for name, seeds in correct.items()
    }
    results = Results(method=method, model=model, source=source, samples=samples, benchmarks=benchmarks)
    write_results(directory, results)
    return directory


def _seed_result(counts: Sequence[int], samples: int, costs: Mapping[str, float], num_failed: int) -> SeedResult:
    return SeedResult(
        avg_at_k=fmean(count / samples for count in counts),
        pass_at_k=fmean(float(count > 0) for count in counts),
        num_samples=samples * len(counts),
        num_failed=num_failed,
        costs=dict(costs),
        per_task=tuple(
            TaskResult(task_id=f"t{task}", num_correct=count, num_samples=samples, num_tokens=100)
            for task, count in enumerate(counts)
        ),
    )
