"""The viewer on a run of many episodes: how long the index takes to build and to catch up, and pages to be answered.

The run is synthetic: steps of 500 episodes, each of four events and six responses, a gigabyte in all.
Processor time stands beside the clock's, for a busy machine is no fault of the index.
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
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=40)) for seed in range(2000)]
IDS = list(range(100, 140))
LOGPROBS = [-1 / (1 + token) for token in IDS]
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
    "two words": ("kara mili", "newest", 0.0),
    "a word and a range": ("soli step:10..90", "longest", 0.0),
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
    print("| what | clock | processor |\n| :--- | ---: | ---: |")
    index = EpisodeIndex(run_dir)
    show("build the index", timed(index.update, 1))
    show("open it again", timed(lambda: EpisodeIndex(run_dir), 1))
    show("look for news, none there", timed(index.update))
    write_step(run_dir, num_steps + 1)
    show(f"take in a step of {STEP_EPISODES}", timed(index.update, 1))
    for name, (text, sort, share) in QUERIES.items():
        query = parse_query(text)
        total = find(index, query, limit=0).total
        offset = int(share * max(0, total - 100))
        taken = timed(lambda: find(index, query, sort=sort, offset=offset, limit=100))  # noqa: B023
        show(f"{name} ({total:,} found)", taken)
    show("counts of every filter", timed(lambda: label_counts(index)))
    names = [row["episode_id"] for row in find(index, parse_query("")).rows]
    show("an episode from the log as a time line", timed(lambda: build_timeline(index.read(random.choice(names)))))
    taken_bytes = sum(path.stat().st_size for path in index.path.parent.iterdir())
    print(f"\nindex: {taken_bytes / 1e6:.0f} MB, {taken_bytes / size:.1%} of the log")


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
            "schema": 1, "kind": "event", **ids, "event_id": f"{name}/e{event}", "state_id": f"{name}-{event}",
            "event_type": role, "turn": event // 2, "state_label": "synthetic", "cardinality": cardinality,
            "members": [member(seat, role, step, draw) for seat in range(cardinality)], "reward": 0.0, "penalty": 0.0,
            "team_return": reward, "tool_calls": [], "terminated": event == 3, "truncated": False,
        }  # fmt: skip


def member(seat: int, role: str, step: int, draw: random.Random) -> dict[str, Any]:
    is_malformed = draw.random() < 0.02
    return {
        "member_index": seat, "agent": f"{role}_{seat}", "role": role, "prompt": draw.choice(TEXTS),
        "text": draw.choice(TEXTS), "parsed": None if is_malformed else "1",
        "malformed_reason": "no boxed answer" if is_malformed else "", "policy_id": "team", "policy_version": step - 1,
        "prompt_token_ids": IDS, "token_ids": IDS, "behavior_logprobs": LOGPROBS, "token_mask": [1] * len(IDS),
        "finish_reason": "stop", "timings": {},
    }  # fmt: skip


def timed(action: Callable[[], object], num_calls: int = 15) -> tuple[float, float]:
    """Median seconds of a call, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(num_calls):
        begun = time.perf_counter(), time.process_time()
        action()
        clock.append(time.perf_counter() - begun[0])
        processor.append(time.process_time() - begun[1])
    return statistics.median(clock), statistics.median(processor)


def show(what: str, taken: tuple[float, float]) -> None:
    cells = [f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms" for seconds in taken]
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
