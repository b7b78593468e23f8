"""How published question-answering sets write a question, its answers and the evidence it rests on.

The same few things go by many names. A question is ``question`` or ``Question``; an answer a text, a list of texts, a
JSON list in a text (PopQA), a value with aliases (TriviaQA) or a text beside ``answer_aliases`` (MuSiQue); the evidence
a list of titles, of ``[title, sentence]`` pairs (HotpotQA, 2WikiMultiHopQA) or of marked paragraphs (MuSiQue), in the
row or in its ``metadata`` (FlashRAG). Any set may use any of these, so a file is read whichever edition it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from srpo_envs.errors import DatasetError
from srpo_envs.tasks.loading import PublishedSet, first_present, kept_info

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"

QA_SETS: dict[str, PublishedSet] = {
    "facts": PublishedSet(shipped="facts_{split}.jsonl.gz", splits=("train", "test")),
    "nq": PublishedSet(hub_id=_FLASHRAG, config="nq", splits=("train", "dev", "test")),
    "triviaqa": PublishedSet(hub_id=_FLASHRAG, config="triviaqa", splits=("train", "dev", "test")),
    "popqa": PublishedSet(hub_id=_FLASHRAG, config="popqa", splits=("test",)),
    "hotpotqa": PublishedSet(hub_id=_FLASHRAG, config="hotpotqa", splits=("train", "dev")),
    "2wiki": PublishedSet(hub_id=_FLASHRAG, config="2wikimultihopqa", splits=("train", "dev")),
    "musique": PublishedSet(hub_id=_FLASHRAG, config="musique", splits=("train", "dev")),
    "bamboogle": PublishedSet(hub_id=_FLASHRAG, config="bamboogle", splits=("test",)),
}
"""The sets known by name: the shipped one, and the seven of Search-R1 in the edition it uses."""

OWN_SET = PublishedSet()
"""Stands for a set of your own."""

_QUESTION_FIELDS = ("question", "Question")
_ANSWER_FIELDS = ("golden_answers", "answers", "possible_answers", "answer", "Answer", "reward_model")
_ANSWER_PARTS = (
    *("value", "aliases", "normalized_aliases"),  # TriviaQA on the hub, and below as its authors publish it
    *("Value", "Aliases", "NormalizedAliases"),
    *("ground_truth", "target", "text"),
)
_NO_ANSWER = ("", "<unk>")
"""What test parts write where the answer is kept back (TriviaQA: ``<unk>``)."""
_KEPT_FIELDS = ("id", "_id", "question_id", "QuestionId", "source", "data_source", "type", "level")


def read_question(row: Mapping[str, Any]) -> str:
    """Return the question of a row.

    Raises:
        DatasetError: no field holds one.
    """
    name = first_present(row, _QUESTION_FIELDS, "question")
    if not isinstance(row[name], str) or not row[name].strip():
        raise DatasetError(f"field {name!r} holds no question: {row[name]!r:.80}")
    question: str = row[name].strip()
    return question


def read_golds(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every answer of a row that counts as right, aliases included, the set's own answer first.

    Raises:
        DatasetError: no field holds an answer, what it holds is none, or the row says that it has none.
    """
    if row.get("answerable") is False:
        raise DatasetError("the row is marked as not answerable")
    name = first_present(row, _ANSWER_FIELDS, "answer")
    try:
        value = _parse_list(row[name]) if name == "possible_answers" else row[name]
        texts = [*_answer_texts(value), *_answer_texts(row.get("answer_aliases") or ())]
    except DatasetError as error:
        raise DatasetError(f"field {name!r} {error}") from None
    golds = tuple(dict.fromkeys(text for text in texts if text not in _NO_ANSWER))
    if not golds:
        raise DatasetError(f"field {name!r} holds no answer: {row[name]!r:.80}")
    return golds


def read_info(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says of itself and of the evidence its answer rests on, for `Task.info`.

    ``gold_passage_ids``, ``gold_titles``, ``hops`` and ``queries`` appear where the row names them. ``queries`` are
    those that find the evidence, by turn; a plain list of texts is one query a turn.

    Raises:
        DatasetError: such a field holds something else.
    """
    metadata = row.get("metadata")
    places = [metadata if isinstance(metadata, Mapping) else {}, row]
    fields = {name: value for place in places for name, value in place.items() if value is not None}
    info: dict[str, Any] = kept_info(fields, _KEPT_FIELDS)
    if "gold_passage_ids" in fields:
        info["gold_passage_ids"] = tuple(dict.fromkeys(_text_list("gold_passage_ids", fields["gold_passage_ids"])))
    if titles := _gold_titles(fields):
        info["gold_titles"] = titles
    if hops := _num_hops(fields):
        info["hops"] = hops
    if "queries" in fields:
        info["queries"] = _queries_by_turn(fields["queries"])
    return info


# --- answers ------------------------------------------------------------------------------------------------------


def _parse_list(value: Any) -> Any:
    """Return PopQA's list of answers, which is a JSON text in the original edition."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise DatasetError(f"holds no JSON list of answers: {value!r:.80}") from error


def _answer_texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        parts = [value[name] for name in _ANSWER_PARTS if value.get(name) is not None]
        if not parts:
            raise DatasetError(f"holds none of {', '.join(_ANSWER_PARTS)}: {value!r:.80}")
        for part in parts:
            yield from _answer_texts(part)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _answer_texts(item)
    elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DatasetError(f"holds no answer: {value!r:.80}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise DatasetError(f"holds no finite number: {value!r}")
        yield str(int(value)) if value.is_integer() else repr(value)
    else:
        yield str(value).strip()


# --- evidence -----------------------------------------------------------------------------------------------------


def _text_list(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, (str, int)) for item in value):
        raise DatasetError(f"field {name!r}: expected a list of texts, got {value!r:.80}")
    return tuple(map(str, value))


def _queries_by_turn(value: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], str):
        return tuple(_text_list("queries", turn) for turn in value)
    return tuple((query,) for query in _text_list("queries", value))


def _gold_titles(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the titles of the pages an answer rests on, each once; none where the row names none."""
    if "supporting_titles" in fields:
        return tuple(dict.fromkeys(_text_list("supporting_titles", fields["supporting_titles"])))
    if "supporting_facts" in fields:
        titles = [fact.get("title") for fact in _records(fields["supporting_facts"])]
    else:
        paragraphs = _records(fields.get("paragraphs", ()))
        titles = [paragraph.get("title") for paragraph in paragraphs if paragraph.get("is_supporting")]
    return tuple(dict.fromkeys(title for title in titles if isinstance(title, str)))


def _records(value: Any) -> list[Mapping[str, Any]]:
    """Return a list of records of which a set may make pairs, title first, and `datasets` a record of lists."""
    if isinstance(value, Mapping):
        return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=False)]
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    records = [{"title": item[0]} if isinstance(item, (list, tuple)) and item else item for item in value]
    return [record for record in records if isinstance(record, Mapping)]


def _num_hops(fields: Mapping[str, Any]) -> int | None:
    """Return how many facts must be chained; MuSiQue tells by the steps of its decomposition."""
    if "hops" not in fields:
        steps = fields.get("question_decomposition")
        return len(steps) if isinstance(steps, (list, tuple)) else None
    hops = fields["hops"]
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 1:
        raise DatasetError(f"field 'hops': expected a number of at least 1, got {hops!r:.80}")
    return hops
