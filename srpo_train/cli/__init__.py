"""The command line ``srpo``: one thin file per command, heavy imports inside them, errors as one clear line."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from srpo_train.cli._errors import guarded
from srpo_train.cli._plugins import add_plugins
from srpo_train.cli.alarms import alarms
from srpo_train.cli.audit import audit
from srpo_train.cli.benchmarks import benchmarks
from srpo_train.cli.budget_curve import budget_curve
from srpo_train.cli.compare import compare
from srpo_train.cli.dynamics import dynamics
from srpo_train.cli.envs import envs
from srpo_train.cli.eval import evaluate
from srpo_train.cli.make_tiny_policy import make_tiny_policy
from srpo_train.cli.play import play
from srpo_train.cli.presets import presets
from srpo_train.cli.replay import replay
from srpo_train.cli.report import report
from srpo_train.cli.serve_policy import serve_policy
from srpo_train.cli.simulate import simulate
from srpo_train.cli.study import study
from srpo_train.cli.sweep import sweep
from srpo_train.cli.trace import trace
from srpo_train.cli.train import train
from srpo_train.cli.view import view

__all__ = ["app", "main"]

app = typer.Typer(
    name="srpo",
    help="Teams of language models in shared environments, trained with Setwise Relative Policy Optimization.",
    epilog=(
        "Begin with `srpo envs`, play one with `srpo play ArithmeticSolverVerifier-v0`, "
        "then `srpo train recipes/tiny-arithmetic.toml`."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def _settings(
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show what is only informative.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.INFO if is_verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def _examples(*commands: str) -> str:
    """The epilog of a command: examples that can be copied."""
    return "Examples:\n\n" + "\n\n".join(f"`{command}`" for command in commands)


app.command(
    "train",
    epilog=_examples(
        "srpo train recipes/tiny-arithmetic.toml",
        "srpo train recipes/tiny-arithmetic.toml --set optim.lr=1e-4 --set objective.scaling=none --name no-scaling",
        "srpo train recipes/tiny-arithmetic.toml --resume",
        "srpo train recipes/math-qwen3-4b.toml --dry-run",
    ),
)(guarded(train))
app.command(
    "study", epilog=_examples("srpo study studies/tiny.toml --dry-run", "srpo study studies/tiny.toml --seeds 0")
)(guarded(study))
app.command(
    "sweep",
    epilog=_examples(
        "srpo sweep sweeps/ablations-arithmetic.toml",
        "srpo sweep recipes/tiny-arithmetic.toml --grid objective.scaling=sqrt,none,mean --seeds 0,1",
        "srpo sweep sweeps/ablations-arithmetic.toml --dry-run",
    ),
)(guarded(sweep))
app.command(
    "eval",
    epilog=_examples(
        "srpo eval runs/math --benchmarks math500,aime24 --samples 16 --seeds 0,1,2",
        "srpo eval runs/tiny-arithmetic --limit 256 --samples 4",
        "srpo eval builtin:tiny-team --env ArithmeticSolverVerifier-v0 --split test --arg level=3",
        "srpo eval 'http://127.0.0.1:8000/v1?model=qwen' --env ArithmeticSolverVerifier-v0 --split test",
        "srpo eval agent:my_agents:solve --env ArithmeticSolverVerifier-v0 --split test",
    ),
)(guarded(evaluate))
app.command("compare", epilog=_examples("srpo compare runs/grpo/evals/math runs/srpo/evals/math"))(guarded(compare))
app.command(
    "benchmarks",
    epilog=_examples("srpo benchmarks", "srpo benchmarks --check math500 --path math500.jsonl"),
)(guarded(benchmarks))
app.command(
    "budget-curve",
    epilog=_examples(
        "srpo budget-curve builtin:tiny-team --env ArithmeticSolverVerifier-v0 --env ArithmeticSingleAgent-v0 "
        "--label team --label single --split test --budgets 32,48,64,96",
        "srpo budget-curve runs/team runs/single --budgets 64,128,256 --samples 16 --seeds 0,1,2",
    ),
)(guarded(budget_curve))
app.command(
    "play",
    epilog=_examples(
        "srpo play ArithmeticSolverVerifier-v0",
        "srpo play ArithmeticSolverVerifier-v0 --policy builtin:tiny-team",
        "srpo play ArithmeticSolverVerifier-v0 --policy runs/tiny-arithmetic --as verifier",
    ),
)(guarded(play))
app.command(
    "audit", epilog=_examples("srpo audit runs/tiny-arithmetic --replay", "srpo audit runs/tiny-arithmetic --table")
)(guarded(audit))
app.command(
    "replay",
    epilog=_examples(
        "srpo replay runs/tiny-arithmetic --episode step79/p0/g0",
        "srpo replay runs/tiny-arithmetic --episode step79/p0/g0 --branch 1",
    ),
)(guarded(replay))
app.command(
    "alarms",
    epilog=_examples("srpo alarms runs/tiny-arithmetic", "srpo alarms runs/* --set validation_cliff.drop=0.05"),
)(guarded(alarms))
app.command("trace", epilog=_examples("srpo trace runs/tiny-arithmetic", "srpo trace runs/tiny-arithmetic --step 12"))(
    guarded(trace)
)
app.command(
    "view",
    epilog=_examples(
        "srpo view",
        "srpo view runs/srpo runs/grpo --port 8700 --no-browser",
        "srpo view runs/tiny-arithmetic --terminal -q 'is:malformed'",
    ),
)(guarded(view))
app.command("envs", epilog=_examples("srpo envs", "srpo envs ArithmeticSolverVerifier-v0"))(guarded(envs))
app.command("presets", epilog=_examples("srpo presets", "srpo presets dr_mas"))(guarded(presets))
app.command(
    "report",
    epilog=_examples(
        "srpo report runs/tiny-arithmetic",
        "srpo report runs/tiny-arithmetic --html",
        "srpo report runs/srpo-0 runs/srpo-1 runs/grpo-0 runs/grpo-1 --html --latex --x tokens",
        "srpo report runs/a/evals/math evals/baseline --label evals/baseline='Qwen3-4B, untrained' --out tables",
    ),
)(guarded(report))
app.command(
    "dynamics",
    epilog=_examples("srpo dynamics runs/tiny-arithmetic", "srpo dynamics runs/a runs/b --x tokens --out figures"),
)(guarded(dynamics))
app.command(
    "serve-policy",
    epilog=_examples(
        "srpo serve-policy Qwen/Qwen3-4B --port 8000",
        "srpo serve-policy runs/tiny-arithmetic --step 40 --port 0",
        "srpo serve-policy my-model --max-model-len 16384 -- --tensor-parallel-size 2",
    ),
)(guarded(serve_policy))
app.command(
    "simulate",
    epilog=_examples(
        "srpo simulate --gpus 8,64,512 --prompts-per-gpu 2",
        "srpo simulate --set gpus=256 --set episodes.sigma_tokens=1.5 --mode 'in turn' --mode 'lag 2'",
        "srpo simulate --run runs/tiny-arithmetic --gpus 8 --out figures",
    ),
)(guarded(simulate))
app.command("make-tiny-policy", epilog=_examples("srpo make-tiny-policy my-policy --seed 1"))(guarded(make_tiny_policy))
add_plugins(app)


def main() -> None:
    """Run the command line; the entry point of ``srpo``.

    The working directory is importable, as with ``python -m``, so that an environment id may name a module in it.
    """
    sys.path.insert(0, "")
    app()
