"""Watches each step's metrics for quiet failures: training that runs and teaches nothing, or the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator

from srpo_train.metrics import Values

ENGINE_GAP_BOUND = 0.1
"""Nats per token. Sampling and training disagree by about 1e-5 in float32 and 0.02 in bfloat16, with stale or damaged
weights by whole nats."""

ENGINE_CLIP_BOUND = 0.05
"""Share of units. Beyond it, what the clip would cut off is the difference of two programs, not a change of policy."""


class Monitor:
    """Turns a step's metrics into warnings; each is given when its trouble begins and again after it has gone away.

    Args:
        engine_gap_bound: Largest ``train/engine_gap`` that is taken for rounding.
        engine_clip_bound: Largest ``train/engine_clip_share`` that goes without a word.

    Example:
        >>> Monitor().check({"rollout/reward_std": 0.0, "rollout/reward_mean": 0.0})[0][:38]
        'every episode of the step has reward 0'
    """

    def __init__(
        self, engine_gap_bound: float = ENGINE_GAP_BOUND, engine_clip_bound: float = ENGINE_CLIP_BOUND
    ) -> None:
        self._engine_gap_bound = engine_gap_bound
        self._engine_clip_bound = engine_clip_bound
        self._ongoing: set[str] = set()

    def check(self, values: Values) -> list[str]:
        """Return the warnings that are new with this step."""
        found = dict(self._troubles(values))
        new = [message for kind, message in found.items() if kind not in self._ongoing]
        self._ongoing = set(found)
        return new

    def _troubles(self, values: Values) -> Iterator[tuple[str, str]]:
        """Yield (kind, message) for everything that is wrong now."""
        if values.get("rollout/reward_std") == 0.0:
            reward = values.get("rollout/reward_mean", 0.0)
            yield (
                "reward",
                f"every episode of the step has reward {reward:g}: it teaches nothing beyond penalties; where this "
                f"lasts, the reward is constant, or the tasks are too hard or too easy for the policy",
            )
        elif 0 < values.get("train/num_events", 0) == values.get("train/num_zero_advantage_events"):
            yield (
                "advantage",
                "every advantage of the step is 0, so nothing is learned: no comparison group holds two different "
                "returns; rollout.group_size may be too small, or objective.group_key too fine",
            )
        for name, value in values.items():
            if name.startswith("rollout/valid_rate/") and value == 0.0:
                role = name.rsplit("/", 1)[1]
                yield name, f"no response of role {role!r} could be parsed; look at one with `srpo audit RUN --table`"
        gap = values.get("train/engine_gap", 0.0)
        if not gap <= self._engine_gap_bound:  # also when it is not a number
            yield (
                "engine_gap",
                f"before the update, trainer and engine disagree by {gap:.3g} nats a token (bound "
                f"{self._engine_gap_bound:g}): the engine may sample from stale or damaged weights",
            )
        share = values.get("train/engine_clip_share", 0.0)
        if share > self._engine_clip_bound:
            yield (
                "engine_clip",
                f"before the update, the ratio of trainer to engine alone lies outside the clip for {share:.1%} of the "
                f"units (bound {self._engine_clip_bound:.0%}): the clip does not see it, for the trainer scores the "
                f"old log-probs itself, but these samples are not quite the policy's own; give engine and trainer the "
                f"same number format (float32 is the closest), or weigh the samples with objective.correction",
            )
        if values.get("train/num_nonfinite_steps", 0):
            yield "nonfinite", "an optimiser step was skipped: its loss or gradient is not finite"
        if values.get("train/first_clip_fraction", 0.0):
            yield "first_clip", "units were clipped at the first update of a step, where every ratio should be 1"
