"""The viewer on a run of many episodes: how long the index takes to build and to catch up, and pages to be answered.

The run is synthetic: steps of 500 episodes, each of four events and six responses of 40 tokens, about a gigabyte in all.
``--episodes N`` makes another number of them, ``--keep DIR`` keeps the run for `srpo view`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from srpo_train.viewer.index import EpisodeIndex
from srpo_train.viewer.search import find, label_counts, parse_query
from srpo_train.viewer.timeline import build_timeline

STEP_EPISODES = 500
WORDS = [
    f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "te", "so") for second in ("ra", "bo", "li", "du", "pe")
]
QUERIES = {
    "first page": ("", "newest", 0.0),
    "page in the middle": ("", "newest", 0.5),
    "last page": ("", "newest", 1.0),
    "worst reward first": ("", "worst", 0.0),
    "malformed": ("is:malformed", "newest", 0.0),
    "reward and role": ("reward<0.5 role:aggregator", "newest", 0.5),
    "malformed reason": ('reason:"no boxed answer"', "newest", 0.0),
    "one policy version": ("version:40", "newest", 0.0),
    "one task": ("task:task/77", "newest", 0.0),
    "two words": ("kara milidu", "newest", 0.0),
    "a word and a range": ("sopemi step:10..90", "longest", 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        run_dir = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        num_steps = max(1, options.episodes // STEP_EPISODES)
        write_run(run_dir, num_steps)
        measure(run_dir, num_steps)


def measure(run_dir: Path, num_steps: int) -> None:
    size = sum(path.stat().st_size for path in (run_dir / "events").iterdir())
    print(f"{num_steps * STEP_EPISODES:,} episodes, {size / 1e9:.2f} GB of log\n")
    print("| what | time |\n| :--- | ---: |")
    index = EpisodeIndex(run_dir)
    show("build the index", once(index.update), f" ({size / 1e6 / max(once.last, 1e-9):.0f} MB/s)")
    show("open it again", once(lambda: EpisodeIndex(run_dir)))
    show("look for news, none there", often(index.update))
    write_step(run_dir, num_steps + 1)
    show(f"take in a step of {STEP_EPISODES}", once(index.update))
    for name, (text, sort, share) in QUERIES.items():
        query = parse_query(text)
        total = find(index, query, limit=0).total
        ask = lambda: find(index, query, sort=sort, offset=int(share * max(0, total - 100)), limit=100)  # noqa: B023, E731
        show(name, often(ask), f" ({total:,} found)")
    show("counts of every filter", often(lambda: label_counts(index)))
    names = [row["episode_id"] for row in find(index, parse_query("")).rows]
    show("an episode from the log as a time line", often(lambda: build_timeline(index.read(random.choice(names)))))
    taken = sum(path.stat().st_size for path in index.path.parent.iterdir())
    print(f"\nindex: {taken / 1e6:.0f} MB, {taken / size:.1%} of the log")


def write_run(run_dir: Path, num_steps: int) -> None:
    (run_dir / "events").mkdir(parents=True, exist_ok=True)
    with (run_dir / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            line = {
                "step": step,
                "rollout/reward_mean": 1 - 0.99**step,
                "rollout/num_tokens": 120_000,
                "time/step_s": 9.0,
            }
            file.write(json.dumps(line) + "\n")
            write_step(run_dir, step)


def write_step(run_dir: Path, step: int) -> None:
    draw = random.Random(step)
    with (run_dir / f"events/step-{step:06d}.jsonl").open("w") as file:
        for number in range(STEP_EPISODES):
            file.writelines(
                json.dumps(line, separators=(",", ":")) + "\n" for line in episode_lines(step, number, draw)
            )


def episode_lines(step: int, number: int, draw: random.Random) -> Iterator[dict[str, Any]]:
    name, task = f"step{step}/p{number // 8}/g{number % 8}", f"task/{draw.randrange(2000)}"
    reward = float(draw.random() < 0.6)
    ids = {"episode_id": name, "task_id": task, "group_id": f"step{step}/p{number // 8}"}
    yield {
        "schema": 1, "kind": "episode", **ids, "env_id": "Synthetic-v0", "env_kwargs": {}, "seed": number,
        "task": {"task_id": task, "question": f"What is {' '.join(draw.choices(WORDS, k=8))}?", "gold": "1"},
        "events": 4, "reward": reward, "penalty": 0.0, "terminated": True, "truncated": False, "setup_tool_calls": [],
        "info": {"answer": str(draw.randrange(10)), "correct": reward > 0},
    }  # fmt: skip
    for event, (role, cardinality) in enumerate((("solver", 3), ("verifier", 1), ("solver", 1), ("aggregator", 1))):
        yield {
            "schema": 1, "kind": "event", **ids, "event_id": f"{name}/e{event}", "state_id": f"{draw.getrandbits(128):x}",
            "event_type": role, "turn": event // 2, "state_label": "synthetic", "cardinality": cardinality,
            "members": [member(seat, role, step, draw) for seat in range(cardinality)], "reward": 0.0, "penalty": 0.0,
            "team_return": reward, "tool_calls": [], "terminated": event == 3, "truncated": False,
        }  # fmt: skip


def member(seat: int, role: str, step: int, draw: random.Random) -> dict[str, Any]:
    is_malformed = draw.random() < 0.02
    return {
        "member_index": seat, "agent": f"{role}_{seat}", "role": role, "prompt": " ".join(draw.choices(WORDS, k=60)),
        "text": " ".join(draw.choices(WORDS, k=40)), "parsed": None if is_malformed else "1",
        "malformed_reason": "no boxed answer" if is_malformed else "", "policy_id": "team", "policy_version": step - 1,
        "prompt_token_ids": [draw.randrange(9999) for _ in range(60)], "token_ids": [7] * 40,
        "behavior_logprobs": [-draw.random() for _ in range(40)], "token_mask": [1] * 40, "finish_reason": "stop",
        "timings": {},
    }  # fmt: skip


def once(action: Callable[[], object]) -> float:
    """Seconds of one call; also kept as `once.last`."""
    begun = time.perf_counter()
    action()
    once.last = time.perf_counter() - begun
    return once.last


once.last = 0.0  # type: ignore[attr-defined]


def often(action: Callable[[], object], num_calls: int = 15) -> float:
    """Median seconds of a call."""
    return statistics.median(once(action) for _ in range(num_calls))


def show(what: str, seconds: float, note: str = "") -> None:
    shown = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
    print(f"| {what}{note} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
