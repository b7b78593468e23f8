"""`retrieval.opening`: retrievers by name, and indexes of shipped corpora that are built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import opening
from retrieval.bm25 import Bm25Index
from retrieval.client import HttpRetriever
from retrieval.tape import RecordingRetriever
from srpo_envs.errors import ConfigError, RetrieverError, SearchIndexError, UnknownIdError
from srpo_envs.search import Passage, open_retriever

PASSAGES = [
    Passage(id="a", title="Peru", text="The capital of Peru is Lima."),
    Passage(id="b", title="Chad", text="The currency of Chad is the franc."),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_index_of_a_shipped_corpus_is_built_once_and_then_opened(own_cache: Path) -> None:
    first = opening.open_bm25("village")
    (folder,) = own_cache.iterdir()
    written = (folder / "manifest.json").stat().st_mtime_ns
    second = opening.open_bm25("village")
    assert (folder / "manifest.json").stat().st_mtime_ns == written
    assert first.fingerprint == second.fingerprint
    assert first.search(["boss"], 3) == second.search(["boss"], 3)


def test_a_damaged_index_of_a_shipped_corpus_is_built_again(own_cache: Path) -> None:
    expected = opening.open_bm25("village").search(["age"], 2)
    (folder,) = own_cache.iterdir()
    (folder / "manifest.json").write_text("{")
    assert opening.open_bm25("village").search(["age"], 2) == expected


def test_where_nothing_can_be_kept_the_index_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "a file where the cache should be"
    blocker.write_text("")
    monkeypatch.setenv("SRPO_CACHE", str(blocker))
    assert len(opening.open_bm25("village").search(["friend"], 3)[0]) == 3


def test_a_name_without_an_index_tells_the_shipped_corpora() -> None:
    with pytest.raises(SearchIndexError, match="did you mean 'village'"):
        opening.open_bm25("vilage")


def test_an_index_folder_is_opened_by_what_it_is(tmp_path: Path) -> None:
    Bm25Index.build(PASSAGES, tmp_path / "ix")
    found = opening.open_any(str(tmp_path / "ix")).search(["capital of Peru"], 1)
    assert [passage.id for passage in found[0]] == ["a"]
    assert open_retriever(f"bm25:{tmp_path / 'ix'}") is opening.open_any(str(tmp_path / "ix"))


def test_a_folder_that_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SearchIndexError, match="is not an index"):
        opening.open_any(str(tmp_path))
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(SearchIndexError, match="is not an index"):
        opening.open_any(str(tmp_path))


def test_a_url_opens_a_client_with_its_settings() -> None:
    client = opening.open_any("http://127.0.0.1:9?timeout_s=2")
    assert isinstance(client, HttpRetriever)
    with pytest.raises(ConfigError, match="timeout_s"):
        opening.open_any("http://127.0.0.1:9?timeout=2")


def test_an_unknown_scheme_tells_the_nearest() -> None:
    with pytest.raises(UnknownIdError, match="did you mean 'bm25'"):
        opening.open_any("bm52:village")


def test_a_tape_answers_by_name(tmp_path: Path) -> None:
    recording = RecordingRetriever(Bm25Index.from_corpus(PASSAGES), tmp_path / "searches.jsonl")
    recorded = recording.search(["capital of Peru"], 1)
    recording.close()
    tape = open_retriever(f"tape:{tmp_path / 'searches.jsonl'}")
    assert tape.search(["capital of Peru"], 1) == recorded
    with pytest.raises(RetrieverError, match="currency of Chad"):
        tape.search(["currency of Chad"], 1)
