"""Runs as the viewer finds them on disk, some with text that means harm."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from factories import make_episode, make_event, make_member
from report_world import make_run

from srpo_envs.records import Episode, ToolCall, episode_to_lines, write_episodes

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
BIDI = "user \u202etxt.exe\u2066 \u200bhidden \U000e0041"
ESCAPES = "\x1b[31mred\x1b]0;title\x07 \x9b2J \x00 [bold]markup[/bold]"
LONG_LINE = "x" * 1_000_000

PASSAGES = (
    {"id": "1", "title": "Peru", "text": "The capital of Peru is Lima.", "score": 7.25},
    {"id": "2", "title": "Lima", "text": "Lima lies at the sea.", "score": 3.5},
)


def step_episodes(step: int, num_tasks: int = 2, group_size: int = 2) -> list[Episode]:
    """Episodes of one training step: the first of each group is right, and the last of all has a malformed verdict."""
    found = []
    for task in range(num_tasks):
        for rollout in range(group_size):
            is_last = task == num_tasks - 1 and rollout == group_size - 1
            found.append(_episode(step, task, rollout, is_right=rollout == 0, is_malformed=is_last))
    return found


def _episode(step: int, task: int, rollout: int, *, is_right: bool, is_malformed: bool) -> Episode:
    name, reward = f"step{step}/p{task}/g{rollout}", float(is_right)
    ids = {"episode_id": name, "task_id": f"sum/{task}", "group_id": f"step{step}/p{task}"}
    seen = {"policy_version": step - 1, "prompt": f"Compute {task}+{step}."}
    drafts = tuple(make_member(seat, text=f"<think>{task}</think>\\boxed{{{seat}}}", **seen) for seat in range(3))
    verdict = {"text": "maybe", "parsed": None, "malformed_reason": "no verdict tag"} if is_malformed else {}
    verdict = {"text": "<verify>approve</verify>", "parsed": "approve"} | verdict
    penalty = 0.1 * is_malformed
    search = ToolCall(name="search", arguments={"query": "capital of Peru", "top_k": 2}, result=PASSAGES)
    events = (
        make_event(3, number=0, members=drafts, tool_calls=(search,), team_return=reward - penalty, **ids),
        make_event(
            1,
            number=1,
            event_type="verifier",
            members=(make_member(role="verifier", **(seen | verdict)),),
            reward=reward - penalty,
            penalty=penalty,
            team_return=reward - penalty,
            terminated=True,
            **ids,
        ),
    )
    return make_episode(
        events=events,
        reward=reward,
        penalty=penalty,
        task={"task_id": f"sum/{task}", "question": f"Compute {task}+{step}.", "gold": str(task + step), "info": {}},
        info={"answer": str(task + step) if is_right else "?", "correct": is_right, "metrics": {"num_drafts": 3}},
        **ids,
    )


def make_viewed_run(run_dir: Path, num_steps: int = 3, *, alarm_at: int = 0, **sizes: int) -> Path:
    """Write a run with metrics and events of every step; an alarm lasts from a step to the end."""
    steps = [
        {
            "rollout/num_tokens": 100 * step,
            "time/step_s": 2.0,
            "rollout/reward_mean": step / 10,
            **({"alarm/entropy_collapse": 1} if alarm_at and step >= alarm_at else {}),
        }
        for step in range(1, num_steps + 1)
    ]
    make_run(run_dir, evaluations={0: (0.25, 0.5), num_steps: (0.5, 0.75)}, steps=steps)
    for step in range(1, num_steps + 1):
        write_step(run_dir, step, step_episodes(step, **sizes))
    return run_dir


def write_step(run_dir: Path, step: int, episodes: Sequence[Episode]) -> Path:
    """Write the events of a step as training does."""
    path = run_dir / "events" / f"step-{step:06d}.jsonl"
    write_episodes(path, episodes)
    return path


def append_metrics(run_dir: Path, step: int, **values: float) -> None:
    """Append a line of metrics as a running process does; ``__`` stands for a slash."""
    line = {"step": step} | {name.replace("__", "/"): value for name, value in values.items()}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def delete(folder: Path) -> None:
    """Delete a folder at one blow: whoever reads in it meanwhile could put a file into it while it is emptied."""
    aside = folder.with_name(f".deleted-{folder.name.lstrip('.')}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def lines_of(episode: Episode) -> str:
    """An episode as it stands in a log."""
    return "".join(line + "\n" for line in episode_to_lines(episode))


def hostile_episode(episode_id: str = "step9/p0/g0", **fields: object) -> Episode:
    """An episode in which every text that comes from outside is an attack."""
    attack = SCRIPT + BIDI + ESCAPES
    members = (
        make_member(0, text=attack, prompt=attack, parsed={"<b>": attack}, agent=SCRIPT),
        make_member(1, text=LONG_LINE, prompt=attack, malformed_reason=SCRIPT, parsed=None),
        make_member(2, text="\n" * 5000 + SCRIPT, prompt=LONG_LINE),
    )
    calls = (
        ToolCall(name=SCRIPT, arguments={SCRIPT: LONG_LINE}, result=({"title": SCRIPT, "text": attack},)),
        ToolCall(name="run", arguments=attack, result=LONG_LINE),
    )
    episode = make_episode(
        (1,),
        episode_id=episode_id,
        task={"task_id": "t", "question": attack, "gold": SCRIPT},
        info={"answer": SCRIPT, SCRIPT: attack, "metrics": {SCRIPT: attack}},
    )
    event = make_event(3, episode_id=episode_id, members=members, tool_calls=calls, state_label=SCRIPT, terminated=True)
    return dataclasses.replace(episode, events=(event,), **fields)
