"""The harness: what is kept, what goes on after an interruption, and what counts as what."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from eval_world import untimed
from factories import boxed, make_episode, make_event

from srpo_envs.audit import audit_run
from srpo_envs.errors import ConfigError, EngineError, NoEpisodeError, RecordError
from srpo_envs.records import episode_to_lines, read_episodes
from srpo_train.engines.scripted import ScriptedEngine
from srpo_train.evaluation import read_results, run_evaluation
from srpo_train.evaluation.samples import cut_unfinished

SAMPLES = "own/seed-0/samples.jsonl"
FAILED = "own/seed-0/failed.jsonl"


def episodes(directory: Path, pattern: str = "*/seed-*/samples.jsonl") -> dict:
    found = [episode for file in sorted(directory.glob(pattern)) for episode in read_episodes(file)]
    assert len({episode.episode_id for episode in found}) == len(found)
    return {episode.episode_id: episode for episode in found}


def sample_of(request) -> int:
    return int(request.request_id.rpartition("/e")[0].rpartition("/k")[2])


class Failing(ScriptedEngine):
    """Gives up chosen samples: as lost to its surroundings, or as hopeless."""

    def __init__(self, answer, *, lost=lambda request: False, hopeless=lambda request: False) -> None:
        super().__init__("p", answer, respects_limits=False)
        self.lost, self.hopeless = lost, hopeless

    def generate(self, requests, sampling):
        return [
            dataclasses.replace(
                answer,
                finish_reason="abort",
                text="",
                token_ids=(),
                logprobs=(),
                abort_reason="too long" if self.hopeless(request) else "server away",
                is_hopeless=self.hopeless(request),
            )
            if self.lost(request) or self.hopeless(request)
            else answer
            for request, answer in zip(requests, super().generate(requests, sampling), strict=True)
        ]


# --- what is kept -------------------------------------------------------------------------------------------------


def test_every_sample_is_scored_and_kept_and_replays(make_plan, run_plan):
    plan = make_plan("a", "b", seeds=(0, 7))
    results, directory, _ = run_plan(plan)
    kept = episodes(directory)
    assert len(kept) == 2 * 2 * 4 * 3
    assert untimed(read_results(directory)) == results
    found = results.benchmarks["b"].seeds[7]
    of_pair = [e for name, e in kept.items() if name.startswith("b/seed-7/")]
    assert found.num_samples == len(of_pair) == 12
    assert sum(task.num_correct for task in found.per_task) == sum(e.reward == 1 for e in of_pair)
    assert found.avg_at_k == pytest.approx(sum(e.reward for e in of_pair) / 12)
    assert [task.task_id for task in found.per_task] == plan.worlds["b"].task_ids
    assert found.metrics["valid_rate/solver"] == 1.0
    audit_run(directory, replay=True).raise_if_failed()


def test_samples_of_a_task_face_one_world_and_draw_tokens_of_their_own(make_plan, run_plan):
    _, directory, engine = run_plan(make_plan(seeds=(0, 1)))
    kept = list(episodes(directory).values())
    assert len({request.seed for request in engine.requests}) == len(kept)
    worlds = {(episode.episode_id.split("/")[1], episode.task_id): episode.seed for episode in kept}
    assert len(set(worlds.values())) == 2 * 4
    assert all(worlds[e.episode_id.split("/")[1], e.task_id] == e.seed for e in kept)


def test_samples_do_not_depend_on_batches_limits_or_other_benchmarks(make_plan, run_plan):
    _, whole, _ = run_plan(make_plan("a", "own"), folder="whole")
    _, part, engine = run_plan(make_plan("own", limit=2), folder="part", batch_size=2)
    mine = episodes(part)
    assert len(mine) == 6
    assert {name: episodes(whole)[name] for name in mine} == mine
    assert engine.num_calls == 3


# --- going on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_before", [0, 1, 4, 11])
def test_an_interrupted_evaluation_goes_on_to_the_same_samples(make_plan, run_plan, num_before):
    plan = make_plan()
    expected, whole, _ = run_plan(plan, folder="whole")

    def interrupt(progress):
        if progress.num_done > num_before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, batch_size=3, on_progress=interrupt)
    results, directory, engine = run_plan(plan)
    assert episodes(directory) == episodes(whole)
    assert results == expected
    assert len(engine.requests) == 12 - num_before - 1


def test_what_is_complete_is_not_drawn_again(make_plan, run_plan):
    plan = make_plan()
    first, _, _ = run_plan(plan)
    seen = []
    second, _, engine = run_plan(plan, on_progress=seen.append)
    assert (engine.num_calls, seen) == (0, [])
    assert second == first


def test_progress_begins_with_what_is_there_and_counts_every_end(make_plan, run_plan):
    plan = make_plan()
    run_plan(plan, Failing(lambda _: boxed(1), lost=lambda request: sample_of(request) == 1))
    seen = []
    run_plan(plan, Failing(lambda _: boxed(0), hopeless=lambda request: True), on_progress=seen.append)
    assert [progress.num_done for progress in seen] == [8, 9, 10, 11, 12]
    assert {progress.num_samples for progress in seen} == {12}
    assert (seen[0].share_correct, seen[-1].share_correct) == (1.0, pytest.approx(8 / 12))


def test_a_file_whose_end_is_torn_goes_on_to_the_same_samples(make_plan, run_plan):
    plan = make_plan(limit=2, samples=2)
    expected, directory, _ = run_plan(plan)
    whole, samples = (directory / SAMPLES).read_bytes(), episodes(directory)
    head, event = whole.index(b"\n") + 1, whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for size in (0, 40, head - 1, head, head + 40, event - 1, len(whole) - 1):
        (directory / SAMPLES).write_bytes(whole[:size])
        (directory / "results.json").unlink()
        assert run_plan(plan)[0] == expected
        assert episodes(directory) == samples


def test_a_file_cut_anywhere_keeps_its_whole_episodes(tmp_path):
    path = tmp_path / "samples.jsonl"
    stored = [make_episode(episode_id=name, events=(make_event(1), make_event(2, number=1))) for name in "abc"]
    parts = ["".join(line + "\n" for line in episode_to_lines(episode)).encode() for episode in stored]
    whole = b"".join(parts)
    ends = [0, *itertools.accumulate(map(len, parts))]
    lines = [0, *itertools.accumulate(map(len, whole.splitlines(keepends=True)))]
    for size in sorted(
        {min(line + near, len(whole)) for line in lines for near in (0, 1, 40)} | {e - 1 for e in ends[1:]}
    ):
        path.write_bytes(whole[:size])
        cut_unfinished(path)
        assert path.stat().st_size == max(end for end in ends if end <= size)


def test_cutting_leaves_whole_episodes_alone(make_plan, run_plan):
    _, directory, _ = run_plan(make_plan())
    whole = (directory / SAMPLES).read_bytes()
    cut_unfinished(directory / SAMPLES)
    assert (directory / SAMPLES).read_bytes() == whole


def test_damage_before_the_end_is_told_and_nothing_is_cut(make_plan, run_plan):
    plan = make_plan()
    _, directory, _ = run_plan(plan)
    (directory / "results.json").unlink()
    lines = (directory / SAMPLES).read_bytes().splitlines(keepends=True)
    for damage, message in ((2, "not a JSON line"), (len(lines) - 1, "the last lines are not of an episode")):
        broken = b"".join([*lines[:damage], b"\0\0\0\n", *lines[damage + 1 :]])
        (directory / SAMPLES).write_bytes(broken)
        with pytest.raises(RecordError, match=message):
            run_plan(plan)
        assert not (directory / "results.json").exists()
        assert (directory / SAMPLES).read_bytes() == broken


def test_a_sample_counts_once_and_one_of_elsewhere_never(make_plan, run_plan):
    _, directory, _ = run_plan(make_plan())
    samples = directory / SAMPLES
    kept = samples.read_bytes()
    for content, message in (
        (kept + kept, "k0' is there twice"),
        (kept.replace(b"own/seed-0/", b"own/seed-1/"), "is not of this evaluation"),
    ):
        (directory / "results.json").unlink(missing_ok=True)
        samples.write_bytes(content)
        with pytest.raises(RecordError, match=message):
            run_plan(make_plan())


@pytest.mark.parametrize("line", ["3", "[]", "null", '{"kind": "episode"}', '{"kind": "episode", "events": []}'])
def test_a_last_line_that_is_json_but_no_record_is_damage(tmp_path, line):
    path = tmp_path / "samples.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RecordError, match="the last lines are not of an episode"):
        cut_unfinished(path)


def test_a_killed_process_leaves_what_it_had_drawn(make_plan, run_plan, tmp_path):
    plan = make_plan(samples=8)
    expected, whole, _ = run_plan(plan, folder="whole")
    code = (
        "import pickle, sys, time; from pathlib import Path\n"
        "from eval_world import ROLES, by_chance\n"
        "from srpo_train.engines.scripted import ScriptedEngine\n"
        "from srpo_train.evaluation import run_evaluation\n"
        "plan = pickle.load(open(sys.argv[1], 'rb'))\n"
        "engine = ScriptedEngine('p', by_chance, respects_limits=False, delay_s=0.2)\n"
        "run_evaluation(plan, Path(sys.argv[2]), {'p': engine}, ROLES, batch_size=4)\n"
    )
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    folders = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    directory = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "plan", directory],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    file, deadline = directory / SAMPLES, time.monotonic() + 60
    while not (file.is_file() and file.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    cut_unfinished(file)
    num_kept = len(episodes(directory))
    assert 0 < num_kept < 32
    results, _, engine = run_plan(plan, folder="killed")
    assert episodes(directory) == episodes(whole)
    assert results == expected
    assert len(engine.requests) == 32 - num_kept


def test_seeds_and_benchmarks_may_be_added(make_plan, run_plan):
    run_plan(make_plan("a"))
    results, directory, engine = run_plan(make_plan("b", seeds=(0, 5)))
    assert len(engine.requests) == 2 * 12
    assert {name: list(found.seeds) for name, found in results.benchmarks.items()} == {"a": [0], "b": [0, 5]}
    plan = json.loads((directory / "plan.json").read_text())
    assert (list(plan["worlds"]), plan["seeds"]) == (["a", "b"], [0, 5])
    again, _, engine = run_plan(make_plan("a", "b", seeds=(5,)))
    assert len(engine.requests) == 12
    assert again.benchmarks["b"] == results.benchmarks["b"]


def test_another_plan_is_refused_with_what_differs(make_plan, run_plan, data):
    from srpo_train.engines.base import Sampling

    run_plan(make_plan())
    with pytest.raises(ConfigError, match=r"holds another evaluation, whose samples is 3, not 4; choose another --out"):
        run_plan(make_plan(samples=4))
    with pytest.raises(ConfigError, match=r"sampling.temperature is 1.0, not 0.5"):
        run_plan(make_plan(sampling=Sampling(temperature=0.5)))
    with pytest.raises(ConfigError, match=r"own.digest is .*; own.num_tasks is 4, not 2"):
        run_plan(make_plan(limit=2))
    data.write_text(data.read_text().replace('"1"', '"2"'))
    with pytest.raises(ConfigError, match=r"whose own.digest is '\w+', not '\w+'"):
        run_plan(make_plan())


def test_the_label_may_change(make_plan, run_plan):
    run_plan(make_plan())
    results, _, engine = run_plan(dataclasses.replace(make_plan(), method="better name"))
    assert engine.num_calls == 0
    assert results.method == "better name"


def test_a_plan_that_cannot_be_read_is_told(make_plan, run_plan):
    _, directory, _ = run_plan(make_plan())
    (directory / "plan.json").write_text("{")
    with pytest.raises(RecordError, match="not the plan of an evaluation"):
        run_plan(make_plan())


# --- samples without an episode -----------------------------------------------------------------------------------


def test_a_lost_sample_is_in_no_score_and_is_tried_again(make_plan, run_plan):
    plan = make_plan()
    results, directory, _ = run_plan(plan, Failing(lambda _: boxed(1), lost=lambda request: sample_of(request) == 1))
    found = results.benchmarks["own"].seeds[0]
    assert (found.avg_at_k, found.num_samples, found.num_failed) == (1.0, 8, 4)
    assert found.reasons == {"the engine gave up member_index [0] (server away)": 4}
    lines = [json.loads(line) for line in (directory / FAILED).read_text().splitlines()]
    assert {line["episode_id"].rpartition("/")[2] for line in lines} == {"k1"}
    assert {line["is_wrong"] for line in lines} == {False}
    assert {line["task_id"] for line in lines} == set(plan.worlds["own"].task_ids)
    again, _, engine = run_plan(plan, lambda _: boxed(0))
    found = again.benchmarks["own"].seeds[0]
    assert len(engine.requests) == 4
    assert (found.avg_at_k, found.num_samples, found.num_failed, found.reasons) == (pytest.approx(2 / 3), 12, 0, {})
    assert (directory / FAILED).read_text() == ""


def test_a_sample_that_cannot_be_answered_is_wrong_and_stays_so(make_plan, run_plan):
    plan = make_plan()
    engine = Failing(lambda _: boxed(1), hopeless=lambda request: sample_of(request) == 1)
    results, directory, _ = run_plan(plan, engine)
    found = results.benchmarks["own"].seeds[0]
    assert (found.avg_at_k, found.num_samples, found.num_failed) == (pytest.approx(2 / 3), 12, 0)
    assert found.reasons == {"the engine gave up member_index [0] (too long)": 4}
    assert found.num_unanswered == 4
    (directory / "results.json").unlink()
    again, _, engine = run_plan(plan)
    assert engine.num_calls == 0
    assert again == results


def test_a_team_that_answers_nothing_scores_nothing_and_ends(make_plan, run_plan):
    results, _, _ = run_plan(make_plan(), Failing(lambda _: boxed(1), hopeless=lambda request: True))
    found = results.benchmarks["own"].seeds[0]
    assert (found.avg_at_k, found.pass_at_k, found.num_samples) == (0.0, 0.0, 12)


def test_surroundings_that_are_gone_end_the_evaluation_and_what_is_there_is_kept(make_plan, run_plan, tmp_path):
    plan = make_plan(seeds=(0, 1))
    engine = Failing(lambda _: boxed(1), lost=lambda request: "/seed-0/" not in request.request_id)
    with pytest.raises(NoEpisodeError, match="server away"):
        run_plan(plan, engine, batch_size=6)
    assert engine.num_calls == 2 + 3  # the first batch of seed 1, tried three times, is the last
    directory = tmp_path / "eval"
    seeds = read_results(directory).benchmarks["own"].seeds
    assert (seeds[0].num_samples, seeds[1].num_samples, seeds[1].num_failed) == (12, 0, 6)
    assert seeds[1].avg_at_k is None
    assert len((directory / "own/seed-1/failed.jsonl").read_text().splitlines()) == 6
    assert run_plan(plan)[0].benchmarks["own"].seeds[1].num_samples == 12


def test_what_is_lost_for_good_holds_nothing_else_up(make_plan, run_plan):
    plan = make_plan()
    run_plan(plan, Failing(lambda _: boxed(1), lost=lambda request: sample_of(request) == 1))
    both = make_plan(seeds=(0, 1))
    results, _, _ = run_plan(both, Failing(lambda _: boxed(1), lost=lambda r: "/seed-0/" in r.request_id))
    seeds = results.benchmarks["own"].seeds
    assert (seeds[0].num_failed, seeds[1].num_failed, seeds[1].num_samples) == (4, 0, 12)


def test_an_engine_that_fails_as_a_whole_leaves_what_was_drawn(make_plan, run_plan):
    plan = make_plan()
    engine = ScriptedEngine("p", lambda _: boxed(1), respects_limits=False, failing_calls=(1,))
    with pytest.raises(EngineError, match="call 1 fails"):
        run_plan(plan, engine, batch_size=3)
    results, _, engine = run_plan(plan)
    assert len(engine.requests) == 9
    assert results.benchmarks["own"].seeds[0].num_samples == 12


def test_results_of_an_interrupted_evaluation_say_what_is_missing(make_plan, run_plan, tmp_path):
    engine = ScriptedEngine("p", lambda _: boxed(1), respects_limits=False, failing_calls=(1,))
    with pytest.raises(EngineError):
        run_plan(make_plan(), engine, batch_size=3)
    found = read_results(tmp_path / "eval").benchmarks["own"].seeds[0]
    assert (found.num_samples, found.num_failed, len(found.per_task)) == (3, 0, 1)


def test_a_role_without_an_engine_is_misuse(make_plan, tmp_path):
    engine = ScriptedEngine("p", lambda _: boxed(1))
    with pytest.raises(ConfigError, match="no policy for role 'solver'"):
        run_evaluation(make_plan(), tmp_path / "eval", {"p": engine}, {"verifier": "p"})
