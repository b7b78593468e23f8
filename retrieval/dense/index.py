"""A dense index on disk: how it is built, resumed, adopted from another program and opened.

It is a folder (`retrieval.index_dir`) with the passages, a FAISS file of their vectors, and what encoder made them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from retrieval.corpus import Corpus, contents_of, iter_passages
from retrieval.dense.encoders import EncoderSettings, TextEncoder, Vectors
from retrieval.dense.vectors import encode_corpus
from retrieval.index_dir import (
    REBUILD,
    Manifest,
    PassageStore,
    PassageWriter,
    new_index,
    open_manifest,
    write_manifest,
)
from retrieval.progress import OnProgress
from srpo_envs.errors import ConfigError, MissingExtraError, SearchIndexError, near_miss

Kind = Literal["flat", "hnsw"]

_KIND = "dense"
_VERSION = 1

_FAISS_FILE = "vectors.faiss"
_ENCODER_FILE = "encoder.json"
"""Where the encoder lies and how fast it runs: needed to open the index, without effect on what it returns."""

_SAME_VECTOR = 0.999
"""Least cosine of a stored vector and one computed now. Half precision leaves 0.9999, a forgotten prefix about 0.98."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HnswSettings:
    """A navigable small-world graph: approximate search whose time grows with the logarithm of the corpus.

    Raises:
        ConfigError: a value is out of range; names it.
    """

    num_links: int = 32
    """Neighbours of a passage in the graph, M in the literature."""
    ef_construction: int = 200
    """Candidates kept while a passage is linked; more make a better graph, slower."""
    ef_search: int = 128
    """Candidates kept while a query is answered; more find more of the exact answer, slower."""

    def __post_init__(self) -> None:
        for name, least in (("num_links", 2), ("ef_construction", 1), ("ef_search", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"hnsw {name}: expected at least {least}, got {value}")


def build_dense_index(
    corpus: Corpus,
    path: str | os.PathLike[str],
    encoder: EncoderSettings,
    *,
    kind: Kind = "flat",
    hnsw: HnswSettings | None = None,
    shard_size: int = 4096,
    on_progress: OnProgress | None = None,
) -> None:
    """Encode a corpus and write its index.

    Vectors are kept beside the index until it is whole (`retrieval.dense.vectors`): the same call after a crash goes on
    where it was, one with another corpus or encoder starts anew. The vectors of the whole corpus must fit into memory.

    Args:
        corpus: A corpus file, or its passages.
        path: The index folder; an index that is there is replaced at the end.
        encoder: What turns texts into vectors.
        kind: ``flat`` compares a query with every passage and is exact; ``hnsw`` is approximate. With more than one
            OpenMP thread the graph of ``hnsw`` depends on their timing.
        hnsw: Of the graph, only with kind ``hnsw``.
        shard_size: Passages encoded between two writes; at most so much work is lost.
        on_progress: Told how far the build is.

    Raises:
        ConfigError: settings contradict each other, or do not fit the encoder or this machine.
        CorpusError: the corpus cannot be read.
        EncoderLoadError: the encoder cannot be loaded.
        MissingExtraError: torch, transformers or faiss is not installed.
        RetrieverError: the encoder failed.
        SearchIndexError: the folder cannot be written.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f"dense index: unknown kind {kind!r}{near_miss(kind, get_args(Kind))}")
    if hnsw is not None and kind != "hnsw":
        raise ConfigError(f"dense index: settings of hnsw were given for kind {kind!r}")
    faiss = _import_faiss()
    loaded = TextEncoder(encoder)
    index = _new_faiss_index(faiss, loaded.dimension, None if kind == "flat" else hnsw or HnswSettings())
    with new_index(path) as folder:
        digest = _write_passages(corpus, folder, on_progress)
        unfinished = Path(path).with_name(f".{Path(path).name}.vectors")
        unfinished.mkdir(exist_ok=True)
        file = unfinished / f"{digest[:16]}-{loaded.fingerprint[:16]}-{shard_size}.f32"
        with contextlib.closing(PassageStore.open(folder)) as passages:
            vectors = encode_corpus(loaded, passages, file, shard_size=shard_size, on_progress=on_progress)
        _add(index, vectors, shard_size, on_progress)
        faiss.write_index(index, str(folder / _FAISS_FILE))
        _finish(folder, index, digest, loaded)
    shutil.rmtree(unfinished)


def adopt_faiss_index(
    index_file: str | os.PathLike[str],
    corpus: Corpus,
    path: str | os.PathLike[str],
    encoder: EncoderSettings,
    *,
    on_progress: OnProgress | None = None,
) -> None:
    """Make an index of a FAISS file that another program built from the same corpus, such as Search-R1's e5_Flat.index.

    The file is linked where the file system can, and copied otherwise. The first, the middle and the last passage are
    encoded and held against their vectors, so that a wrong encoder, prefix, pooling or corpus shows now and not as bad
    results.

    Args:
        index_file: FAISS flat or HNSW index with inner product; vector n belongs to the n-th passage.
        corpus: A corpus file, or its passages.
        path: The index folder to write.
        encoder: What the vectors were made with.
        on_progress: Told how far it is.

    Raises:
        SearchIndexError: the file is damaged or of another kind, or fits neither corpus nor encoder.
        CorpusError: the corpus cannot be read.
        EncoderLoadError: the encoder cannot be loaded.
        MissingExtraError: torch, transformers or faiss is not installed.
    """
    index = _read_faiss_index(Path(index_file))
    loaded = TextEncoder(encoder)
    with new_index(path) as folder:
        digest = _write_passages(corpus, folder, on_progress)
        with contextlib.closing(PassageStore.open(folder)) as passages:
            _check_fit(index, len(passages), loaded, str(index_file))
            _check_vectors(index, passages, loaded, str(index_file))
        _link_or_copy(Path(index_file), folder / _FAISS_FILE)
        _finish(folder, index, digest, loaded)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseIndex:
    """An open index."""

    vectors: Any
    """The FAISS index, memory-mapped."""
    passages: PassageStore
    """Passage n has vector n."""
    encoder: TextEncoder
    """What made the vectors."""
    fingerprint: str
    """Of corpus, encoder and index settings."""


def open_dense_index(path: str | os.PathLike[str], *, device: str = "auto", model: str | None = None) -> DenseIndex:
    """Open an index; see `retrieval.dense.DenseRetriever.open`."""
    folder = Path(path)
    manifest = open_manifest(folder, _KIND, _VERSION)
    vectors = _read_faiss_index(folder / _FAISS_FILE)
    encoder = TextEncoder(dataclasses.replace(_read_settings(folder, model), device=device))
    if encoder.fingerprint != manifest.settings["encoder"]:
        raise SearchIndexError(
            f"{str(folder)!r} was built with another encoder than {encoder.settings.model!r} is now (weights, "
            f"vocabulary or settings differ); name the right one with model=, or {REBUILD}"
        )
    _check_fit(vectors, manifest.num_passages, encoder, str(folder))
    return DenseIndex(
        vectors=vectors, passages=PassageStore.open(folder), encoder=encoder, fingerprint=manifest.fingerprint
    )


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss-cpu", "dense") from error
    return faiss


def _new_faiss_index(faiss: Any, dimension: int, hnsw: HnswSettings | None) -> Any:
    if hnsw is None:
        return faiss.IndexFlatIP(dimension)
    index = faiss.IndexHNSWFlat(dimension, hnsw.num_links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = hnsw.ef_construction
    index.hnsw.efSearch = hnsw.ef_search
    return index


def _read_faiss_index(file: Path) -> Any:
    """Return a flat or HNSW index, memory-mapped."""
    faiss = _import_faiss()
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:  # a damaged length asks for more memory than there is
        raise SearchIndexError(f"{str(file)!r} cannot be read by faiss ({error}); {REBUILD}") from error
    is_known = isinstance(index, (faiss.IndexFlat, faiss.IndexHNSW))
    if not is_known or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise SearchIndexError(
            f"{str(file)!r}: expected a flat or HNSW index with inner product, got {type(index).__name__}"
            f" with metric {index.metric_type}"
        )
    return index


def _settings_of(index: Any) -> dict[str, Any]:
    """Return what decides the answers of a FAISS index, besides its vectors."""
    if not hasattr(index, "hnsw"):
        return {"index": "flat"}
    graph = HnswSettings(
        num_links=index.hnsw.nb_neighbors(1),
        ef_construction=index.hnsw.efConstruction,
        ef_search=index.hnsw.efSearch,
    )
    return {"index": "hnsw", **dataclasses.asdict(graph)}


def _write_passages(corpus: Corpus, folder: Path, on_progress: OnProgress | None) -> str:
    """Write the passages of an index and return the digest of the corpus."""
    with PassageWriter(folder) as writer:
        for passage in iter_passages(corpus):
            writer.add(passage)
            if on_progress is not None and writer.num_passages % 1000 == 0:
                on_progress("reading passages", writer.num_passages, None)
    if on_progress is not None:
        on_progress("reading passages", writer.num_passages, writer.num_passages)
    return writer.digest


def _add(index: Any, vectors: Vectors, shard_size: int, on_progress: OnProgress | None) -> None:
    """Put all vectors into an empty index: a flat one takes them at once, a graph grows by and by."""
    step = shard_size if hasattr(index, "hnsw") else len(vectors)
    for start in range(0, len(vectors), step):
        index.add(vectors[start : start + step])
        if on_progress is not None:
            on_progress("indexing vectors", index.ntotal, len(vectors))


def _finish(folder: Path, index: Any, digest: str, encoder: TextEncoder) -> None:
    """Write what is needed to open the index again."""
    settings = dataclasses.asdict(encoder.settings)
    if (model := Path(encoder.settings.model).expanduser()).is_dir():
        settings["model"] = str(model.resolve())
    del settings["device"]
    (folder / _ENCODER_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    manifest = Manifest(
        kind=_KIND,
        version=_VERSION,
        num_passages=index.ntotal,
        corpus_digest=digest,
        settings={"encoder": encoder.fingerprint, **_settings_of(index)},
    )
    write_manifest(folder, manifest)


def _read_settings(folder: Path, model: str | None) -> EncoderSettings:
    file = folder / _ENCODER_FILE
    try:
        settings = EncoderSettings(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:  # a ConfigError is a ValueError
        raise SearchIndexError(f"{str(file)!r} is damaged ({error}); {REBUILD}") from error
    return dataclasses.replace(settings, model=model or settings.model)


def _check_fit(index: Any, num_passages: int, encoder: TextEncoder, name: str) -> None:
    """Hold the size of a FAISS index against its corpus and its encoder."""
    if index.ntotal != num_passages:
        raise SearchIndexError(f"{name!r}: {index.ntotal} vectors for {num_passages} passages; is it another corpus?")
    if index.d != encoder.dimension:
        raise SearchIndexError(
            f"{name!r}: vectors of {index.d} numbers, the encoder {encoder.settings.model!r} gives {encoder.dimension}"
        )


def _check_vectors(index: Any, passages: PassageStore, encoder: TextEncoder, name: str) -> None:
    """Hold a few vectors of a FAISS index against what the encoder gives for their passages."""
    numbers = sorted({0, len(passages) // 2, len(passages) - 1})
    expected = encoder.encode_passages([contents_of(passages[number]) for number in numbers])
    for number, vector in zip(numbers, expected, strict=True):
        stored = index.reconstruct(number)
        cosine = float(vector @ stored / (np.linalg.norm(vector) * np.linalg.norm(stored)))
        if not cosine >= _SAME_VECTOR:  # also where it is not a number
            raise SearchIndexError(
                f"{name!r}: the vector of passage {passages[number].id!r} is not what {encoder.settings.model!r} gives "
                f"(cosine {cosine:.3f}); is it another encoder, prefix, pooling or corpus?"
            )


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
