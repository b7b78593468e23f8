"""Named objectives: SRPO, its ablations and the baselines, as rows of one table of choices.

How they differ from the papers they are named after is told in `methods`. All of them run over the same events and
through the same training function.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from srpo_envs.errors import ConfigError, UnknownIdError, near_miss
from srpo_train.objective.spec import AdvantageSpec, Objective

_TRAJECTORY = AdvantageSpec(estimator="trajectory_relative", group_key=("group",))
_DR_MAS = AdvantageSpec(estimator="row_relative", group_key=("group", "agent"), singleton="raw")
_TOKEN_PPO: dict[str, Any] = {"unit": "token", "reduction": "token", "dual_clip": 3.0}
_SCORE_FUNCTION: dict[str, Any] = {"unit": "set", "scaling": "none", "form": "linear"}

_SRPO = Objective(name="srpo")

PRESETS: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        _SRPO,
        replace(_SRPO, name="srpo_none", scaling="none"),
        replace(_SRPO, name="srpo_mean", scaling="mean"),
        Objective(name="grpo", advantage=_TRAJECTORY, **_TOKEN_PPO),
        Objective(name="dr_mas", advantage=_DR_MAS, **_TOKEN_PPO),
        Objective(name="dr_mas_trajectory", advantage=replace(_DR_MAS, weighting="trajectory"), **_TOKEN_PPO),
        Objective(
            name="at_grpo",
            advantage=AdvantageSpec(estimator="row_relative", group_key=("group", "turn", "agent")),
            **_TOKEN_PPO,
        ),
        Objective(
            name="magrpo",
            advantage=AdvantageSpec(estimator="mean_relative", group_key=("group", "turn")),
            **_SCORE_FUNCTION,
        ),
        Objective(
            name="gspo",
            advantage=_TRAJECTORY,
            unit="sequence",
            length_normalized=True,
            clip_low=3e-4,
            clip_high=4e-4,
            reduction="row",
        ),
        Objective(
            name="dapo", advantage=_TRAJECTORY, unit="token", clip_high=0.28, reduction="token", drop_uniform=True
        ),
        Objective(
            name="rloo",
            advantage=AdvantageSpec(estimator="leave_one_out", group_key=("group",)),
            unit="sequence",
            form="linear",
            reduction="row",
        ),
        Objective(
            name="gigpo",
            advantage=AdvantageSpec(estimator="gigpo", group_key=("group",), gamma=0.95),
            **_TOKEN_PPO,
        ),
        Objective(
            name="reinforce",
            advantage=AdvantageSpec(estimator="mean_relative", group_key=()),
            **_SCORE_FUNCTION,
        ),
        Objective(
            name="ppo",
            advantage=AdvantageSpec(estimator="gae", gae_lambda=0.95, whiten=True),
            unit="token",
            reduction="token",
        ),
    )
}


def preset(name: str, /, **overrides: Any) -> Objective:
    """Look up a named objective and change some of its fields.

    Args:
        name: a key of `PRESETS`.
        overrides: fields of `Objective` or, their names being distinct, of its `AdvantageSpec`.

    Returns:
        The objective; the table is not changed.

    Raises:
        UnknownIdError: no preset of that name.
        ConfigError: an override names no field, or gives it a value it cannot have.

    Example:
        >>> preset("srpo", clip_high=0.28, group_key=("group", "event_type", "turn")).clip_high
        0.28
    """
    if name not in PRESETS:
        raise UnknownIdError(f"no objective preset {name!r}{near_miss(name, PRESETS)}")
    outer, inner = ({item.name for item in fields(kind)} for kind in (Objective, AdvantageSpec))
    for key in overrides:
        if key not in outer | inner:
            raise ConfigError(f"objective {name!r} has no field {key!r}{near_miss(key, outer | inner)}")
    base = PRESETS[name]
    inner_changes = {key: value for key, value in overrides.items() if key in inner}
    outer_changes = {key: value for key, value in overrides.items() if key in outer}
    return replace(base, **({"advantage": replace(base.advantage, **inner_changes)} | outer_changes))
