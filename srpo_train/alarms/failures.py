"""Quiet failures that one step shows: training that runs and teaches nothing, or the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator

from srpo_train.alarms.trouble import Trouble
from srpo_train.metrics import Values

ENGINE_GAP_BOUND = 0.1
"""Nats per token. Sampling and training disagree by about 1e-5 in float32 and 0.02 in bfloat16, with stale or damaged
weights by whole nats."""

ENGINE_CLIP_BOUND = 0.05
"""Share of units. Beyond it, what the clip would cut off is the difference of two programs, not a change of policy."""


def quiet_failures(values: Values) -> Iterator[Trouble]:
    """Yield what is wrong with a step by itself."""
    yield from _no_signal(values)
    yield from _unreadable_roles(values)
    yield from _engine_mismatch(values)
    if values.get("train/num_nonfinite_steps", 0):
        yield Trouble("nonfinite_step", "an optimiser step was skipped: its loss or gradient is not finite")
    if values.get("train/first_clip_fraction", 0.0):
        yield Trouble("first_clip", "units were clipped at the first update of a step, where every ratio should be 1")


def _no_signal(values: Values) -> Iterator[Trouble]:
    if values.get("rollout/reward_std") == 0.0 and values.get("rollout/accuracy") == 1.0:
        yield Trouble(
            "constant_reward",
            "every episode of the step is right, so it teaches nothing: the tasks are learnt, or, where this is so "
            "from the first step on, too easy or graded too kindly",
        )
    elif values.get("rollout/reward_std") == 0.0:
        reward = values.get("rollout/reward_mean", 0.0)
        yield Trouble(
            "constant_reward",
            f"every episode of the step has reward {reward:g}: it teaches nothing beyond penalties; where this "
            f"lasts, the reward is constant, or the tasks are too hard or too easy for the policy",
        )
    elif 0 < values.get("train/num_events", 0) == values.get("train/num_zero_advantage_events"):
        yield Trouble(
            "no_advantage",
            "every advantage of the step is 0, so nothing is learned: no comparison group holds two different "
            "returns; rollout.group_size may be too small, or objective.group_key too fine",
        )


def _unreadable_roles(values: Values) -> Iterator[Trouble]:
    for name, value in values.items():
        if name.startswith("rollout/valid_rate/") and value == 0.0:
            role = name.rsplit("/", 1)[1]
            yield Trouble(
                "unreadable_role",
                f"no response of role {role!r} could be parsed; look at one with `srpo audit RUN --table`",
                role,
            )


def _engine_mismatch(values: Values) -> Iterator[Trouble]:
    gap = values.get("train/engine_gap", 0.0)
    if not gap <= ENGINE_GAP_BOUND:  # also when it is not a number
        yield Trouble(
            "engine_gap",
            f"before the update, trainer and engine disagree by {gap:.3g} nats a token (bound {ENGINE_GAP_BOUND:g}): "
            f"the engine may sample from stale or damaged weights",
        )
    share = values.get("train/engine_clip_share", 0.0)
    if share > ENGINE_CLIP_BOUND and not values.get("train/policy_lag"):  # else what the policy has moved since
        yield Trouble(
            "engine_clip",
            f"before the update, the ratio of trainer to engine alone lies outside the clip for {share:.1%} of the "
            f"units (bound {ENGINE_CLIP_BOUND:.0%}): the clip does not see it, for the trainer scores the "
            f"old log-probs itself, but these samples are not quite the policy's own; give engine and trainer the "
            f"same number format (float32 is the closest), or weigh the samples with objective.correction",
        )
