"""Time per check of `is_equivalent` and of math-verify called directly, on the golds of real data sets.

Every gold is graded against a right answer (the gold in another spelling), a wrong one (another row's gold) and a
malformed one (the right answer cut short). Both graders see the same pairs in the same run, in this process and its
workers; math-verify is called as its documentation says, `verify(parse(gold), parse(answer))`.

    python benchmarks/grading.py --data DIR        # or SRPO_DATA/math; DIR holds math500.jsonl, minerva.json ...
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from srpo_envs.grading import close, is_equivalent, stats

Pair = tuple[str, str]

DATA = Path(os.environ.get("SRPO_DATA", "data")) / "math"


def load_golds(folder: Path) -> dict[str, list[str]]:
    """Return the gold answers of every known file in a folder."""
    golds: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
        golds[path.stem] = [gold for row in rows for gold in gold_texts(row["answer"])]
    return golds


def gold_texts(answer: object) -> list[str]:
    """Return the gold texts of one `answer` field: a list, a number, or a text that may end in `#### n`."""
    if isinstance(answer, list):
        return [str(item).strip() for item in answer]
    return [str(answer).split("####")[-1].strip()]


def respelled(gold: str) -> str:
    r"""Return an equal answer in another spelling."""
    if gold.lstrip("-").isdigit():
        return f"{gold}.0"
    return "x = " + gold.replace(r"\frac", r"\dfrac") if gold[0].isalnum() and "=" not in gold else f"${gold}$"


def make_pairs(golds: list[str], source: random.Random) -> dict[str, list[Pair]]:
    """Return right, wrong and malformed answers for every gold."""
    return {
        "right": [(gold, respelled(gold)) for gold in golds],
        "wrong": [(gold, source.choice(golds)) for gold in golds],
        "malformed": [(gold, gold[: max(1, len(gold) // 2)] + r"\frac{") for gold in golds],
    }


def time_checks(check: Callable[[str, str], bool], pairs: list[Pair]) -> list[float]:
    """Return the milliseconds of every check."""
    times = []
    for gold, answer in pairs:
        start = time.perf_counter()
        check(gold, answer)
        times.append((time.perf_counter() - start) * 1000)
    return times


def math_verify_check(gold: str, answer: str) -> bool:
    """Parse both sides and verify with math-verify 0.9."""
    from math_verify import parse, verify

    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


def row(name: str, ours: list[float], theirs: list[float]) -> str:
    """Return one line of the table: medians and 99th percentiles in milliseconds, and the ratio of the medians."""
    cells = [statistics.median(ours), percentile(ours), statistics.median(theirs), percentile(theirs)]
    ratio = cells[2] / cells[0]
    return f"{name:28s} {len(ours):6d} " + " ".join(f"{cell:10.3f}" for cell in cells) + f" {ratio:8.1f}x"


def percentile(times: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(times)[min(len(times) - 1, int(0.99 * len(times)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data sets")
    parser.add_argument("--max-rows", type=int, default=200, help="golds taken from each data set")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"skipped: no data in {args.data}; pass --data with a folder of math500.jsonl, olympiadbench.json, ...")
        return
    if importlib.util.find_spec("math_verify") is None:
        print("skipped: math-verify is not installed; pip install -e '.[bench]'")
        return
    source = random.Random(0)
    total: dict[str, tuple[list[float], list[float]]] = {}
    print(
        f"{'':28s} {'checks':>6s} {'median ms':>10s} {'p99 ms':>10s} {'m-v median':>10s} {'m-v p99':>10s} {'ahead':>8s}"
    )
    math_verify_check("1", "2"), is_equivalent(r"\sin 1", r"\cos 1")
    for name, golds in load_golds(args.data).items():
        chosen = source.sample(golds, min(len(golds), args.max_rows))
        for kind, pairs in make_pairs(chosen, source).items():
            ours, theirs = time_checks(is_equivalent, pairs), time_checks(math_verify_check, pairs)
            all_ours, all_theirs = total.setdefault(kind, ([], []))
            all_ours += ours
            all_theirs += theirs
            print(row(f"{name} {kind}", ours, theirs))
    for kind, (ours, theirs) in total.items():
        print(row(f"all {kind}", ours, theirs))
    print(stats())
    close()


if __name__ == "__main__":
    main()
