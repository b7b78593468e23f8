"""The client: what it returns, what it retries and for how long, what it refuses, and its sharing of connections."""

from __future__ import annotations

import email.utils
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from search_servers import KnownEngine, end, expected, free_port, scripted_server, start_server

from retrieval.client import HttpRetriever, _retry_after_s
from retrieval.server import SearchServer, ServerSettings
from srpo_envs.errors import ConfigError, RequestRejectedError, RetrieverError, SurroundingsError
from srpo_envs.search import Passage, search_all

QUICK = {"first_pause_s": 0.01, "longest_pause_s": 0.05, "timeout_s": 5.0, "total_timeout_s": 10.0}


@pytest.fixture
def open_client():
    """Makes clients with short pauses and closes them."""
    clients = []

    def make(url, **options):
        clients.append(HttpRetriever(url, **(QUICK | options)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def server():
    with SearchServer(KnownEngine(), ServerSettings(port=0)) as server:
        yield server


def good_answer(handler):
    queries = json.loads(handler.body)["queries"]
    handler.answer(200, {"result": [[{"id": query, "contents": f'"T"\n{query}'}] for query in queries]})


def found_for(query):
    return [[Passage(id=query, title="T", text=query)]]


def faults_then_good(*faults):
    """A script that answers with each fault once, then well; and the times it was asked."""
    pending, times = iter(faults), []

    def script(handler):
        if handler.command == "GET":
            handler.answer(404, "no health here")
            return
        times.append(time.monotonic())
        next(pending, good_answer)(handler)

    return script, times


def status(code, **headers):
    return lambda handler: handler.answer(code, {"detail": f"reason {code}"}, **headers)


def hang_up(handler):
    handler.close_connection = True


def half_an_answer(handler):
    handler.answer(200, b'{"result": [[', Content_Length="5000")
    handler.close_connection = True


def silence(handler):
    time.sleep(6.0)
    handler.close_connection = True


# --- answers ------------------------------------------------------------------------------------------------------


def test_passages_are_those_of_the_engine_behind_the_server(server, open_client):
    client = open_client(server.url)
    assert search_all(client, ["a", "", "é “b”\n"], 4) == [expected("a", 4), [], expected("é “b”\n", 4)]
    assert client.search([], 3) == []
    assert (client.fingerprint, client.num_passages) == ("known-1", 42)


def test_top_k_below_1_is_misuse(server, open_client):
    with pytest.raises(ValueError, match="top_k: expected at least 1, got 0"):
        open_client(server.url).search(["a"], 0)


def test_servers_without_health_are_read_too(open_client):
    with scripted_server(faults_then_good()[0]) as url:
        client = open_client(url)
        assert client.search(["q"], 3) == found_for("q")
        assert client.search(["q", "r"], 3) == found_for("q") + found_for("r")
        assert (client.fingerprint, client.num_passages) == ("", 0)
        client.wait_until_ready(5)


@pytest.mark.parametrize(("own", "servers", "sizes"), [(4, 100, [4, 4, 2]), (100, 3, [3, 3, 3, 1])])
def test_long_searches_are_cut_to_what_client_and_server_allow(open_client, own, servers, sizes):
    engine = KnownEngine()
    queries = [f"q{number}" for number in range(10)]
    with SearchServer(engine, ServerSettings(port=0, max_queries=servers)) as server:
        assert open_client(server.url, max_queries=own).search(queries, 1) == [expected(query, 1) for query in queries]
    assert [len(asked) for asked, _ in engine.calls] == sizes


@pytest.mark.parametrize("suffix", ["", "/", "/retrieve", "/retrieve/"])
def test_the_url_may_name_the_server_or_its_route(server, open_client, suffix):
    assert open_client(server.url + suffix).search(["a"], 1) == [expected("a", 1)]


# --- retries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [status(500), status(502), status(503), status(504), status(429), status(408), hang_up, half_an_answer, silence],
    ids=["500", "502", "503", "504", "429", "408", "hangs up", "half an answer", "silence"],
)
def test_faults_that_pass_are_retried(open_client, fault):
    script, times = faults_then_good(fault, fault)
    with scripted_server(script) as url:
        assert open_client(url, timeout_s=3.0).search(["q"], 3) == found_for("q")
    assert len(times) == 3


def test_it_gives_up_after_its_retries_and_says_what_it_met(open_client):
    script, times = faults_then_good(*[status(503)] * 9)
    with scripted_server(script) as url:
        client = open_client(url, max_retries=2)
        with pytest.raises(
            RetrieverError, match=rf"^{url}: no answer after 3 tries in .* s; the last reason: status 503: reason 503$"
        ):
            client.search(["q"], 3)
    assert len(times) == 3


def test_nobody_listening_is_an_error_after_the_retries(open_client):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RetrieverError, match=r"no answer after 4 tries.*ConnectError.*refused"):
        open_client(url, max_retries=3).search(["q"], 3)


def test_pauses_double_up_to_the_longest_with_jitter(open_client):
    client = open_client("http://127.0.0.1:1", first_pause_s=0.1, longest_pause_s=1.0)
    for num_tries, longest_s in [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (1000, 1.0)]:
        pauses = [client._pause_s(num_tries) for _ in range(50)]
        assert longest_s / 2 <= min(pauses) < max(pauses) <= longest_s


@pytest.mark.parametrize("in_words", [False, True], ids=["seconds", "date"])
def test_it_waits_as_long_as_the_server_asks(open_client, in_words):
    asked = email.utils.formatdate(time.time() + 2, usegmt=True) if in_words else "1"
    script, times = faults_then_good(status(503, Retry_After=asked))
    with scripted_server(script) as url:
        assert open_client(url).search(["q"], 3) == found_for("q")
    assert times[1] - times[0] >= 0.95  # a date has whole seconds


@pytest.mark.parametrize("asked", ["soon", "-5", "²"])
def test_a_time_to_wait_that_is_none_is_left_aside(asked):
    assert _retry_after_s({"retry-after": asked}) == 0.0


def test_it_does_not_wait_for_a_server_that_asks_for_too_much(open_client):
    script, times = faults_then_good(status(503, Retry_After="3600"))
    start = time.monotonic()
    with scripted_server(script) as url, pytest.raises(RetrieverError, match="after 1 try"):
        open_client(url).search(["q"], 3)
    assert time.monotonic() - start < 60
    assert len(times) == 1


def drip(handler):
    """Send a byte every 20 ms, so that no single wait is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(5_000):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize("fault", [status(500), silence, drip], ids=["500", "silence", "drip"])
def test_the_total_time_bounds_a_search(open_client, fault):
    script, _ = faults_then_good(*[fault] * 10_000)
    start = time.monotonic()
    with scripted_server(script) as url, pytest.raises(RetrieverError):
        open_client(url, timeout_s=0.2, total_timeout_s=0.6, max_retries=10_000).search(["q"], 3)
    assert time.monotonic() - start < 30


def test_the_server_is_told_how_long_the_client_waits(open_client):
    told = []

    def script(handler):
        told.append(float(handler.headers["x-timeout-s"]))
        good_answer(handler)

    with scripted_server(script) as url:
        open_client(url, timeout_s=7.0, total_timeout_s=60.0).search(["q"], 3)
        open_client(url, timeout_s=7.0, total_timeout_s=6.0).search(["q"], 3)
    assert told[0] == 7.0
    assert 0.0 < told[1] <= 6.0


# --- errors that no retry helps -----------------------------------------------------------------------------------


def test_a_refusal_is_not_retried_and_carries_the_servers_reason(server, open_client):
    client = open_client(server.url)
    with pytest.raises(RequestRejectedError, match="status 422: topk: expected 1 to 100, got 101"):
        client.search(["a"], 101)
    with pytest.raises(RequestRejectedError, match="expected at most 10000 characters, got 10001"):
        client.search(["x" * 10_001], 3)
    assert issubclass(RequestRejectedError, (SurroundingsError, ValueError))


@pytest.mark.parametrize("code", [400, 401, 404, 413, 422])
def test_client_errors_are_asked_once(open_client, code):
    script, times = faults_then_good(status(code))
    with scripted_server(script) as url, pytest.raises(RequestRejectedError, match=f"status {code}: reason {code}"):
        open_client(url).search(["q"], 3)
    assert len(times) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>Welcome to nginx!</html>", "unusable answer: expected JSON, got b'<html>"),
        ('{"result": [[{"id": "1", "conte', "unusable answer: expected JSON"),
        ({"result": []}, "unusable answer: expected 1 lists of documents, got 0"),
        ({"result": [[{"id": "1"}]]}, "unusable answer: expected a document"),
        ({"result": [[{"contents": str(number)} for number in range(4)]]}, "at most 3 documents"),
    ],
    ids=["HTML", "cut short", "too few lists", "no document", "too many documents"],
)
def test_garbage_never_passes_for_an_answer(open_client, body, message):
    script, _ = faults_then_good(lambda handler: handler.answer(200, body))
    with scripted_server(script) as url, pytest.raises(RetrieverError, match=message):
        open_client(url).search(["q"], 3)


@pytest.mark.parametrize(
    "fault",
    [
        lambda handler: handler.answer(301, "", Location="http://127.0.0.1:1/"),
        lambda handler: handler.answer(200, b"no gzip", Content_Encoding="gzip"),
    ],
    ids=["redirect", "broken compression"],
)
def test_answers_that_are_none_are_errors(open_client, fault):
    script, _ = faults_then_good(fault)
    with scripted_server(script) as url, pytest.raises(RetrieverError, match="unusable answer"):
        open_client(url).search(["q"], 3)


def test_an_index_that_changes_under_a_run_is_an_error(open_client):
    engine = KnownEngine()
    with SearchServer(engine, ServerSettings(port=0)) as server:
        client = open_client(server.url)
        client.search(["a"], 1)
        engine.fingerprint = "known-2"
        with pytest.raises(RetrieverError, match="the index changed from 'known-1' to 'known-2'"):
            client.search(["a"], 1)


# --- sharing ------------------------------------------------------------------------------------------------------


def test_threads_share_a_few_connections(open_client):
    sources, most, lock = set(), [], threading.Lock()
    running = 0

    def script(handler):
        nonlocal running
        with lock:
            running += 1
            most.append(running)
            sources.add(handler.client_address)
        time.sleep(0.005)
        with lock:
            running -= 1
        good_answer(handler)

    with scripted_server(script) as url, ThreadPoolExecutor(32) as threads:
        client = open_client(url, max_connections=4)
        queries = [f"q{number}" for number in range(200)]
        assert list(threads.map(lambda query: client.search([query], 3), queries)) == [found_for(q) for q in queries]
    assert len(sources) <= 4
    assert 1 < max(most) <= 4


FORKING = """
import os, sys
from retrieval.client import HttpRetriever

client = HttpRetriever(sys.argv[1], max_retries=0)
assert client.search(["parent"], 1)[0][0].id == "parent#0"
children = []
for number in range(4):
    pid = os.fork()
    if not pid:
        for step in range(50):
            query = f"child{number}-{step}"
            if client.search([query], 1)[0][0].id != f"{query}#0":
                os._exit(1)
        os._exit(0)
    children.append(pid)
for step in range(50):
    assert client.search([f"parent-{step}"], 1)[0][0].id == f"parent-{step}#0"
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]
client.close()
"""


def test_forked_children_ask_over_connections_of_their_own(server):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", FORKING, server.url], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_a_closed_client_opens_again(server, open_client):
    client = open_client(server.url)
    client.search(["a"], 1)
    client.close()
    client.close()
    assert client.search(["a"], 1) == [expected("a", 1)]


# --- opening ------------------------------------------------------------------------------------------------------


def test_settings_stand_in_the_query_of_the_url(open_client):
    url = f"http://127.0.0.1:{free_port()}"
    client = HttpRetriever.open(f"{url}?max_retries=1&first_pause_s=0.01&total_timeout_s=5")
    with pytest.raises(RetrieverError, match=f"^{url}: no answer after 2 tries"):
        client.search(["q"], 3)
    client.close()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://127.0.0.1:8000?timeout=5", "unknown setting 'timeout'; did you mean .*'timeout_s'"),
        ("http://127.0.0.1:8000?timeout_s=soon", "expected a number as in 'timeout_s=10.0', got 'soon'"),
        ("http://127.0.0.1:8000?max_retries=1.5", "expected a number as in 'max_retries=10', got '1.5'"),
        ("http://127.0.0.1:8000?timeout_s=-1", "timeout_s: expected at least 0.001, got -1.0"),
        ("http://127.0.0.1:8000?timeout_s=nan", "timeout_s: expected at least 0.001, got nan"),
        ("http://127.0.0.1:8000?max_queries=0", "max_queries: expected at least 1, got 0"),
        ("ftp://127.0.0.1", "expected the URL of a search server"),
        ("http://", "expected the URL of a search server"),
        ("http://host:port", "is not a URL"),
        ("http://127.0.0.1:99999", "expected the URL of a search server"),
    ],
)
def test_what_cannot_be_opened_is_named(location, message):
    with pytest.raises(ConfigError, match=message):
        HttpRetriever.open(location)


def test_a_proxy_is_not_asked_for_this_machine(server, open_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert open_client(server.url).search(["a"], 1) == [expected("a", 1)]


# --- servers that come and go -------------------------------------------------------------------------------------


def test_it_waits_until_a_server_has_loaded(open_client):
    port = free_port()
    client = open_client(f"http://127.0.0.1:{port}", max_retries=0)
    server = start_server(port, loading_s=0.5)
    try:
        client.wait_until_ready(30)
        assert client.search(["a"], 1) == [expected("a", 1)]
    finally:
        end(server)


def test_waiting_for_a_server_that_never_comes_ends(open_client):
    client = open_client(f"http://127.0.0.1:{free_port()}")
    start = time.monotonic()
    with pytest.raises(RetrieverError, match="ConnectError"):
        client.wait_until_ready(0.3)
    assert time.monotonic() - start < 30


def test_no_search_fails_while_the_server_is_killed_and_restarted(open_client):
    port = free_port()
    servers = [start_server(port)]
    client = open_client(
        f"http://127.0.0.1:{port}", longest_pause_s=0.5, max_retries=200, total_timeout_s=60.0, max_connections=32
    )
    killed = threading.Event()
    begun = itertools.count()

    def ask(number):
        if next(begun) == 200:
            servers[0].kill()
            killed.set()
        return client.search([f"q{number}"], 3)

    try:
        client.wait_until_ready(30)
        with ThreadPoolExecutor(32) as threads:
            searches = [threads.submit(ask, number) for number in range(600)]
            assert killed.wait(30)
            servers[0].wait()
            servers.append(start_server(port))
            found = [search.result() for search in searches]
    finally:
        for server in servers:
            end(server)
    assert found == [[expected(f"q{number}", 3)] for number in range(600)]
