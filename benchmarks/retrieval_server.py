"""The search server under load, beside a plain one, undisturbed and while it is killed and started again.

Both servers search the same embedded BM25 index; every answer is compared with what that index finds without a server.
*ours* is `retrieval.server`. *plain* is the server as it usually is written: FastAPI with one synchronous route that
calls the searcher, as Search-R1's. Two kinds of clients ask one query at a time: `HttpRetriever`, and a plain client
that opens a connection for every request and takes an error as it comes. Where a server is killed, it gets SIGKILL when
half of the requests are answered, and is started again at once; the time it is away is part of the latencies.

    python benchmarks/retrieval_server.py --data DIR      # or SRPO_DATA; DIR holds 2wiki/corpus.jsonl, questions.jsonl
    python benchmarks/retrieval_server.py --data DIR --clients 64 --requests 2000
    python benchmarks/retrieval_server.py --data DIR --requests 2000 --call-ms 50 --timeout-s 10

The last one adds a pause to every call of the engine, one call at a time, as an encoder on a GPU would: what then
decides is whether queries of different clients are searched together.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder, in which `retrieval` would be a benchmark

from retrieval.bm25 import Bm25Index
from retrieval.client import HttpRetriever
from retrieval.server import ServerSettings, serve
from srpo_envs.search import Passage

DATA = Path(os.environ.get("SRPO_DATA", "data"))
TOP_K = 3
NUM_PROCESSES = 4
"""Client processes; each runs its share of the clients as threads."""

Ask = Callable[[str], list[str]]
"""Returns the ids of what was found for a query."""


# --- servers ------------------------------------------------------------------------------------------------------


class Engine:
    """The index, with a pause in every call; only one call pauses at a time."""

    def __init__(self, index: str, pause_s: float) -> None:
        self._index = Bm25Index.open(index)
        self.fingerprint, self.num_passages = self._index.fingerprint, self._index.num_passages
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return what the index finds."""
        if self._pause_s:
            with self._lock:
                time.sleep(self._pause_s)
        return self._index.search(queries, top_k)


def serve_ours(engine: Engine, port: int) -> None:
    serve(engine, ServerSettings(port=port))


def serve_plain(engine: Engine, port: int) -> None:
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: dict[str, Any]) -> dict[str, Any]:
        result = []
        for query in request["queries"]:
            (found,) = engine.search([query], request["topk"])
            documents = [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in found]
            result.append(
                [
                    {"document": document, "score": passage.score}
                    for document, passage in zip(documents, found, strict=True)
                ]
            )
        return {"result": result}

    uvicorn.run(app, port=port, access_log=False, log_level="warning")


SERVERS = {"ours": serve_ours, "plain": serve_plain}


class Server:
    """A server process that can be killed and started again."""

    def __init__(self, kind: str, index: Path, call_ms: float) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.cpu_s = 0.0
        """Processor time of the processes that have ended."""
        options = {"--serve": kind, "--index": index, "--port": port, "--call-ms": call_ms}
        self._command = [sys.executable, __file__, *(str(word) for option in options.items() for word in option)]
        self.start()

    def start(self) -> None:
        """Start a process; it may not listen yet."""
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> None:
        """End the process by a signal."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._process.send_signal(number)
        self._process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextlib.contextmanager
def running(kind: str, index: Path, call_ms: float) -> Iterator[Server]:
    """Run a server that answers."""
    server = Server(kind, index, call_ms)
    probe = HttpRetriever(server.url)
    try:
        probe.wait_until_ready(60)
        yield server
    finally:
        probe.close()
        server.end(signal.SIGTERM)


# --- clients ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def patient_client(url: str, timeout_s: float) -> Iterator[Ask]:
    options = {"timeout_s": timeout_s, "total_timeout_s": 5 * timeout_s, "max_retries": 1000, "longest_pause_s": 1.0}
    retriever = HttpRetriever(url, **options)
    yield lambda query: [passage.id for passage in retriever.search([query], TOP_K)[0]]
    retriever.close()


@contextlib.contextmanager
def plain_client(url: str, timeout_s: float) -> Iterator[Ask]:
    def ask(query: str) -> list[str]:
        body = json.dumps({"queries": [query], "topk": TOP_K, "return_scores": True}).encode()
        request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return [item["document"]["id"] for item in json.load(answer)["result"][0]]

    yield ask


CLIENTS = {"HttpRetriever": patient_client, "plain": plain_client}


@dataclass
class Tally:
    """What clients met."""

    waits_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    num_wrong: int = 0


def run_clients(
    kind: str, url: str, timeout_s: float, num_threads: int, shares: list[tuple[str, list[str]]], progress: Any
) -> Tally:
    """Ask every query of a share with so many threads; `progress` collects a mark for every request."""
    tally = Tally()

    def work(ask: Ask, query: str, expected: list[str]) -> None:
        start = time.monotonic()
        try:
            is_right = ask(query) == expected
        except Exception:  # whatever a client meets is a failed request
            tally.num_failed += 1
        else:
            tally.waits_s.append(time.monotonic() - start)
            tally.num_wrong += not is_right
        progress.put(1)

    with CLIENTS[kind](url, timeout_s) as ask, ThreadPoolExecutor(num_threads) as threads:
        for _ in threads.map(lambda share: work(ask, *share), shares):
            pass
    return tally


def measure(
    server: Server, client: str, args: argparse.Namespace, requests: list[tuple[str, list[str]]], *, is_killed: bool
) -> tuple[list[Tally], float]:
    """Run all client processes, and replace the server in the middle where it is killed. Returns seconds too."""
    fork = multiprocessing.get_context("fork")
    with fork.Manager() as manager, fork.Pool(NUM_PROCESSES) as pool:
        progress = manager.Queue()
        shares = [
            (
                client,
                server.url,
                args.timeout_s,
                args.clients // NUM_PROCESSES,
                requests[number::NUM_PROCESSES],
                progress,
            )
            for number in range(NUM_PROCESSES)
        ]
        start = time.monotonic()
        pending = pool.starmap_async(run_clients, shares)
        for _ in range(len(requests) // 2):
            progress.get()
        if is_killed:
            server.end(signal.SIGKILL)
            server.start()
        return pending.get(), time.monotonic() - start


# --- report -------------------------------------------------------------------------------------------------------


COLUMNS = (
    f"{'server':8s} {'client':14s} {'killed':6s} {'requests':>8s} {'failed':>7s} {'wrong':>6s} {'p50 ms':>9s} "
    f"{'p99 ms':>9s} {'per s':>7s} {'server CPU':>10s}"
)


def row(names: tuple[str, str, str], tallies: list[Tally], seconds: float, cpu_s: float) -> str:
    """Return a line of the table; processor time is that of the server, its starts included, for each request."""
    waits_s = sorted(wait for tally in tallies for wait in tally.waits_s)
    p50, p99 = (1000 * waits_s[int(share * (len(waits_s) - 1))] if waits_s else float("nan") for share in (0.5, 0.99))
    failed, wrong = sum(tally.num_failed for tally in tallies), sum(tally.num_wrong for tally in tallies)
    server, client, killed = names
    num_requests = len(waits_s) + failed
    return (
        f"{server:8s} {client:14s} {killed:6s} {num_requests:8d} {failed:7d} {wrong:6d} {p50:9.1f} {p99:9.1f} "
        f"{len(waits_s) / seconds:7.0f} {1000 * cpu_s / num_requests:7.2f} ms"
    )


def read_queries(path: Path) -> list[str]:
    return [json.loads(line)["question"] for line in path.read_text(encoding="utf-8").splitlines()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def compare(args: argparse.Namespace, index: Path) -> None:
    queries = read_queries(args.data / "2wiki" / "questions.jsonl")
    found = Bm25Index.open(index).search(queries, TOP_K)
    answers = [(query, [passage.id for passage in passages]) for query, passages in zip(queries, found, strict=True)]
    requests = list(itertools.islice(itertools.cycle(answers), args.requests))
    print(f"{args.clients} clients, {args.requests} requests of one query, top {TOP_K}")
    print(COLUMNS)
    for client, killed, kind in itertools.product(CLIENTS, ("no", "once"), SERVERS):
        with running(kind, index, args.call_ms) as server:
            tallies, seconds = measure(server, client, args, requests, is_killed=killed == "once")
        print(row((kind, client, killed), tallies, seconds, server.cpu_s), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data sets")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--timeout-s", type=float, default=60, help="how long a client waits for one try")
    parser.add_argument("--call-ms", type=float, default=0, help="pause in every call of the engine")
    parser.add_argument("--serve", choices=sorted(SERVERS), help=argparse.SUPPRESS)
    parser.add_argument("--index", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        SERVERS[args.serve](Engine(args.index, args.call_ms / 1000), args.port)
        return
    corpus = args.data / "2wiki" / "corpus.jsonl"
    if not corpus.is_file():
        print(f"skipped: no corpus at {corpus}; pass --data with a folder that holds 2wiki/corpus.jsonl")
        return
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        Bm25Index.build(corpus, index)
        compare(args, index)


if __name__ == "__main__":
    main()
