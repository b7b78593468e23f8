"""`srpo_train.reporting.drawing`: what is drawn is computed right."""

from __future__ import annotations

from srpo_train.reporting.drawing import legend_name, running_mean


def test_a_running_mean_is_centred_and_keeps_the_ends() -> None:
    # window 3: the ends stand alone, the middle is (1 + 2 + 6) / 3 = 3 and (2 + 6 + 4) / 3 = 4
    assert running_mean([1.0, 2.0, 6.0, 4.0], window=3) == [1.0, 3.0, 4.0, 4.0]
    assert running_mean([0.0, 0.0, 9.0, 0.0, 0.0], window=3) == [0.0, 3.0, 3.0, 3.0, 0.0]
    assert running_mean([]) == []


def test_any_name_has_a_place_in_a_legend() -> None:
    assert [legend_name(name) for name in ("a_b", "_mine", "\x1b[31m$x\ny")] == ["a_b", " mine", "\ufffd[31m$x y"]
