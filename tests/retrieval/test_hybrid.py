from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import srpo_envs.search
from retrieval.hybrid import HybridRetriever, fuse
from srpo_envs.errors import ConfigError, RetrieverError, UnknownIdError
from srpo_envs.search import Passage, register_retriever, search_all

NAMES = "abcdefghij"


def passages_of(names: str) -> list[Passage]:
    """Passages named by single letters, best first, with the scores of an engine that counts in thousands."""
    return [
        Passage(id=name, title=name.upper(), text=f"text {name}", score=1000.0 - at) for at, name in enumerate(names)
    ]


class FixedEngine:
    """Ranks the same letters for every query, and none for an empty one."""

    def __init__(self, ranking: str, *, fingerprint: str = "", num_passages: int = len(NAMES)) -> None:
        self.ranking = ranking
        self.fingerprint = fingerprint or ranking
        self.num_passages = num_passages
        self.asked: list[tuple[list[str], int]] = []
        self.is_closed = False

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.asked.append((list(queries), top_k))
        return [passages_of(self.ranking)[:top_k] if query else [] for query in queries]

    def close(self) -> None:
        self.is_closed = True


class BrokenEngine(FixedEngine):
    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        raise RetrieverError("the index is gone")


class ShortEngine(FixedEngine):
    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        return super().search(queries, top_k)[:-1]


rankings = st.lists(
    st.permutations(NAMES).flatmap(lambda names: st.integers(0, 10).map(lambda n: "".join(names[:n]))),
    min_size=2,
    max_size=4,
)


def ids(passages: Sequence[Passage]) -> str:
    return "".join(passage.id for passage in passages)


# --- fusion -------------------------------------------------------------------------------------------------------


def test_a_fused_score_is_the_sum_of_reciprocal_ranks() -> None:
    fused = fuse([passages_of("ab"), passages_of("bc")], k=60)
    assert ids(fused) == "bac"
    assert [passage.score for passage in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62], rel=1e-15)
    assert fused[0].text == "text b"


def test_equal_scores_come_by_id() -> None:
    assert ids(fuse([passages_of("zb"), passages_of("ay")])) == "azby"


@given(rankings, st.integers(1, 100))
def test_fusion_equals_the_definition(names: list[str], k: int) -> None:
    exact = {
        name: sum((Fraction(1, k + ranking.index(name) + 1) for ranking in names if name in ranking), Fraction(0))
        for name in set("".join(names))
    }
    fused = fuse([passages_of(ranking) for ranking in names], k)
    assert {passage.id for passage in fused} == set(exact)
    for passage in fused:
        assert passage.score == pytest.approx(float(exact[passage.id]), rel=1e-15)
    for better, worse in itertools.pairwise(fused):
        assert exact[better.id] >= exact[worse.id] or better.score == worse.score


@given(rankings, st.randoms(use_true_random=False))
def test_the_order_of_the_engines_is_without_effect(names: list[str], rng: random.Random) -> None:
    lists = [passages_of(ranking) for ranking in names]
    fused = fuse(lists)
    rng.shuffle(lists)
    assert fuse(lists) == fused


@given(rankings)
def test_a_passage_that_every_engine_ranks_higher_stays_higher(names: list[str]) -> None:
    places = {passage.id: place for place, passage in enumerate(fuse([passages_of(ranking) for ranking in names]))}
    for above in places:
        for below in places:
            if above != below and all(
                below not in ranking or (above in ranking and ranking.index(above) < ranking.index(below))
                for ranking in names
            ):
                assert places[above] < places[below]


@given(st.permutations(NAMES))
def test_engines_that_agree_are_right(names: list[str]) -> None:
    assert ids(fuse([passages_of("".join(names))] * 3)) == "".join(names)


def test_found_by_both_beats_found_first_by_one() -> None:
    # 2 / (60 + 60) > 1 / (60 + 1): with k = 60 the last of 60 in two lists passes the first of one.
    left = [Passage(id=f"l{rank:02}", title="", text="") for rank in range(59)]
    right = [Passage(id=f"r{rank:02}", title="", text="") for rank in range(59)]
    both = Passage(id="z", title="", text="")
    assert fuse([[*left, both], [*right, both]])[0].id == "z"


def test_one_id_must_be_one_passage() -> None:
    other = [Passage(id="a", title="Z", text="text a")]
    with pytest.raises(RetrieverError, match="different passages of id 'a', titled 'A' and 'Z'; build their indexes"):
        fuse([passages_of("a"), other])


# --- the retriever ------------------------------------------------------------------------------------------------


def test_every_query_has_its_own_fused_list() -> None:
    hybrid = HybridRetriever([FixedEngine("abc"), FixedEngine("bcd")])
    assert [ids(passages) for passages in search_all(hybrid, ["x", "", "y"], 3)] == ["bca", "", "bca"]
    assert hybrid.search([], 3) == []


def test_engines_are_asked_deeper_than_what_is_returned() -> None:
    engines = [FixedEngine("abcdefghij"), FixedEngine("jihgfedcba")]
    hybrid = HybridRetriever(engines, depth=4)
    assert len(hybrid.search(["x"], 2)[0]) == 2
    assert len(hybrid.search(["x"], 9)[0]) == 9
    assert [engine.asked for engine in engines] == [[(["x"], 4), (["x"], 9)]] * 2


def test_top_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="top_k: expected at least 1, got 0"):
        HybridRetriever([FixedEngine("a"), FixedEngine("b")]).search(["x"], 0)


@pytest.mark.parametrize("broken", [BrokenEngine("b"), ShortEngine("b")])
def test_an_engine_that_fails_makes_the_search_fail(broken: FixedEngine) -> None:
    for engines in ([FixedEngine("a"), broken], [broken, FixedEngine("a")]):
        with pytest.raises(RetrieverError):
            HybridRetriever(engines).search(["x", "y"], 1)


def test_engines_must_share_a_corpus() -> None:
    with pytest.raises(ConfigError, match=r"share one corpus, got corpora of \[3, 4\] passages"):
        HybridRetriever([FixedEngine("a", num_passages=3), FixedEngine("a", num_passages=4)])
    unknown = FixedEngine("a", num_passages=0)  # a server that does not say
    assert HybridRetriever([unknown, FixedEngine("a", num_passages=4)]).num_passages == 4
    assert HybridRetriever([unknown, unknown]).num_passages == 0


def test_numbers_out_of_range_are_refused() -> None:
    engines = [FixedEngine("a"), FixedEngine("b")]
    with pytest.raises(ConfigError, match="at least two retrievers, got 1"):
        HybridRetriever(engines[:1])
    for fields in ({"depth": 0}, {"k": 0}):
        with pytest.raises(ConfigError, match="depth and k must be at least 1"):
            HybridRetriever(engines, **fields)


def test_the_fingerprint_is_of_the_engines_and_the_settings() -> None:
    left, right = FixedEngine("a", fingerprint="f1"), FixedEngine("b", fingerprint="f2")
    fingerprint = HybridRetriever([left, right]).fingerprint
    assert HybridRetriever([right, left]).fingerprint == fingerprint
    others = [
        HybridRetriever([left, left]),
        HybridRetriever([left, right], k=61),
        HybridRetriever([left, right], depth=9),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 4
    right.fingerprint = ""
    assert HybridRetriever([left, right]).fingerprint == ""


def test_closing_closes_the_engines() -> None:
    engines = [FixedEngine("a"), FixedEngine("b")]
    HybridRetriever(engines).close()
    assert [engine.is_closed for engine in engines] == [True, True]


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locations that the schemes ``left`` and ``right`` were asked to open."""
    monkeypatch.setattr(srpo_envs.search, "_factories", {})
    monkeypatch.setattr(srpo_envs.search, "_opened", {})
    locations: list[str] = []

    def factory(location: str) -> FixedEngine:
        locations.append(location)
        return FixedEngine("ab")

    register_retriever("left", factory)
    register_retriever("right", factory)
    return locations


def test_a_hybrid_is_named_by_its_engines(opened: list[str]) -> None:
    hybrid = HybridRetriever.open("left:indexes/c++/a+b+right://host:80+left:x")
    assert opened == ["indexes/c++/a+b", "right://host:80", "x"]
    assert ids(hybrid.search(["x"], 2)[0]) == "ab"


@pytest.mark.parametrize("location", ["", "left:a", "left:a+b"])
def test_a_hybrid_of_one_is_refused(location: str, opened: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"expected names as in 'bm25:PATH\+dense:PATH', got"):
        HybridRetriever.open(location)
    assert opened == []


def test_an_unknown_engine_is_named(opened: list[str]) -> None:
    with pytest.raises(UnknownIdError, match="did you mean 'left'"):
        HybridRetriever.open("right:a+lefd:b")
