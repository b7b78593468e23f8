"""The Java machine of this process, and the one thread that talks to it.

pyjnius cannot be shared between threads: it keeps the object of a call in the method, which all threads share, so that
one thread's call may reach another thread's object (its issues 287 and 563). Here one thread makes every call; it stays
attached to the machine as long as the process lives, so nothing needs to be detached, and the callers wait outside
Java, where Ctrl-C reaches them. Work that should use several cores is given to Java as a batch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from retrieval.lucene.java import check_java_options, find_java_runtime
from srpo_envs.errors import JavaRuntimeError, MissingExtraError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

DEFAULT_HEAP = "2g"

_jvm: Jvm | None = None
_lock = threading.Lock()


class JavaError(Exception):
    """A Java exception, as text: nothing in it holds an object of the Java machine."""


class Jvm:
    """A running Java machine; from `start_jvm`."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._pid = os.getpid()

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Run a function in the Java thread, where it may use pyjnius.

        Returns:
            Its result, which must not hold Java objects, or its error; a Java exception comes as `JavaError`.

        Raises:
            JavaRuntimeError: this process is a fork of the one that started the machine.
        """
        if not self.is_own:
            raise JavaRuntimeError(
                f"the Java machine belongs to process {self._pid}, and this fork of it ({os.getpid()}) cannot use it: "
                "start workers with the 'spawn' method, or serve the index with `srpo retrieval serve`"
            )
        return self._thread.submit(without_java_objects, function)

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function in the Java thread and wait for it, see `submit`."""
        return self.submit(function).result()

    @property
    def is_own(self) -> bool:
        """Whether this process started the machine, rather than the one it was forked from."""
        return self._pid == os.getpid()


def start_jvm(
    class_path: Path, *, min_version: int, modules: Collection[str] = (), max_heap: str = DEFAULT_HEAP
) -> Jvm:
    """Return the Java machine of this process, started by the first call.

    Args:
        class_path: A jar.
        min_version: Oldest Java that runs it.
        modules: Java modules that it needs.
        max_heap: Most memory for Java objects, such as ``"2g"``; a machine that runs already keeps what it has.

    Raises:
        MissingExtraError: pyjnius is not installed.
        JavaRuntimeError: no usable runtime, or it does not start.
    """
    global _jvm
    with _lock:
        if _jvm is None:
            _jvm = _start(class_path, min_version, modules, max_heap)
    return _jvm


def _start(class_path: Path, min_version: int, modules: Collection[str], max_heap: str) -> Jvm:
    try:
        import jnius_config
    except ImportError as error:
        raise MissingExtraError("pyjnius", "lucene") from error
    if jnius_config.vm_running:
        logger.warning("using the Java machine that other code has started, with its options")
        return Jvm(_new_thread())
    runtime = find_java_runtime(min_version, modules)
    options = _options(runtime.version, max_heap)
    check_java_options(runtime, [*jnius_config.get_options(), *options])
    jnius_config.add_options(*options)
    jnius_config.add_classpath(str(class_path))
    thread = _new_thread()
    try:
        with _java_home(runtime.home):
            thread.submit(_import_pyjnius).result()
    except (ImportError, RuntimeError, SystemError) as error:
        raise JavaRuntimeError(f"Java {runtime.version} at {str(runtime.home)!r} does not start: {error}") from error
    return Jvm(thread)


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="java")


def _options(version: int, max_heap: str) -> list[str]:
    options = [
        f"-Xmx{max_heap}",
        "-Xrs",  # else Java takes SIGINT for itself and Ctrl-C is lost
        "--enable-native-access=ALL-UNNAMED",
    ]
    if version >= 24:
        options.append("--sun-misc-unsafe-memory-access=allow")  # else Java warns of what Lucene does
    return options


@contextlib.contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Lead pyjnius to a runtime; it reads these two variables when it is imported."""
    saved = {name: os.environ.pop(name, None) for name in ("JAVA_HOME", "JVM_PATH")}
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["JAVA_HOME"]
        os.environ.update({name: value for name, value in saved.items() if value is not None})


def _import_pyjnius() -> None:
    import jnius  # noqa: F401  importing it starts the machine


def without_java_objects(function: Callable[[], Result]) -> Result:
    """Run a function; raise a Java exception anew, as its traceback would carry Java objects to other threads."""
    import jnius

    try:
        return function()
    except jnius.JavaException as error:
        message = f"{error.classname}: {error.innermessage}"
    raise JavaError(message)
