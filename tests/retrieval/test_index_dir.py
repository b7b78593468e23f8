"""Index folders: whole or not there, and damage is told before a search meets it."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import corpus_digest
from retrieval.index_dir import (
    MANIFEST_FILE,
    Manifest,
    PassageStore,
    PassageWriter,
    new_index,
    open_array,
    open_manifest,
    write_manifest,
)
from srpo_envs.errors import SearchIndexError
from srpo_envs.search import Passage

PASSAGES = [
    Passage(id="1", title="Peru", text="The capital of Peru is Lima."),
    Passage(id="é", title="", text="a\u2028b\n\U0001f600"),
    Passage(id="3", title='"Heroes"', text=""),
]
BUILD_AND_DIE = """
import os, signal, sys
from retrieval.index_dir import new_index
with new_index(sys.argv[1]) as folder:
    (folder / "half").mkdir()
    (folder / "half" / "file").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def manifest(**changes):
    defaults = {"kind": "test", "version": 1, "num_passages": 3, "corpus_digest": "ab", "settings": {"k1": 0.9}}
    return Manifest(**{**defaults, **changes})


def build(path, passages=PASSAGES, **changes):
    with new_index(path) as folder:
        with PassageWriter(folder) as writer:
            for passage in passages:
                writer.add(passage)
        write_manifest(folder, manifest(**changes))
    return path


def test_what_is_written_is_read_back(tmp_path):
    path = build(tmp_path / "index")
    assert open_manifest(path, "test", 1) == manifest()
    store = PassageStore.open(path)
    assert list(store) == PASSAGES
    assert len(store) == 3
    assert store[-1] == PASSAGES[2]
    assert store[1:] == PASSAGES[1:]
    assert store.read(0, score=2.5) == Passage(id="1", title="Peru", text=PASSAGES[0].text, score=2.5)
    with pytest.raises(IndexError, match="passage 3 of 3"):
        store[3]


def test_an_index_opens_after_it_moved(tmp_path):
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(build(tmp_path / "index"), moved)
    assert open_manifest(moved, "test", 1) == manifest()
    assert list(PassageStore.open(moved)) == PASSAGES


def test_the_writer_knows_the_digest_of_the_corpus(tmp_path):
    with PassageWriter(tmp_path) as writer:
        for passage in PASSAGES:
            writer.add(passage)
    assert writer.digest == corpus_digest(PASSAGES)
    assert writer.num_passages == 3


@given(st.sampled_from(["kind", "version", "num_passages", "corpus_digest", "settings"]))
def test_the_fingerprint_depends_on_every_field(name):
    other = {"kind": "b", "version": 2, "num_passages": 4, "corpus_digest": "cd", "settings": {"k1": 0.8}}[name]
    assert manifest(**{name: other}).fingerprint != manifest().fingerprint
    assert manifest(settings={"b": 1, "a": 2}).fingerprint == manifest(settings={"a": 2, "b": 1}).fingerprint


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), new_index(tmp_path / "index"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_the_older_index(tmp_path):
    path = build(tmp_path / "index")
    with pytest.raises(KeyError), new_index(path):
        raise KeyError
    assert open_manifest(path, "test", 1) == manifest()


def test_a_newer_index_replaces_an_older_one(tmp_path):
    path = build(tmp_path / "index")
    older = PassageStore.open(path)
    build(path, PASSAGES[:1], num_passages=1)
    assert open_manifest(path, "test", 1).num_passages == 1
    assert list(older) == PASSAGES  # who has it open goes on
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_killed_build_leaves_no_index_and_the_next_clears_up(tmp_path):
    path = tmp_path / "index"
    died = subprocess.run([sys.executable, "-c", BUILD_AND_DIE, os.fspath(path)], check=False)
    assert died.returncode == -signal.SIGKILL
    with pytest.raises(SearchIndexError, match="no index at"):
        open_manifest(path, "test", 1)
    assert any(tmp_path.iterdir())
    build(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]
    assert not (path / "half").exists()


def test_two_builds_of_one_index_do_not_meet(tmp_path):
    with pytest.raises(SearchIndexError, match="another build is writing"), new_index(tmp_path / "index"):
        build(tmp_path / "index")


def test_a_folder_that_is_no_index_is_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SearchIndexError, match="is not an index"):
        build(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SearchIndexError, match=r"no index can be written at .*file/index"):
        build(tmp_path / "file" / "index")


def test_an_empty_folder_becomes_an_index(tmp_path):
    (tmp_path / "index").mkdir()
    assert open_manifest(build(tmp_path / "index"), "test", 1) == manifest()


def test_a_build_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(SearchIndexError, match="no index at"), new_index(tmp_path / "index"):
        pass


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SearchIndexError, match=r"cannot be read .*File name too long"):
        open_manifest(tmp_path / ("x" * 300), "test", 1)
    with pytest.raises(SearchIndexError, match="no index can be written at"):
        build(tmp_path / ("x" * 300))


def test_other_kinds_and_versions_are_named(tmp_path):
    path = build(tmp_path / "index")
    with pytest.raises(SearchIndexError, match=r"of kind 'test', expected 'bm25'; open it as test:"):
        open_manifest(path, "bm25", 1)
    with pytest.raises(SearchIndexError, match=r"version 1, this software reads 2; build it again"):
        open_manifest(path, "test", 2)


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.offsets.npy"])
@pytest.mark.parametrize("damage", [lambda file: os.truncate(file, 20), os.remove], ids=["cut short", "missing"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    path = build(tmp_path / "index")
    damage(path / name)
    with pytest.raises(
        SearchIndexError, match=rf"{name}': expected \d+ bytes, got .*; copy it again or build it again"
    ):
        open_manifest(path, "test", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"num_passages"', '"num"'), "is damaged"),
        (lambda text: text.replace("0.9", "1.2"), "was changed after the build"),
        (lambda text: text.replace('"files"', '"file"'), "is damaged"),
    ],
)
def test_a_damaged_manifest_is_told(tmp_path, change, message):
    file = build(tmp_path / "index") / MANIFEST_FILE
    file.write_text(change(file.read_text()))
    with pytest.raises(SearchIndexError, match=rf"manifest.json' {message}.*build it again"):
        open_manifest(tmp_path / "index", "test", 1)


def test_passages_that_do_not_fit_their_offsets_are_refused(tmp_path):
    path = build(tmp_path / "index")
    np.save(path / "passages.offsets.npy", np.array([0, 5]))
    with pytest.raises(SearchIndexError, match="rows and offsets of the passages do not fit"):
        PassageStore.open(path)


def test_a_damaged_row_is_told(tmp_path):
    path = build(tmp_path / "index")
    content = (path / "passages.jsonl").read_bytes()
    (path / "passages.jsonl").write_bytes(b"?" + content[1:])
    store = PassageStore.open(path)
    with pytest.raises(SearchIndexError, match="passage 0 of the index is damaged"):
        store[0]
    assert store[1] == PASSAGES[1]


def test_an_array_that_is_none_is_told(tmp_path):
    np.save(tmp_path / "b.npy", np.zeros(3))
    damaged = (tmp_path / "b.npy").read_bytes().replace(b"(3,)", b"(3,(")
    for content in (b"no array", damaged):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(SearchIndexError, match=r"a.npy' cannot be read"):
            open_array(tmp_path / "a.npy")


def test_the_manifest_lists_files_of_folders_below(tmp_path):
    with new_index(tmp_path / "index") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_bytes(b"abc")
        write_manifest(folder, manifest())
    assert json.loads((tmp_path / "index" / MANIFEST_FILE).read_text())["files"] == {"sub/a": 3}
