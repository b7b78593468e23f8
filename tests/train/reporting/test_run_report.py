"""`srpo_train.reporting.run_report`: figures from start and end, a picture, one episode's event audit."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest

from srpo_envs.errors import RecordError
from srpo_envs.records import Episode, Event, MemberRecord, write_episodes
from srpo_train.config import load_recipe
from srpo_train.metrics import MetricLogger
from srpo_train.reporting.run_report import write_report

RECIPE = Path(__file__).parents[3] / "recipes/tiny-arithmetic.toml"


def step_values(step: int) -> dict[str, float]:
    return {
        "rollout/accuracy": step / 20,
        "rollout/valid_rate/solver": 0.9,
        "rollout/response_length/solver": 1200.0,
        "rollout/cardinality/solver": 3.0,
        "train/cardinality_mean": 1.5,
        "train/grad_norm": 1.0 / step,
        "train/clip_fraction": 0.0,
        "train/entropy": 0.5,
        "time/generate_s": 3.0,
        "time/env_s": 1.0,
        "time/update_s": 4.0,
        "time/step_s": 10.0,
    }


def make_run(run_dir: Path, num_steps: int, *, with_eval: bool = True) -> Path:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "recipe.toml").write_text(load_recipe(RECIPE, ["name=made-up"]).to_toml())
    with MetricLogger(run_dir) as metrics:
        if with_eval:
            metrics.log(0, {"eval/accuracy": 0.25})
        for step in range(1, num_steps + 1):
            metrics.log(step, step_values(step) | ({"eval/accuracy": 0.875, "time/eval_s": 2.0} if with_eval else {}))
    return run_dir


def make_episode(number: int, num_events: int) -> Episode:
    member = MemberRecord(member_index=0, agent="solver_0", role="solver", prompt="p", text="t", parsed="1")
    events = tuple(
        Event(
            event_id=f"ep{number}/e{index}",
            state_id="s",
            episode_id=f"ep{number}",
            task_id="task",
            group_id="g",
            event_type="solver",
            turn=0,
            state_label="question only" if index == 0 else f"draft {index} | committed",
            cardinality=1,
            members=(member,),
            reward=0.0,
            penalty=0.0,
            team_return=1.0,
            terminated=index == num_events - 1,
        )
        for index in range(num_events)
    )
    return Episode(
        episode_id=f"ep{number}", env_id="e", env_kwargs={}, seed=0, task={}, task_id="task", group_id="g",
        events=events, reward=1.0, terminated=True,
    )  # fmt: skip


def test_the_report_tells_start_end_and_where_the_time_went(tmp_path: Path) -> None:
    text = write_report(make_run(tmp_path, 10)).read_text()
    assert "held-out accuracy went from **0.250** to **0.875** (step 0 to 10)" in text
    assert "10 of 80 training steps" in text
    # accuracy is step/20: steps 1..5 average 3/20 = 0.15, steps 6..10 average 8/20 = 0.4
    assert "| `rollout/accuracy` | 0.15 | 0.4 |" in text
    assert "| `rollout/response_length/solver` | 1,200 | 1,200 |" in text
    # of 10 s a step: 3 generation, 1 environments, 4 update, 2 other
    assert "| generation | 30.0 | 30.0% |" in text
    assert "| update | 40.0 | 40.0% |" in text
    assert "| other | 20.0 | 20.0% |" in text
    assert "| evaluation, on top | 20.0 |" in text


def test_the_picture_is_a_png_of_screen_size(tmp_path: Path) -> None:
    make_run(tmp_path, 3)
    write_report(tmp_path)
    data = (tmp_path / "curves.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1200
    assert height > 700


@pytest.mark.parametrize(("num_steps", "with_eval"), [(1, True), (0, True), (2, False)])
def test_a_run_that_has_hardly_begun_can_be_reported(tmp_path: Path, num_steps: int, with_eval: bool) -> None:
    text = write_report(make_run(tmp_path, num_steps, with_eval=with_eval)).read_text()
    assert f"{num_steps} of 80 training steps" in text


def test_a_run_without_metrics_has_nothing_to_report(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(RecordError, match="no metrics to report yet"):
        write_report(tmp_path)


def test_the_longest_stored_episode_is_shown_event_by_event(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    assert "event by event" not in write_report(tmp_path).read_text()
    write_episodes(tmp_path / "events/step-000001.jsonl", [make_episode(0, 1), make_episode(1, 3), make_episode(2, 2)])
    text = write_report(tmp_path).read_text()
    assert "Episode `ep1`, task `task`, team reward 1." in text
    assert "draft 1 \\| committed" in text
    assert "[events/](events/)" in text


def test_names_from_a_data_set_and_a_recipe_are_no_markup(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    hostile = "`<script>x</script>\n# [a](b) | c"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(load_recipe(recipe, [f"policies.team.model={json.dumps(hostile)}"]).to_toml())
    episode = dataclasses.replace(make_episode(1, 1), task_id=hostile)
    write_episodes(tmp_path / "events/step-000001.jsonl", [episode])
    text = write_report(tmp_path).read_text()
    assert "task `'<script>x</script> # [a](b) | c`, team reward" in text
    assert "\\`\\<script\\>x\\</script\\> \\# \\[a\\](b) \\| c" in text
    assert not [line for line in text.splitlines() if line.startswith("# [a]")]
