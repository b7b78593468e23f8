"""Grading: equivalence of mathematical answers, match of question-answering texts."""

from srpo_envs.grading.math_answer import (
    GraderStats,
    MathGrader,
    check_gold,
    close,
    is_equivalent,
    shared_grader,
    stats,
)
from srpo_envs.grading.qa_match import fold_unicode, normalise_text, score_qa

__all__ = [
    "GraderStats",
    "MathGrader",
    "check_gold",
    "close",
    "fold_unicode",
    "is_equivalent",
    "normalise_text",
    "score_qa",
    "shared_grader",
    "stats",
]
