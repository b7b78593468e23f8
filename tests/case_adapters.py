"""The grader behind the four call signatures that the shared case scorer documents."""

from __future__ import annotations

from typing import Any

from srpo_envs.errors import UnreadableGoldError
from srpo_envs.grading import is_equivalent, score_qa
from srpo_envs.parsing import (
    Malformed,
    extract_boxed,
    parse_answer,
    parse_boxed_answer,
    parse_route,
    parse_search,
    parse_verdict,
)


def math(gold: str, answer: str) -> bool:
    """Return the verdict; an unreadable gold is never a reward."""
    try:
        return is_equivalent(gold, answer)
    except UnreadableGoldError:
        return False


boxed = extract_boxed
qa = score_qa


def tags(role: str, raw: str, lo: int | None, hi: int | None) -> tuple[bool, Any]:
    """Return (valid, parsed) of one role's response."""
    if role == "router":
        result = parse_route(raw, low=lo if lo is not None else 1, high=hi if hi is not None else 5)
    else:
        readers = {
            "solver": parse_boxed_answer,
            "aggregator": parse_boxed_answer,
            "verifier": parse_verdict,
            "search": parse_search,
            "answer": parse_answer,
        }
        result = readers[role](raw)
    if isinstance(result, Malformed):
        return False, None
    return True, list(result.value) if isinstance(result.value, tuple) else result.value
