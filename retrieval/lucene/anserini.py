"""Anserini, the Java toolkit around Lucene, from the jar that the package pyserini carries.

Only the jar is used. pyserini's own Python modules import torch, transformers and openai, and ask the Java machine for
a module that not every runtime has; none of them is imported here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from retrieval.lucene.java import JavaRuntime
from srpo_envs.errors import MissingPackageError, SearchIndexError

REQUIRED_MODULES = ("java.desktop", "java.logging")
"""Java modules without which the jar does not load; java.desktop brings what its logging needs."""

INSTALL = "pip install 'srpo[lucene]' and then pip install --no-deps pyserini==1.6.0"

_SEARCHER = "io/anserini/search/SimpleSearcher.class"
_BUFFER_SHARE = 4
"""The part of the heap that holds documents before they are written: a quarter."""
_PROGRESS = re.compile(r"([\d,]+) documents indexed")
_COUNTER = re.compile(r"- +(?:indexed|empty): +([\d,]+)$")


def find_anserini() -> Path:
    """Return the jar.

    Raises:
        MissingPackageError: pyserini is not installed, or without its jar.
    """
    package = importlib.util.find_spec("pyserini")  # finds, and does not import
    roots = package.submodule_search_locations or [] if package else []
    jars = [jar for root in roots for jar in sorted(Path(root).glob("resources/jars/anserini-*-fatjar.jar"))]
    if not jars:
        what = "pyserini is installed without Anserini's jar" if package else "pyserini is not installed"
        raise MissingPackageError(
            f"{what}, which carries Lucene: run {INSTALL} (the options keep torch and openai out)"
        )
    return jars[-1]


def anserini_version(jar: Path) -> str:
    """Return the version that the jar's name tells."""
    return jar.name.removeprefix("anserini-").removesuffix("-fatjar.jar")


def required_java(jar: Path) -> int:
    """Return the oldest Java that runs the jar: the class-file version less 44.

    Raises:
        MissingPackageError: the jar is damaged.
    """
    try:
        with zipfile.ZipFile(jar) as archive, archive.open(_SEARCHER) as file:
            return int.from_bytes(file.read(8)[6:], "big") - 44
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise MissingPackageError(f"{str(jar)!r} is damaged ({error}): run {INSTALL} with --force-reinstall") from error


def index_collection(
    runtime: JavaRuntime,
    jar: Path,
    *,
    rows: Path,
    index: Path,
    num_threads: int,
    heap_mib: int,
    on_documents: Callable[[int], None],
) -> int:
    """Index a folder of JSON Lines files in a process of its own.

    Args:
        runtime: Java.
        jar: Of Anserini.
        rows: The folder; rows are ``{"id": ..., "contents": ...}``; each thread takes whole files.
        index: Where to write.
        num_threads: Threads.
        heap_mib: Most memory for Java objects.
        on_documents: Called now and then with the number of documents indexed.

    Returns:
        How many documents were read; those without any text are read and not indexed.

    Raises:
        SearchIndexError: the process failed; the message ends with its last lines.
    """
    command = [
        *(str(runtime.executable), f"-Xmx{heap_mib}m", "-cp", str(jar), "io.anserini.index.IndexCollection"),
        *("-collection", "JsonCollection", "-input", str(rows), "-index", str(index), "-storeRaw"),
        *("-generator", "DefaultLuceneDocumentGenerator", "-threads", str(num_threads)),
        *("-memoryBuffer", str(heap_mib // _BUFFER_SHARE)),
    ]
    last_lines: deque[str] = deque(maxlen=20)
    num_read = 0
    with _running(command) as process:
        for line in process.stdout or ():
            last_lines.append(line.rstrip())
            if match := _PROGRESS.search(last_lines[-1]):
                on_documents(_number(match[1]))
            elif match := _COUNTER.search(last_lines[-1]):
                num_read += _number(match[1])
    if process.returncode != 0:
        said = "\n".join(last_lines)
        raise SearchIndexError(f"IndexCollection failed with status {process.returncode}; its last lines:\n{said}")
    return num_read


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose output is read in the body; a body that fails, or is interrupted, ends it."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
