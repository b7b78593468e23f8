"""A simulated training run: who samples, who trains, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from srpo_envs.errors import ConfigError
from srpo_train.overlap.staleness import Begun, choose, num_admitted
from srpo_train.simulation.clock import Clock
from srpo_train.simulation.fleet import Fleet, SimulatedGroup
from srpo_train.simulation.scenario import Mode, Scenario
from srpo_train.simulation.workload import DrawnWorkload, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a simulated run came to, over its measured steps."""

    mode: str
    """Name of the mode."""
    num_gpus: int
    """GPUs in all."""
    num_rollout_gpus: int
    """Those that sample; all of them where all do both."""
    step_s: float
    """Seconds of a training step."""
    tokens_per_gpu_s: float
    """Sampled tokens that were trained on, per second and GPU."""
    utilisation: float
    """Share of GPU time in which a GPU samples or trains."""
    rollout_idle: float
    """Share of the sampling GPUs' time in which they have nothing to do."""
    train_idle: float
    """Share of the training GPUs' time in which they wait."""
    rows: float
    """Mean number of rows in a decoding step."""
    lag_mean: float
    """Updates between sampling and training, mean over groups."""
    lag_max: int
    """Largest lag."""
    num_lost: int
    """Groups thrown away."""


class SimulatedRun:
    """One run of a scenario in a mode.

    Args:
        scenario: The cluster and the work.
        mode: Who waits for whom.
        num_rollout_gpus: GPUs that sample; the others train.
        workload: Where episodes come from; None draws them as the scenario says.

    Raises:
        ConfigError: no GPU is left to train, or too few sample for one engine.
    """

    def __init__(self, scenario: Scenario, mode: Mode, num_rollout_gpus: int, workload: Workload | None = None) -> None:
        self._scenario = scenario
        self._mode = mode
        self._num_rollout_gpus = scenario.gpus if mode.is_colocated else num_rollout_gpus
        self._num_train_gpus = scenario.gpus if mode.is_colocated else scenario.gpus - num_rollout_gpus
        self._require_both()
        self._clock = Clock()
        self._rng = np.random.default_rng([scenario.seed, 1])
        workload = workload or DrawnWorkload(**scenario.episodes.model_dump())
        self._fleet = Fleet(
            self._clock, scenario, workload, self._num_rollout_gpus, self._take_group, in_rounds=mode.in_rounds
        )
        self._begun: dict[int, SimulatedGroup] = {}  # by position, from their beginning to the end of their update
        self._in_update: set[int] = set()
        self._version = self._published = self._arrived = 0
        self._is_pushing = self._is_training = False
        self._num_batches = 0  # begun, where a batch is over before weights are pushed
        self._num_left = scenario.prompts_per_step  # groups that the current training step has yet to take
        self._lags: list[int] = []
        self._train_s = 0.0
        self._num_trained_tokens = 0
        self._num_lost = 0
        self._num_complete = 0  # groups that are not in an update

    def outcome(self) -> Outcome:
        """Simulate the steps before the measured ones, then these, and report."""
        scenario, fleet, clock = self._scenario, self._fleet, self._clock
        self._go_on()
        clock.run(lambda: self._version >= scenario.warmup_steps)
        begun_s, train_s, lost = clock.now, self._train_s, self._num_lost
        busy_s, row_s = self._engine_seconds()
        self._lags.clear()
        self._num_trained_tokens = 0
        clock.run(lambda: self._version >= scenario.warmup_steps + scenario.num_steps)
        wall_s, train_s = clock.now - begun_s, self._train_s - train_s
        busy_s, row_s = (now - then for now, then in zip(self._engine_seconds(), (busy_s, row_s), strict=True))
        used = busy_s * scenario.engine.gpus + train_s * self._num_train_gpus
        return Outcome(
            mode=self._mode.name,
            num_gpus=scenario.gpus,
            num_rollout_gpus=self._num_rollout_gpus,
            step_s=wall_s / scenario.num_steps,
            tokens_per_gpu_s=self._num_trained_tokens / wall_s / scenario.gpus,
            utilisation=used / wall_s / scenario.gpus,
            rollout_idle=max(0.0, 1 - busy_s / wall_s / len(fleet.replicas)),
            train_idle=max(0.0, 1 - train_s / wall_s),  # an update that began before the measured time counts whole
            rows=row_s / max(busy_s, 1e-9),
            lag_mean=float(np.mean(self._lags)),
            lag_max=max(self._lags),
            num_lost=self._num_lost - lost,
        )

    def _require_both(self) -> None:
        """Refuse a cluster that lacks engines or trainers: it would never take a step."""
        expected = self._scenario.engine.gpus
        if self._num_rollout_gpus >= expected and self._num_train_gpus >= 1:
            return
        raise ConfigError(
            f"mode {self._mode.name!r} on a cluster of {self._scenario.gpus} GPUs, of which {self._num_rollout_gpus} "
            f"sample and {self._num_train_gpus} train: expected at least {expected} that sample (engine.gpus, one "
            "engine) and 1 that trains; simulate more GPUs, another share that samples, or 'in turn', where all do both"
        )

    def _engine_seconds(self) -> tuple[float, float]:
        for replica in self._fleet.replicas:
            replica.stall(0.0)  # brings its counts to the present
        return sum(r.busy_s for r in self._fleet.replicas), sum(r.row_s for r in self._fleet.replicas)

    def _go_on(self) -> None:
        """Begin what may be begun now; called whenever something has changed."""
        if self._mode.straddle == "nothing":
            self._begin_batch()
        else:
            self._push_beside()
            self._admit()
        self._train()

    # --- rollouts -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        group = self._fleet.begin(self._published)
        self._begun[group.position] = group

    def _take_group(self, group: SimulatedGroup) -> None:
        if self._rng.random() < self._scenario.lost_share:
            del self._begun[group.position]
            self._num_lost += 1
            if self._mode.straddle == "nothing":
                self._begin()
        else:
            self._num_complete += 1
        self._go_on()

    def _admit(self) -> None:
        if self._is_pushing and self._mode.straddle == "episodes":
            return
        for _ in range(
            num_admitted(
                len(self._begun),
                per_step=self._scenario.prompts_per_step,
                max_lag=self._mode.max_lag,
                lead=self._version - self._published,
            )
        ):
            self._begin()

    def _begin_batch(self) -> None:
        """Begin the next batch with weights of exactly the largest lag, when the one before is over."""
        needed = max(0, self._num_batches - self._mode.max_lag)
        is_sampling = any(not group.is_complete for group in self._begun.values())
        if is_sampling or self._is_pushing or self._arrived < needed:
            return
        if self._published < needed:
            self._is_pushing = True
            self._clock.after(self._scenario.push.swap_s, lambda: self._end_push(needed))
            return
        self._num_batches += 1
        for _ in range(self._scenario.prompts_per_step):
            self._begin()

    # --- weights --------------------------------------------------------------------------------------------------

    def _push_beside(self) -> None:
        """Push the newest weights while episodes are under way."""
        if self._is_pushing or self._arrived == self._published:
            return
        self._is_pushing = True
        if self._mode.straddle == "requests":
            self._swap()
        else:
            self._fleet.drain(self._swap)

    def _swap(self) -> None:
        newest, swap_s = self._arrived, self._scenario.push.swap_s
        self._fleet.stall(swap_s)
        self._clock.after(swap_s, lambda: self._end_push(newest))

    def _end_push(self, version: int) -> None:
        self._published = version
        self._is_pushing = False
        self._fleet.release()
        self._go_on()

    def _arrive(self, version: int) -> None:
        self._arrived = version
        self._go_on()

    # --- updates --------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Begin the next part of an update, if its groups are there."""
        scenario, mode = self._scenario, self._mode
        if self._is_training:
            return
        num_parts = scenario.num_minibatches if mode.early_start else 1
        wanted = min(self._num_left, -(-scenario.prompts_per_step // num_parts))
        if self._num_complete < wanted:
            return
        begun = [
            Begun(position=position, version=group.version, is_complete=group.is_complete)
            for position, group in self._begun.items()
            if position not in self._in_update
        ]
        chosen = choose(
            begun,
            num_wanted=wanted,
            num_left=self._num_left - wanted,
            per_step=scenario.prompts_per_step,
            version=self._version,
            max_lag=mode.max_lag,
        )
        if chosen is None:
            return
        groups = [self._begun[group.position] for group in chosen]
        self._num_complete -= wanted
        self._in_update |= {group.position for group in groups}
        self._num_left -= wanted
        self._is_training = True
        work_s = sum(group.num_row_tokens for group in groups) * scenario.update.gpu_s_per_token / self._num_train_gpus
        update_s = work_s + scenario.update.step_s * scenario.num_minibatches / num_parts
        self._clock.after(update_s, lambda: self._end_part(groups, update_s))

    def _end_part(self, groups: list[SimulatedGroup], update_s: float) -> None:
        self._is_training = False
        self._train_s += update_s
        self._lags += [self._version - group.version for group in groups]
        self._num_trained_tokens += sum(group.num_tokens for group in groups)
        if not self._num_left:
            self._end_update()
        self._go_on()

    def _end_update(self) -> None:
        for position in self._in_update:
            del self._begun[position]
        self._in_update.clear()
        self._num_left = self._scenario.prompts_per_step
        self._version = version = self._version + 1
        self._clock.after(self._scenario.push.transfer_s, lambda: self._arrive(version))


def simulate(
    scenario: Scenario, mode: Mode, num_rollout_gpus: int | None = None, workload: Workload | None = None
) -> Outcome:
    """Simulate a run, with the best division of the GPUs unless one is given.

    Args:
        scenario: The cluster and the work.
        mode: Who waits for whom.
        num_rollout_gpus: GPUs that sample; None looks for the number with the most tokens a second.
        workload: Where episodes come from; None draws them as the scenario says.

    Raises:
        ConfigError: no GPU is left to train, or too few sample for one engine.
    """
    if mode.is_colocated or num_rollout_gpus is not None:
        num_gpus = scenario.gpus if num_rollout_gpus is None else num_rollout_gpus
        return SimulatedRun(scenario, mode, num_gpus, workload).outcome()
    outcomes: dict[int, Outcome] = {}

    def speed(num_gpus: int) -> float:
        if num_gpus not in outcomes:
            outcomes[num_gpus] = SimulatedRun(scenario, mode, num_gpus, workload).outcome()
        return outcomes[num_gpus].tokens_per_gpu_s

    unit = min(scenario.engine.gpus, scenario.gpus)
    return outcomes[unit * _highest(lambda number: speed(unit * number), 1, max(1, (scenario.gpus - 1) // unit))]


def _highest(value: Callable[[int], float], low: int, high: int) -> int:
    """Return where a function with one summit is highest, to a few hundredths of the range."""
    stride = (high - low) / 5
    best = max(sorted({round(low + stride * place) for place in range(6)}), key=value)
    while stride > max(1.0, 0.05 * high):
        stride /= 2
        nearby = {min(max(round(best + sign * stride), low), high) for sign in (-1, 0, 1)}
        best = max(sorted(nearby), key=value)
    return best
