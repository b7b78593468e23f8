"""What tests of the evaluation harness share: an environment, an answer by chance, results without clocks."""

from __future__ import annotations

import dataclasses
import random

from factories import boxed

from srpo_train.costs import without_clocks
from srpo_train.evaluation import Results, SeedResult

ENV = "MathSingleAgent-v0"
ROLES = {"*": "p"}


def by_chance(request) -> str:
    """Say 0 or 1, as the seed of the request has it."""
    return boxed(random.Random(request.seed).randint(0, 1))


def untimed(results: Results) -> Results:
    """Results without what a clock measured."""

    def of_seed(found: SeedResult) -> SeedResult:
        return dataclasses.replace(found, costs=without_clocks(found.costs))

    return dataclasses.replace(
        results,
        benchmarks={
            name: dataclasses.replace(found, seeds={seed: of_seed(result) for seed, result in found.seeds.items()})
            for name, found in results.benchmarks.items()
        },
    )
