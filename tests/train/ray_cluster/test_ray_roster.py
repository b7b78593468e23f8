"""Who is where: seats, what is counted, and how the driver shows it."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from rich.console import Console

from srpo_envs.errors import ConfigError, EngineError, RankLostError, UnknownIdError
from srpo_train.cli._cluster import Screen, show_places
from srpo_train.cluster.placement import Fit, Group, Node
from srpo_train.cluster.roster import Arrived, Began, Failed, Roster, Said, Seat, Stepped, Warned, as_metrics
from srpo_train.cluster.running import train_on_ray
from srpo_train.cluster.watching import PLACEMENT_FILE, Watch, reason_of
from srpo_train.config import load_recipe
from srpo_train.metrics import check_name

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"


def seat(name="rank 0", kind="rank", pid=11, url=""):
    return Seat(name=name, kind=kind, node="10.0.0.1", pid=pid, url=url)


def console():
    return Console(file=io.StringIO(), width=200)


def shown(*news):
    screen = Screen(terminal := console(), num_steps=4)
    for item in news:
        screen.show(item)
    screen.close()
    return terminal.file.getvalue()


def test_a_seat_that_is_taken_again_counts_its_starts():
    roster = Roster()
    assert roster.arrive(seat()) == 0
    assert roster.arrive(seat(pid=12)) == 1
    assert roster.arrive(seat("environments 0", "environments")) == 0
    assert [(s.name, s.pid, s.starts) for s in roster.seats()] == [("rank 0", 12, 2), ("environments 0", 11, 1)]
    assert [type(item) for item in roster.take_news()] == [Arrived] * 3
    assert roster.take_news() == []


def test_what_happened_has_names_of_the_table():
    roster = Roster()
    for pid in range(3):
        roster.arrive(seat("engine of team 0", "engine", pid))
    roster.count("rebuilt episodes")
    values = as_metrics(roster.tally())
    assert values == {
        "cluster/num_rank_restarts": 0.0,
        "cluster/num_engine_restarts": 2.0,
        "cluster/num_env_worker_restarts": 0.0,
        "cluster/num_rebuilt_episodes": 1.0,
        "cluster/num_lost_graders": 0.0,
    }
    for name in values:
        check_name(name)


def test_the_screen_says_who_is_where_once_and_then_how_it_goes():
    text = shown(
        Arrived(seat("engine of team 0", "engine", 7, "http://10.0.0.1:8000")),
        Arrived(seat()),
        Began(0),
        Stepped(1, {"rollout/accuracy": 0.25}),
        Warned("entropy fell"),
        Said("environments 0", logging.WARNING, "srpo_train.collect: episode dropped"),
    )
    assert text.index("rank 0") < text.index("engine of team 0")
    assert "http://10.0.0.1:8000" in text
    assert "0.250" in text
    assert "warning: entropy fell" in text
    assert "WARNING environments 0: srpo_train.collect: episode dropped" in text


def test_the_screen_says_what_was_started_again_and_where_training_goes_on():
    again = Seat(name="rank 0", kind="rank", node="10.0.0.2", pid=99, starts=2)
    text = shown(Arrived(seat()), Began(0), Stepped(1, {}), Arrived(again), Began(1), Stepped(2, {}))
    assert "rank 0 was started again (10.0.0.2, pid 99)" in text
    assert "training goes on from step 1" in text
    assert text.count("machine") == 1


def test_places_are_shown_with_what_is_missing():
    groups = (Group(kind="rank", count=2, cpus=1.0, gpus=0, strategy="PACK"),)
    nodes = [Node(name="here", cpus=1, gpus=1)]
    show_places(terminal := console(), groups, nodes, Fit(nodes=(("here",),), missing=("rank: no room",)))
    text = terminal.file.getvalue()
    assert "1 on here" in text
    assert "on here (1 CPU, 1 GPU)" in text
    assert "no room: rank: no room" in text
    assert "ray.gpus_per_rank = 0 uses none" in text


# --- the driver ---------------------------------------------------------------------------------------------------


class Training:
    """Is over after some looks."""

    def __init__(self, *events, error=None):
        self.events = list(events)
        self.error = error

    def is_over(self, timeout_s):
        if self.events:
            self.events.pop(0)()
        return not self.events


def watch(tmp_path, roster, training):
    heard = []
    Watch(tmp_path, roster.take_news, roster.seats, heard.append).until(training)
    return heard


def test_the_driver_keeps_a_file_that_says_who_is_where(tmp_path):
    roster = Roster()
    steps = [lambda: roster.arrive(seat()), lambda: roster.tell(Began(0)), lambda: roster.arrive(seat(pid=12))]
    assert len(watch(tmp_path, roster, Training(*steps))) == 3
    kept = json.loads((tmp_path / PLACEMENT_FILE).read_text())
    assert kept["driver"]["pid"] > 0
    assert kept["seats"] == [{"name": "rank 0", "kind": "rank", "node": "10.0.0.1", "pid": 12, "url": "", "starts": 2}]


def test_what_no_restart_mends_ends_the_run_at_once(tmp_path):
    roster = Roster()
    never_over = Training(*[lambda: None] * 3, lambda: pytest.fail("listened on"))
    roster.tell(Failed(ConfigError("no such policy")))
    with pytest.raises(ConfigError, match="no such policy"):
        watch(tmp_path, roster, never_over)


def test_news_that_came_last_are_heard_before_the_end(tmp_path):
    roster = Roster()
    training = Training(lambda: roster.tell(Began(0)), error=EngineError("no server was fit"))
    with pytest.raises(RankLostError, match=r"training ended: no server was fit; .*--resume"):
        watch(tmp_path, roster, training)
    assert roster.take_news() == []


def test_the_reason_is_the_projects_own_word_where_there_is_one():
    wrapped = RuntimeError("Traceback\n  many lines")
    wrapped.cause = EngineError("out of memory")
    many = RuntimeError("worker group failed")
    many.worker_failures = {1: wrapped}
    assert reason_of(many) == "out of memory"
    assert reason_of(wrapped) == "out of memory"
    assert reason_of(RuntimeError("Traceback\nValueError: bad\n")) == "ValueError: bad"
    assert reason_of(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["name=old"], "already holds a run"),
        (["roles.judge=team"], "has no such role"),
        (["objective.preset=nothing"], "nothing"),
        (["engine.kind=vllm"], "runs inside the trainer"),
    ],
)
def test_what_the_ranks_would_refuse_is_refused_before_anything_starts(tmp_path, monkeypatch, overrides, complaint):
    monkeypatch.setattr("srpo_train.cluster.running.connected", lambda address: pytest.fail("connected"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").write_text('{"step": 1}\n')
    recipe = load_recipe(RECIPE, [f"output_dir={tmp_path}", *overrides])
    with pytest.raises((ConfigError, UnknownIdError), match=complaint):
        train_on_ray(recipe, on_news=lambda news: None)
