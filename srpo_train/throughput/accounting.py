"""What one step reports of its throughput, by the names of `srpo_train.metrics.TABLE`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from srpo_envs.records import Episode
from srpo_train.collect import Rollout
from srpo_train.policies.policy import Policy
from srpo_train.throughput.peaks import peak_flops
from srpo_train.throughput.recorder import Phase, Work

UPDATE: tuple[Phase, ...] = ("score", "backward", "optimizer")
"""The phases in which the trainer computes."""

_NOTICED = 1e-3
"""Phases that take a smaller part of the step have no rate worth telling."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What the run computes on.

    Example:
        ``Devices(peak_flops=989e12, num_trainers=8, num_engines=8)``
    """

    peak_flops: float
    """Operations a second of one device of the trainer."""
    num_trainers: int
    """Devices of the trainer."""
    num_engines: int
    """Devices, or servers, that sample."""
    samples_in_process: bool = True
    """Whether engines sample on the trainer's own devices; the speed of others is not known here."""

    @classmethod
    def of(
        cls, policies: Iterable[Policy], *, num_ranks: int, num_servers: int = 0, peak_tflops: float = 0.0
    ) -> Devices:
        """Return the devices of a run with these policies.

        Args:
            policies: The first trained one, or else the first, tells device and number format.
            num_ranks: Processes of the trainer, each with a device.
            num_servers: Servers that sample; 0 where the ranks do.
            peak_tflops: Known speed of a device in Tera-operations a second; 0 looks it up or measures it.
        """
        first = min(policies, key=lambda policy: not policy.is_trainable)
        dtype = first.shards.dtype if first.shards else first.model.dtype
        return cls(
            peak_flops=peak_tflops * 1e12 or peak_flops(first.device, dtype),
            num_trainers=num_ranks,
            num_engines=num_servers or num_ranks,
            samples_in_process=not num_servers,
        )


def sampling_flops(policies: Mapping[str, Policy], episodes: Iterable[Episode]) -> float:
    """Return the operations that sampling the episodes asks for, with each policy's equal prompts computed once."""
    rows: dict[str, list[tuple[Sequence[int], int]]] = defaultdict(list)
    for episode in episodes:
        for event in episode.events:
            for member in event.members:
                if member.policy_id in policies and member.prompt_token_ids:
                    rows[member.policy_id].append((member.prompt_token_ids, len(member.token_ids)))
    return sum(policies[policy_id].flops.sampling(asked).model for policy_id, asked in rows.items())


def throughput_metrics(
    work_by_rank: Sequence[Mapping[str, Work]],
    rollout: Rollout,
    devices: Devices,
    *,
    before: Mapping[str, Work],
    generate_flops: float,
    step_s: float,
    waited_s: float | None = None,
) -> dict[str, float]:
    """Return ``time/...`` and ``perf/...`` of a step.

    Args:
        work_by_rank: What each rank did in it.
        rollout: What was collected for it.
        devices: What it was done on.
        before: What was done since the step before, on this rank.
        generate_flops: What sampling asked for.
        step_s: How long it took.
        waited_s: How long the trainer waited for rollouts that go on beside it; None where it collects and publishes
            itself.
    """
    seconds = {name: max(_work(work, name).seconds for work in work_by_rank) for name in (*UPDATE, "publish")}
    update_s = max(sum(_work(work, name).seconds for name in UPDATE) for work in work_by_rank)
    seconds |= {"generate": rollout.generate_s, "environment": rollout.env_s}
    own_s = sum(seconds.values()) if waited_s is None else sum(seconds[name] for name in UPDATE) + waited_s
    seconds["other"] = max(0.0, step_s - own_s)
    seconds |= {name: _work(before, name).seconds for name in ("evaluate", "checkpoint")}
    update, generate = Work(), Work()
    for work in work_by_rank:
        generate.add(_work(work, "generate"))
        for name in UPDATE:
            update.add(_work(work, name))
    capacity = devices.peak_flops * devices.num_trainers
    num_tokens = sum(episode.num_tokens for episode in rollout.episodes)
    mfu = {"update": _ratio(update.model_flops, update_s * capacity)}
    if devices.samples_in_process:
        mfu["generate"] = _ratio(generate_flops, rollout.generate_s * capacity)
    return {
        **{f"time/{name}_s": seconds[name] for name in (*UPDATE, "publish", "checkpoint", "other")},
        **{f"perf/mfu/{name}": share for name, share in mfu.items()},
        "perf/hfu/update": _ratio(update.hardware_flops, update_s * capacity),
        **{
            f"perf/tokens_per_s/{name}": num_tokens / spent_s / _num_devices(name, devices)
            for name, spent_s in seconds.items()
            if spent_s >= _NOTICED * step_s
        },
        "perf/idle_share/engine": max(0.0, 1.0 - rollout.generate_s / step_s),
        "perf/idle_share/trainer": max(0.0, 1.0 - update_s / step_s),
        **{
            f"perf/padding_share/{name}": 1.0 - work.num_tokens / work.num_slots
            for name, work in (("update", update), ("generate", generate))
            if work.num_slots
        },
    }


def _num_devices(phase: str, devices: Devices) -> int:
    return devices.num_engines if phase in ("generate", "environment") else devices.num_trainers


def _work(work: Mapping[str, Work], name: str) -> Work:
    return work.get(name) or Work()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
