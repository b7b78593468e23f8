r"""How published mathematics sets write a problem and its answer.

The same few things go by many names: the question is ``problem``, ``question`` or ``prompt`` (a text, or a list of
chat messages), the answer a text, a number, a list, the end of a worked solution (``#### 18``, ``\boxed{204}``) or a
field of ``reward_model``. `read_question` and `read_golds` turn any of them into plain texts, or say why not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from srpo_envs.errors import DatasetError
from srpo_envs.parsing import extract_boxed
from srpo_envs.tasks.loading import PublishedSet, first_present


@dataclass(frozen=True, kw_only=True, slots=True)
class MathSet(PublishedSet):
    """One published set: where it is found and what its fields are called."""

    question: tuple[str, ...] = ("problem", "question", "prompt")
    """Fields that may hold the question, the first one present counts."""
    answer: tuple[str, ...] = ("answer",)
    """Fields that may hold the gold answer, the first one present counts."""
    list_means: Literal["any", "all"] = "any"
    """What a list of several answers says: any of them is right, or all of them together are the answer."""


_OWN_ANSWER = ("answer", "final_answer", "ground_truth", "reward_model", "solution")

MATH_SETS: dict[str, MathSet] = {
    "sample": MathSet(shipped="math_sample.jsonl", answer=_OWN_ANSWER),
    "dapo": MathSet(
        hub_id="open-r1/DAPO-Math-17k-Processed",
        config="en",
        splits=("train",),
        question=("prompt", "source_prompt"),
        answer=("solution", "reward_model", "answer"),
    ),
    "math500": MathSet(hub_id="HuggingFaceH4/MATH-500", splits=("test",)),
    "aime24": MathSet(hub_id="HuggingFaceH4/aime_2024", splits=("train",), answer=("answer", "solution")),
    "aime25": MathSet(hub_id="math-ai/aime25", splits=("test",)),
    "amc23": MathSet(hub_id="math-ai/amc23", splits=("test",)),
    "minerva": MathSet(hub_id="math-ai/minervamath", splits=("test",)),
    "olympiadbench": MathSet(
        hub_id="math-ai/olympiadbench", splits=("test",), answer=("final_answer", "answer"), list_means="all"
    ),
    "gsm8k": MathSet(hub_id="openai/gsm8k", config="main", splits=("train", "test"), question=("question",)),
}
"""The sets known by name; each also loads from a local file in the hub's format or a common variant of it."""

OWN_SET = MathSet(answer=_OWN_ANSWER)
"""Field names tried for a set of your own."""

_GSM8K_MARK = "####"
_THOUSANDS = re.compile(r"(?<![\d,.])-?\d{1,3}(?:,\d{3})+(?![\d,])")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_ONE_FORMULA = re.compile(r"\$([^$]+)\$\.?\Z")
# DAPO's rows wrap the problem in two paragraphs that ask for the line "Answer: ..."; our roles ask for a box.
_ANSWER_LINE_ORDER = re.compile(r"\ASolve the following math problem step by step\.[^\n]*\n\s*", re.IGNORECASE)
_ANSWER_LINE_REMINDER = re.compile(r"\n\s*Remember to put your answer on its own line[^\n]*\s*\Z", re.IGNORECASE)


def read_question(row: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    """Return the question of a row.

    Raises:
        DatasetError: no field holds one.
    """
    name = first_present(row, fields, "question")
    value = row[name]
    if isinstance(value, (list, tuple)):  # chat messages: the user's last turn is the question
        turns = [turn["content"] for turn in value if isinstance(turn, Mapping) and turn.get("role") == "user"]
        value = turns[-1] if turns else None
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(f"field {name!r} holds no question: {row[name]!r:.80}")
    value = _ANSWER_LINE_REMINDER.sub("", _ANSWER_LINE_ORDER.sub("", value))
    return value.strip()


def read_golds(row: Mapping[str, Any], fields: tuple[str, ...], list_means: Literal["any", "all"]) -> tuple[str, ...]:
    """Return the answers of a row that count as right, each as a text without the set's own wrapping.

    Raises:
        DatasetError: no field holds an answer, or what it holds is none.
    """
    name = first_present(row, fields, "answer")
    value = row[name]
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        texts = [_answer_text(item) for item in items]
    except DatasetError as error:
        raise DatasetError(f"field {name!r} {error}") from None
    if not texts:
        raise DatasetError(f"field {name!r} holds an empty list of answers")
    if list_means == "all":
        return (", ".join(texts),)
    return tuple(dict.fromkeys(texts))


def _answer_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DatasetError(f"holds no answer: {value!r:.80}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DatasetError(f"holds no finite number: {value!r}")
        return str(int(value)) if value.is_integer() else repr(value)
    text = str(value)
    if _GSM8K_MARK in text:
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text.rpartition(_GSM8K_MARK)[2])
    elif _BOX.search(text):
        text = extract_boxed(text) or ""
    text = text.strip()
    if formula := _ONE_FORMULA.match(text):
        text = formula.group(1).strip()
    if not text:
        raise DatasetError(f"holds an empty answer: {value!r:.80}")
    return text
