"""A small benchmark in a file, an engine that answers it by chance, and evaluations of the one by the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eval_world import ENV, ROLES, by_chance, untimed

from srpo_train.engines.scripted import ScriptedEngine
from srpo_train.evaluation import EvalPlan, World, run_evaluation


@pytest.fixture
def data(tmp_path) -> Path:
    """Four questions whose answer is 1."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"problem": f"What is {n} - {n - 1}?", "answer": "1"}) + "\n" for n in range(4)))
    return path


@pytest.fixture
def make_plan(data):
    def make(*names: str, samples: int = 3, seeds=(0,), limit=None, **fields) -> EvalPlan:
        kwargs = {"dataset": "custom", "path": str(data)}
        return EvalPlan(
            source="by chance",
            method="chance",
            model="none",
            samples=samples,
            seeds=seeds,
            worlds={name: World.open(ENV, kwargs, limit=limit) for name in names or ("own",)},
            **fields,
        )

    return make


@pytest.fixture
def run_plan(tmp_path):
    """Runs a plan and returns results without clocks, folder and engine."""

    def run(plan: EvalPlan, answer=by_chance, folder: str = "eval", **settings):
        engine = answer if hasattr(answer, "generate") else ScriptedEngine("p", answer, respects_limits=False)
        directory = tmp_path / folder
        results = run_evaluation(plan, directory, {"p": engine}, ROLES, **settings)
        return untimed(results), directory, engine

    return run
