"""`srpo_train.reporting.page`: one file with curves, tables, alarms and episodes, harmless whatever models wrote."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from factories import make_episode, make_event, make_member
from report_world import HOSTILE, make_evaluation, make_run

from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, ToolCall, write_episodes
from srpo_train.reporting.page import write_page


def text_of(*paths: Path, **choices: object) -> str:
    return write_page(paths, paths[0].parent / "page.html", **choices).read_text(encoding="utf-8")


def step(place: int, accuracy: float = 0.5) -> dict[str, float]:
    return {"rollout/accuracy": accuracy, "train/grad_norm": 1.0 + place}


def runs(folder: Path, **names: str) -> list[Path]:
    return [
        make_run(folder / name, change, evaluations={0: (0.25, 0.5), 3: (0.75, 1.0)}, steps=[step(0), step(1), step(2)])
        for name, change in names.items()
    ]


def store(run_dir: Path, *episodes: Episode) -> None:
    write_episodes(run_dir / "events/step-000003.jsonl", episodes)


def hostile_episode() -> Episode:
    members = tuple(
        make_member(seat, text=text, prompt=text, malformed_reason=text if seat % 2 else "", parsed=text)
        for seat, text in enumerate(HOSTILE)
    )
    call = ToolCall(
        name=HOSTILE[1], arguments={HOSTILE[2]: HOSTILE[3]}, result=[{"title": HOSTILE[4], "text": HOSTILE[5]}]
    )
    event = make_event(len(members), episode_id=HOSTILE[1], members=members, state_label=HOSTILE[6], tool_calls=(call,))
    return make_episode(
        events=(event,), episode_id=HOSTILE[1], info={name: name for name in HOSTILE}, setup_tool_calls=(call,)
    )


# --- what is on it ------------------------------------------------------------------------------------------------


def test_runs_are_overlaid_and_told_at_a_glance(tmp_path: Path) -> None:
    text = text_of(*runs(tmp_path, a="seed=0", b="objective.preset=grpo"))
    assert "<title>Report of 2 runs</title>" in text
    glance = re.search(r'<tr><th scope="row">a</th>(.*?)</tr>', text)
    assert glance
    assert re.findall("<td>(.*?)</td>", glance[1])[:5] == ["3 of 80", "0.250", "0.750", "0.750", "600"]
    chart = re.search(r'<svg[^>]*aria-label="train/grad_norm.*?</svg>', text, re.DOTALL)
    assert chart
    assert {"line run-0", "line run-1"} <= set(re.findall(r'class="(line run-\d)"', chart[0]))
    assert "rollout/reward_mean = 0.5" in text.split("because they never changed")[1]
    assert "Setwise SRPO" in text  # the comparison's own table
    assert "GRPO" in text


def test_an_unfinished_run_that_was_never_evaluated_has_a_page(tmp_path: Path) -> None:
    text = text_of(make_run(tmp_path / "a", steps=[step(0), step(1)]))
    assert "Report of a" in text
    assert "train/grad_norm" in text
    assert "Held-out tasks, last and best" not in text
    text = text_of(make_run(tmp_path / "b", steps=[]))
    assert "0 of 80" in text
    assert "<svg" not in text


def test_evaluations_stand_beside_runs_and_names_are_told_apart(tmp_path: Path) -> None:
    (run,) = runs(tmp_path / "x", same="seed=0")
    other = make_evaluation(tmp_path / "y/same", {"nq": {0: [4, 2]}})
    text = text_of(run, other, with_paper=False)
    assert "Report of 2 runs and evaluations" in text
    assert f"same ({run})" in text
    assert "Avg@4 and Pass@4 by benchmark" in text


def test_alarms_are_listed_with_their_run_and_step(tmp_path: Path) -> None:
    assert "No alarm was raised." in text_of(*runs(tmp_path, a="seed=0"))
    text = text_of(make_run(tmp_path / "b", steps=[step(0), step(1) | {"train/num_nonfinite_steps": 1.0}]))
    row = '<tr><th scope="row">b</th><td>2</td><td class="text">nonfinite_step</td><td class="text">–</td>'
    assert row + '<td class="text">an optimiser step was skipped' in text


def test_a_path_with_nothing_to_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        write_page([tmp_path / "nothing"], tmp_path / "page.html")


# --- episodes -----------------------------------------------------------------------------------------------------


def test_episodes_are_time_lines_of_those_that_say_most(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, a="seed=0")
    store(run, *(make_episode(episode_id=f"ep{number}", reward=number / 10) for number in range(9)))
    text = text_of(run, num_episodes=3)
    assert re.findall(r'<span class="why">(.*?)</span> (.*?)</h3>', text)[:2] == [("best", "ep8"), ("worst", "ep0")]
    assert text.count('<article class="episode">') == 3
    event = text.split('<li class="event">')[1]
    assert "e0 solver" in event
    assert event.count('<section class="member">') == 3
    assert "prompt of solver_0, solver_1, solver_2" in event
    assert text_of(run, num_episodes=6) == text_of(run, num_episodes=6)
    assert text_of(run, num_episodes=6) != text_of(run, num_episodes=6, seed=1)
    assert "Episodes of" not in text_of(run, num_episodes=0)


def test_events_of_a_run_show_their_advantages_among_the_episodes_of_their_step(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, a="seed=0")
    store(run, *(make_episode((1,), episode_id=f"ep{number}", reward=float(number < 2)) for number in range(4)))
    text = text_of(run, num_episodes=4)
    # returns 1, 1, 0, 0: mean 0.5, sample deviation sqrt(1/3) = 0.577, advantages 0.5 / 0.577 = 0.866 either way
    assert sorted(re.findall(r"<span>advantage (.*?)</span>", text)) == ["+0.866"] * 2 + ["-0.866"] * 2


def test_with_a_critic_advantages_are_shown_where_its_values_are_known_and_the_rest_is_told(tmp_path: Path) -> None:
    keys = "objective.preset=ppo", "critic.model=builtin:tiny-team"
    team = [make_episode((1,), episode_id=f"ep{number}", reward=float(number < 2)) for number in range(4)]
    run = make_run(tmp_path / "a", *keys, steps=[step(0), step(1)])
    store(run, *team)
    text = text_of(run, num_episodes=4)
    assert "<span>advantage" not in text
    assert "No advantages: they compare with the critic as it was before step 3" in text
    (run / "events/step-000003.jsonl").rename(run / "events/step-000001.jsonl")
    text = text_of(run, num_episodes=4)  # before the first step the critic is the one that the recipe names
    assert len(re.findall(r"<span>advantage (.*?)</span>", text)) == 4
    assert "No advantages" not in text


def test_model_text_of_any_kind_stays_text(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, a="seed=0")
    store(run, hostile_episode())
    text = text_of(run, labels={run: HOSTILE[1]})
    assert not re.search(r"<script|<img|<b>bold|javascript:alert\(1\)\"", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "⟦U+202E⟧" in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_a_megabyte_of_text_is_cut_with_a_note(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, a="seed=0")
    member = make_member(text="x" * 1_048_576)
    store(run, dataclasses.replace(make_episode((1,)), events=(make_event(1, members=(member,)),)))
    text = text_of(run)
    assert "1,040,576 more characters, left out here" in text
    assert len(text) < 200_000
