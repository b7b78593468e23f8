"""The table of named objectives."""

from __future__ import annotations

import pytest

from srpo_envs.errors import ConfigError, UnknownIdError
from srpo_train.objective import ESTIMATORS, PRESETS, Objective, preset


def test_every_preset_is_named_after_its_key_and_uses_a_registered_estimator():
    expected = (
        "srpo srpo_none srpo_mean grpo dr_mas dr_mas_trajectory at_grpo magrpo gspo dapo rloo gigpo reinforce ppo"
    )
    assert list(PRESETS) == expected.split()
    for name, objective in PRESETS.items():
        assert objective.name == name
        assert objective.advantage.estimator in ESTIMATORS


def test_srpo_is_the_default_objective_and_its_ablations_differ_in_scaling_only():
    assert PRESETS["srpo"] == Objective()
    assert preset("srpo_none", name="srpo", scaling="sqrt") == PRESETS["srpo"]
    assert preset("srpo_mean", name="srpo", scaling="sqrt") == PRESETS["srpo"]


def test_overrides_reach_both_levels_and_leave_the_table_alone():
    changed = preset("srpo", clip_high=0.28, group_key=("group", "event_type", "turn"), std_floor=1e-4)
    assert changed.clip_high == 0.28
    assert changed.advantage.group_key == ("group", "event_type", "turn")
    assert changed.advantage.std_floor == 1e-4
    assert PRESETS["srpo"].clip_high == 0.2


def test_unknown_names_and_values_are_refused_with_the_nearest():
    with pytest.raises(UnknownIdError, match="did you mean 'srpo_mean'"):
        preset("srpo_meen")
    with pytest.raises(ConfigError, match="no field 'clip_hi'; did you mean 'clip_high'"):
        preset("srpo", clip_hi=0.3)
    with pytest.raises(ConfigError, match=r"'scaling': expected one of .*got 'half'"):
        preset("srpo", scaling="half")
    with pytest.raises(ConfigError, match="'dual_clip'"):
        preset("srpo", dual_clip=1.0)
