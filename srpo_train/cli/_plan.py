"""How ``srpo train --dry-run`` shows a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from srpo_train.plan import Plan

_WHEN = {"always": "always", "update": "in updates", "pass": "in its passes", "rollout": "in rollouts"}


def show_plan(console: Console, plan: Plan) -> None:
    """Print a plan as tables, and what to know before the run."""
    for title, table in (
        ("policies", _policies(plan)),
        ("engines", _engines(plan)),
        ("memory (estimate)", _memory(plan)),
        ("each step", _step(plan)),
        ("run", _run(plan)),
    ):
        console.print(f"[bold]{title}[/bold]")
        console.print(table)
        console.print()
    for note in plan.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}")


def _policies(plan: Plan) -> Table:
    table = _table("policy", "model", "parameters", "trained", "how", "format", "device", "roles")
    for policy in plan.trainer:
        table.add_row(
            policy.policy_id,
            escape(policy.source),
            _count(policy.num_parameters),
            _count(policy.num_trained),
            policy.training,
            str(policy.dtype).removeprefix("torch."),
            policy.device,
            ", ".join(policy.roles),
        )
    return table


def _engines(plan: Plan) -> Table:
    table = _table("engine", "policies", "where", "of each GPU")
    for engine in plan.engines:
        share = "" if engine.gpu_share is None else f"{engine.gpu_share:.0%}"
        table.add_row(engine.kind, ", ".join(engine.policy_ids), ", ".join(engine.places), share)
    return table


def _memory(plan: Plan) -> Table:
    table = Table("device", "what", "when", Column("GiB", justify="right"), box=None, pad_edge=False)
    for device in plan.devices:
        for item in plan.memory:
            if item.device == device:
                table.add_row(device, escape(item.what), _WHEN[item.phase], _gib(item.num_bytes))
        table.add_row(device, "[bold]at most at once[/bold]", "", f"[bold]{_gib(plan.peak_bytes(device))}[/bold]")
    return table


def _step(plan: Plan) -> Table:
    step = plan.step
    return _pairs(
        ("episodes", _count(step.num_episodes)),
        ("events", f"at most {_count(step.max_events)}"),
        ("responses", f"at most {_count(step.max_responses)}"),
        ("sampled tokens", f"at most {_count(step.max_new_tokens)}"),
        ("tokens of one response", f"at most {_count(step.longest_response)}"),
        ("optimiser steps", _count(step.num_updates)),
    )


def _run(plan: Plan) -> Table:
    train, evaluation = plan.recipe.train, plan.recipe.eval
    episodes = evaluation.num_tasks * evaluation.samples_per_task
    return _pairs(
        ("environment", plan.recipe.env.id),
        ("questions", _count(plan.num_tasks)),
        ("training steps", _count(train.num_steps)),
        ("token budget", _count(train.token_budget) if train.token_budget else "none"),
        ("checkpoints", f"every {train.checkpoint_every} steps, {train.keep_last} kept"),
        ("one checkpoint, GiB", _gib(plan.checkpoint_bytes)),
        ("evaluations", f"every {evaluation.every} steps, {episodes:,} episodes" if evaluation.every else "none"),
        ("run directory", str(plan.recipe.run_dir)),
    )


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, header_style="dim", pad_edge=False)


def _pairs(*rows: tuple[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _gib(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown"
    gib = num_bytes / 2**30
    return f"{gib:,.2f}" if gib >= 0.1 else f"{gib:.4f}"
