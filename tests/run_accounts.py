"""What became of every episode that a training run began, counted from what the run left behind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.audit import audit_run
from srpo_envs.records import Episode, Event, read_episodes
from srpo_train.metrics import read_metrics, without_timing


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Episodes and events of a whole run."""

    begun: int
    trained: int
    failed: int
    expired: int
    recollected: int
    events: int
    twice: int


def stored(run_dir: Path, step: int) -> list[Episode]:
    return list(read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl"))


def assert_same_run(run_dir: Path, other: Path) -> None:
    """Require the same metrics, events and last weights, bit for bit."""
    lines, others = ([without_timing(line) for line in read_metrics(each)] for each in (run_dir, other))
    assert lines == others
    for step in (int(line["step"]) for line in lines if line["step"]):
        assert [untimed(episode) for episode in stored(run_dir, step)] == [
            untimed(episode) for episode in stored(other, step)
        ]
    weights = sorted((other / "checkpoints").glob("step-*/*/*.safetensors"))
    assert weights
    for path in weights:
        assert (run_dir / path.relative_to(other)).read_bytes() == path.read_bytes()


def untimed(episode: Episode) -> Episode:
    """Return an episode without what a clock wrote."""

    def without_clock(event: Event) -> Event:
        members = tuple(dataclasses.replace(member, timings={}) for member in event.members)
        calls = tuple(dataclasses.replace(call, duration_s=0.0) for call in event.tool_calls)
        return dataclasses.replace(event, members=members, tool_calls=calls)

    return dataclasses.replace(episode, events=tuple(map(without_clock, episode.events)))


def accounts_of(run_dir: Path, *, per_step: int, num_steps: int) -> Accounts:
    """Count, and require that nothing was trained on twice or lost without being counted.

    Args:
        run_dir: A run that stored all its events and is complete.
        per_step: Episodes that each of its steps begins.
        num_steps: Steps it has taken.
    """
    lines = {line["step"]: line for line in read_metrics(run_dir) if line["step"]}
    assert sorted(lines) == list(range(1, num_steps + 1))
    assert not list(run_dir.rglob("*.partial"))
    counts: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for step, line in lines.items():
        episodes = stored(run_dir, step)
        assert len(episodes) == line["rollout/num_episodes"]
        assert len(episodes) + line["rollout/num_failed_episodes"] + line["rollout/num_surplus_episodes"] == per_step
        of_step = [event.event_id for episode in episodes for event in episode.events]
        left_out = ("rollout/num_incomplete_events", "train/num_overlong_events", "train/num_uniform_events")
        assert line["train/num_events"] + sum(line[name] for name in left_out) == len(of_step)
        events.update(of_step)
        counts["trained"] += len(episodes)
        for name in ("failed", "expired"):
            counts[name] += int(line[f"rollout/num_{name}_episodes"])
        counts["recollected"] += int(line.get("rollout/num_recollected_episodes", 0))
    report = audit_run(run_dir, replay=True)
    assert report.is_ok, report.summary()
    twice = sum(number - 1 for number in events.values())
    assert twice == 0
    accounts = Accounts(
        begun=per_step * num_steps,
        trained=counts["trained"],
        failed=counts["failed"],
        expired=counts["expired"],
        recollected=counts["recollected"],
        events=len(events),
        twice=twice,
    )
    print(accounts)
    return accounts
