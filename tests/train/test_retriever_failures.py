"""A search server that dies, hangs or talks nonsense in the middle of training.

A failed search is tried again as configured; then its episode is dropped and counted. Nothing that was learned from may
rest on evidence that is empty because of a failure, so the corpus here answers every query that the team asks.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import srpo_envs
from retrieval.bm25 import Bm25Index
from srpo_envs.audit import audit_run
from srpo_envs.errors import SurroundingsError
from srpo_envs.records import read_episodes
from srpo_envs.tasks.village import Village, passages
from srpo_train.collect import Collector, EpisodeJob
from srpo_train.config import load_recipe
from srpo_train.engines.base import Sampling
from srpo_train.engines.scripted import ScriptedEngine
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

for package in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(package, reason=f"{package} is not installed")
client = pytest.importorskip("retrieval.client", reason="httpx is not installed", exc_type=ImportError)

from search_process import ServerProcess  # noqa: E402

TRIES = "timeout_s=5&max_retries=0&first_pause_s=0.01"  # the collector's own retries are what is tested here

# --- servers ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def closed_connections(monkeypatch):
    """Clients that a test opened by name are its own."""
    opened: dict = {}
    monkeypatch.setattr("srpo_envs.search._opened", opened)
    yield
    for retriever in opened.values():
        retriever.close()


@pytest.fixture(scope="module")
def process():
    server = ServerProcess()
    yield server
    server.kill()


@pytest.fixture
def server(process):
    process.start()
    return process


# --- a team that knows what to do ---------------------------------------------------------------------------------


class TeamEngine(ScriptedEngine):
    """Plays every role of the routed search: two queries, a verdict, STOP, and the answer read from the evidence.

    Before the `generate` calls of some numbers something happens to the server.
    """

    def __init__(self, policy_id: str = "team", happenings: Mapping[int, Callable[[], None]] | None = None) -> None:
        super().__init__(policy_id, self._play, respects_limits=False)
        self.happenings = dict(happenings or {})

    def generate(self, requests, sampling):
        self.happenings.pop(self.num_calls, lambda: None)()
        return super().generate(requests, sampling)

    def _play(self, request):
        relation, name = re.match(r"Name the (\w+) of (\w+)\.", request.prompt).groups()
        found = re.search(rf"\nThe {relation} of {name} is (\w+)\.", request.prompt)
        task = request.prompt.rpartition("\n")[2]
        if "Route" in task:
            return "<route>STOP</route>" if found else "<route>1, 2</route>"
        if "Search 1" in task:
            return f"<think></think><search>{relation} of {name}</search>"
        if "Search 2" in task:
            return f"<think></think><search>everything about {name}</search>"
        if "Verify" in task:
            return f"<verify>{'approve' if found else 'reject'}</verify>"
        return f"<think></think><answer>{found.group(1) if found else 'unknown'}</answer>"


ROUNDS = ["router", "searcher", "verifier", "router", "answerer"]
"""Events of an episode in which nothing fails, each one `generate` call for all episodes that run at once."""


@pytest.fixture
def collect():
    """Collects episodes four at a time from a retriever; more tasks than that wait for their turn."""
    collectors = []

    def run(retriever, engine=None, num_jobs=12, **settings):
        def make_env():
            return srpo_envs.make("VillageSearch-v0", level=1, retriever=retriever)

        engine = engine or TeamEngine()
        collector = Collector(make_env, {"team": engine}, {"*": "team"}, max_concurrent=4, **settings)
        collectors.append(collector)
        return collector.collect([make_job(number) for number in range(num_jobs)], Sampling())

    yield run
    for collector in collectors:
        collector.close()


def make_job(number):
    return EpisodeJob(episode_id=f"t{number}", group_id=f"t{number}", task_index=number, env_seed=number)


def assert_evidence_is_real(episodes):
    """Every query of every episode brought passages, and the team could answer from them."""
    assert episodes
    for episode in episodes:
        calls = [call for event in episode.events for call in event.tool_calls if call.kind == "tool"]
        assert len(calls) == 2
        assert all(call.result for call in calls)
        assert [event.event_type for event in episode.events] == ROUNDS
        assert episode.info["metrics"]["gold_passage_recall"] == 1.0


def names(episodes):
    return [episode.episode_id for episode in episodes]


# --- killed and restarted -----------------------------------------------------------------------------------------


def test_a_killed_server_costs_the_episodes_it_did_not_answer_and_no_others(server, collect):
    # Calls 0 to 4 play the first four episodes; the server dies when the next four have written their queries, and is
    # back when the last four begin.
    engine = TeamEngine(happenings={6: server.kill, 7: server.start})
    rollout = collect(f"{server.url}?{TRIES}", engine, step_retries=1)
    assert names(rollout.episodes) == [f"t{number}" for number in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert_evidence_is_real(rollout.episodes)
    assert all(episode.reward == 1.0 for episode in rollout.episodes)
    assert [failed.job.episode_id for failed in rollout.failed] == ["t4", "t5", "t6", "t7"]
    assert {failed.num_events for failed in rollout.failed} == {1}
    assert all(failed.reason.startswith("RetrieverError: http://127.0.0.1") for failed in rollout.failed)


def test_with_enough_retries_a_restart_costs_nothing_and_changes_nothing(server, collect):
    def die_and_come_back():
        server.kill()
        restart.start()

    restart = threading.Thread(target=server.start)
    engine = TeamEngine(happenings={6: die_and_come_back})
    rollout = collect(f"{server.url}?{TRIES}", engine, step_retries=30)
    restart.join()
    assert rollout.failed == ()
    assert len(engine.requests) == 12 * 6  # no response was sampled twice
    assert_evidence_is_real(rollout.episodes)

    calm = collect(f"{server.url}?{TRIES}")
    assert [states(episode) for episode in rollout.episodes] == [states(episode) for episode in calm.episodes]


def states(episode):
    return [(event.state_id, event.reward) for event in episode.events]


# --- servers that answer, but not well ----------------------------------------------------------------------------


class Faulty(BaseHTTPRequestHandler):
    """Speaks Search-R1's protocol, and misbehaves where a query is about the person of task 1."""

    engine = Bm25Index.from_corpus(passages())
    person = re.search(r"of (\w+)\.", Village(level=1).task(1).question).group(1)
    misbehave: Callable[[Faulty], None]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if any(self.person in query for query in body["queries"]) and self.misbehave():
            return
        found = self.engine.search(body["queries"], body["topk"])
        rows = [[{"id": p.id, "title": p.title, "text": p.text} for p in row] for row in found]
        self.answer(200, json.dumps({"result": [[{"document": row, "score": 1.0} for row in each] for each in rows]}))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(text.encode())
        return True

    def log_message(self, *arguments):
        """Stay silent."""


@contextlib.contextmanager
def faulty_server(misbehave):
    """Run a server that misbehaves as a function of its handler does; true where that has dealt with the request."""
    handler = type("Handler", (Faulty,), {"misbehave": misbehave})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}?{TRIES}"
        finally:
            server.shutdown()
            thread.join()


FAULTS = {
    "503": lambda handler: handler.answer(503, '{"detail": "busy"}'),
    "an error page": lambda handler: handler.answer(200, "<html>out of order</html>"),
    "another shape": lambda handler: handler.answer(200, '{"results": []}'),
    "no list": lambda handler: handler.answer(200, '{"result": []}'),
    "no documents": lambda handler: handler.answer(200, '{"result": [[{"score": 1}], [null]]}'),
    "too many": lambda handler: handler.answer(
        200, json.dumps({"result": [[{"id": str(n), "contents": f"{n}"} for n in range(9)]] * 2})
    ),
    "half a body": lambda handler: handler.answer(200, '{"result": [['),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_is_a_failure_and_never_empty_evidence(fault, collect):
    with faulty_server(FAULTS[fault]) as url:
        rollout = collect(url, num_jobs=4, step_retries=1)
    assert names(rollout.episodes) == ["t0", "t2", "t3"]
    assert_evidence_is_real(rollout.episodes)
    (failed,) = rollout.failed
    assert failed.job.episode_id == "t1"
    assert failed.reason.startswith("RetrieverError: ")
    assert failed.num_events == 1


def test_a_503_that_passes_is_retried(collect):
    asked = []

    def busy_twice(handler):
        asked.append(time.monotonic())
        return len(asked) <= 2 and handler.answer(503, '{"detail": "busy"}')

    with faulty_server(busy_twice) as url:
        rollout = collect(url, num_jobs=4, step_retries=2)
    assert (names(rollout.episodes), len(asked)) == (["t0", "t1", "t2", "t3"], 3)
    assert_evidence_is_real(rollout.episodes)


def test_a_server_that_never_answers_runs_into_the_step_limit(collect):
    released = threading.Event()
    with faulty_server(lambda handler: released.wait(30)) as url:
        begun = time.monotonic()
        rollout = collect(url.replace("timeout_s=5", "timeout_s=60"), num_jobs=4, step_timeout_s=0.5)
        assert time.monotonic() - begun < 5
        released.set()
    assert names(rollout.episodes) == ["t0", "t2", "t3"]
    assert_evidence_is_real(rollout.episodes)
    assert rollout.failed[0].reason == "environment step took over 0.5 s"


# --- training -----------------------------------------------------------------------------------------------------

RECIPE = """
name = "outage"
[env]
id = "srpo_envs/VillageSearch-v0"
[env.kwargs]
level = 1
[policies.team]
model = "builtin:tiny-team"
dtype = "float32"
device = "cpu"
[roles]
"*" = "team"
[rollout]
prompts_per_step = 3
group_size = 2
max_concurrent = 2
step_retries = 1
[objective]
preset = "srpo"
[eval]
every = 0
[train]
num_steps = 2
checkpoint_every = 1
num_threads = 1
[log]
save_events = "all"
tensorboard = false
"""
# A group of two runs at a time, each in five calls: step 1 makes calls 0 to 14, and step 2 begins with call 15.


class TrainedEngine(TeamEngine):
    """The team's script in the place of the sampler, with the weights' version; every second answer is wrong.

    Its tokens are bytes, which are ids of the embedded policy's vocabulary too, so the learner can train on them.
    """

    def __init__(self, policy, happenings):
        self._policy = policy
        super().__init__(policy.policy_id, happenings)

    @property
    def policy_version(self):
        return self._policy.version

    @policy_version.setter
    def policy_version(self, value):
        """The policy counts its versions."""

    def _play(self, request):
        text = super()._play(request)
        is_wrong = "/g1" in request.request_id and "<answer>" in text
        return "<think></think><answer>wrong</answer>" if is_wrong else text


@pytest.fixture
def train_village(server, tmp_path, monkeypatch):
    """Trains the recipe with the scripted engine; what happens to the server is given by the number of the call."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)

    def run(happenings, *, resume=False, overrides=()):
        monkeypatch.setattr(
            "srpo_train.places.make_engines",
            lambda team, config: {policy.policy_id: TrainedEngine(policy, happenings) for policy in team},
        )
        fixed = [f"output_dir={tmp_path}", f"env.kwargs.retriever={server.url}?{TRIES}"]
        return train(load_recipe(path, [*fixed, *overrides]), resume=resume)

    return run


def logged(run_dir, name):
    return [line[name] for line in read_metrics(run_dir)]


def stored_episodes(run_dir):
    return [episode for path in sorted((run_dir / "events").glob("*.jsonl")) for episode in read_episodes(path)]


def assert_run_is_sound(run_dir):
    report = audit_run(run_dir, replay=True)  # which needs no server
    assert report.is_ok, report.summary()
    assert_evidence_is_real(stored_episodes(run_dir))


def test_training_goes_on_past_an_outage(server, train_village):
    # The second group of step 1 meets the outage; the server is back for the third.
    run_dir = train_village({6: server.kill, 7: server.start})
    assert logged(run_dir, "rollout/num_failed_episodes") == [2, 0]
    assert logged(run_dir, "rollout/num_episodes") == [4, 6]
    assert logged(run_dir, "train/num_events") == [4 * 5, 6 * 5]
    assert logged(run_dir, "train/policy_version") == [1, 2]
    assert logged(run_dir, "rollout/reward_mean") == [0.5, 0.5]
    assert logged(run_dir, "rollout/env/num_queries") == [2, 2]
    assert_run_is_sound(run_dir)


def test_a_step_that_lost_every_episode_is_collected_again_when_the_server_is_back(server, train_village, monkeypatch):
    # Step 2 is calls 15 to 20: each group asks its router and its searchers and then fails. Call 21 is its second try.
    monkeypatch.setattr("srpo_train.samplers._FIRST_PAUSE_S", 0.01)
    run_dir = train_village({16: server.kill, 21: server.start})
    assert logged(run_dir, "rollout/num_failed_episodes") == [0, 0]
    assert logged(run_dir, "rollout/num_recollected_episodes") == [0, 6]
    assert logged(run_dir, "train/policy_version") == [1, 2]
    assert_run_is_sound(run_dir)


def test_a_run_that_lost_a_whole_step_to_an_outage_is_resumed_where_it_was(server, train_village, tmp_path):
    # A server that stays away ends the run, which says why; the step it was in is not counted.
    with pytest.raises(SurroundingsError, match="all 6 episodes failed; the first: RetrieverError: http://127"):
        train_village({16: server.kill}, overrides=["rollout.lost_step_retries=0"])
    assert logged(tmp_path / "outage", "rollout/num_failed_episodes") == [0]
    server.start()
    run_dir = train_village({}, resume=True, overrides=["rollout.lost_step_retries=0"])
    assert logged(run_dir, "rollout/num_failed_episodes") == [0, 0]
    assert logged(run_dir, "train/policy_version") == [1, 2]
    assert_run_is_sound(run_dir)
