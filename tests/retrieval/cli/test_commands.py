"""``srpo retrieval``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from retrieval import corpora
from retrieval.client import HttpRetriever
from retrieval.server import SearchServer, ServerSettings
from srpo_envs.search import ScriptedRetriever
from srpo_train.cli import app

ROWS = (
    '{"id": "1", "contents": "\\"Peru\\"\\nThe capital of Peru is Lima."}',
    '{"id": "2", "contents": "\\"Chad\\"\\nThe currency of Chad is the franc."}',
    '{"id": "3", "contents": "\\"Lima\\"\\nLima lies on the coast of Peru."}',
)


def retrieval(*arguments: object, given: str | None = None) -> Result:
    command = ["retrieval", *map(str, arguments)]
    return CliRunner().invoke(app, command, input=given, env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    file.write_text("\n".join(ROWS) + "\n")
    return file


@pytest.fixture(scope="module")
def index(corpus: Path) -> Path:
    folder = corpus.parent / "index"
    result = retrieval("build", corpus, folder)
    assert result.exit_code == 0, result.output
    assert "bm25 index" in result.stdout
    return folder


def test_search_shows_passages_with_their_scores_best_first(index: Path) -> None:
    shown = retrieval("search", index, "capital of Peru", "--top-k", 2).stdout
    assert "The capital of Peru is Lima." in shown
    assert "Lima lies on the coast of Peru." in shown
    assert shown.index("The capital") < shown.index("Lima lies")


def test_search_as_json_gives_one_object_a_query_read_from_the_input(index: Path) -> None:
    result = retrieval("search", index, "--json", "--top-k", 1, given="currency\n\nthe\n")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["query"] for row in rows] == ["currency", "the"]
    assert [[passage["id"] for passage in row["passages"]] for row in rows] == [["2"], []]


def test_nothing_found_is_said(index: Path) -> None:
    assert "nothing found" in retrieval("search", index, "xylophone").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("search", "no-such-index", "x"), 1, "'no-such-index' is no folder; build an index with"),
        (("search", __file__, "x"), 1, "is a file, expected the folder of an index"),
        (("search", "facts", "x"), 1, "name a retriever, such as bm25:facts"),
        (("search", "bm52:facts", "x"), 2, "did you mean 'bm25'?"),
        (("search", "capital of Peru " * 20), 1, "is no folder"),
        (("search", "bm25:" + "x" * 300, "x"), 1, "no index at 'xxx"),
        (("search", "bm25:no-such-index", "x"), 1, "no index at 'no-such-index'"),
        (("build", "no-such-corpus.jsonl", "ix"), 1, "no corpus at 'no-such-corpus.jsonl'"),
        (("build", corpora.corpus_path("village"), "ix", "--k1", "-1"), 2, "expected k1 of at least 0"),
        (("bench", "bm25:village", "--queries", "no-such-file"), 2, "cannot be read"),
    ],
)
def test_what_cannot_be_done_ends_with_one_line(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = retrieval(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_damaged_corpus_names_the_line_and_leaves_no_index(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(ROWS[0] + "\n{broken\n")
    result = retrieval("build", corpus, tmp_path / "ix")
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert not (tmp_path / "ix").exists()


def test_bench_counts_and_measures(index: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("capital of Peru\ncurrency\n")
    result = retrieval("bench", index, "--queries", queries, "--num-requests", 20, "--num-clients", 2, "--batch", 3)
    assert result.exit_code == 0, result.output
    assert "20 by 2 clients, 3 queries each" in result.stdout
    assert "p99" in result.stdout
    assert retrieval("bench", index, "--num-requests", 5).exit_code == 0


def test_bench_tells_why_requests_failed(tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("q\n")
    with SearchServer(ScriptedRetriever({}), ServerSettings(port=0, max_top_k=5)) as server:
        result = retrieval("bench", server.url, "--queries", queries, "--num-requests", 4, "--top-k", 6)
    assert result.exit_code == 1
    assert "4 of 4 requests failed, the first one" in result.stderr
    assert "topk: expected 1 to 5, got 6" in result.stderr


def test_serve_answers_until_it_is_told_to_stop(index: Path) -> None:
    command = [sys.executable, "-m", "srpo_train.cli", "retrieval", "serve", str(index), "--port", "0", "--cache", "8"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = next(line for line in server.stderr if "listening on" in line).split("listening on ")[1].strip()
        with contextlib.closing(HttpRetriever(url)) as client:
            client.wait_until_ready(timeout_s=30)
        body = json.dumps({"queries": ["capital of Peru"], "topk": 1, "return_scores": True}).encode()
        request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            (found,) = json.load(answer)["result"]
        assert found[0]["document"]["contents"] == '"Peru"\nThe capital of Peru is Lima.'
        shown = retrieval("search", url, "capital of Peru", "--top-k", 1).stdout
        assert "The capital of Peru is Lima." in shown
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    finally:
        server.kill()
        server.wait()
        if server.stderr is not None:
            server.stderr.close()
