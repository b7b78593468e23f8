"""Exact match and F1 of short text answers, with SQuAD v1.1 normalisation and the best of several golds.

Normalisation lower-cases, deletes ASCII punctuation, deletes the articles a, an and the as whole words, and collapses
white space, in this order. Unicode is left as it is: 'Beyoncé' in composed and decomposed form, curly quotes and
full-width digits are different texts, as in the published scores.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_text(text: str) -> str:
    """Return the SQuAD v1.1 normal form of a text."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def score_qa(prediction: str, golds: str | Iterable[object]) -> tuple[bool, float]:
    """Score a prediction against the best of its gold answers.

    F1 is the harmonic mean of precision and recall over the bag of normalised tokens. A side that normalises to nothing
    matches only when the raw texts are equal, so an empty answer never earns the gold 'The The'.

    Args:
        prediction: the answer text, its tags already removed.
        golds: one gold text, or several of which the best counts; numbers are read as their text.

    Returns:
        (exact match, F1 in [0, 1]); (False, 0.0) when there is no gold.
    """
    texts = [golds] if isinstance(golds, str) else [str(gold) for gold in golds]
    normal_prediction = normalise_text(prediction)
    tokens = Counter(normal_prediction.split())
    num_tokens = tokens.total()
    is_match, best_f1 = False, 0.0
    for gold in texts:
        normal_gold = normalise_text(gold)
        if not normal_prediction or not normal_gold:
            is_equal = prediction == gold
            f1 = float(is_equal)
        else:
            is_equal = normal_prediction == normal_gold
            f1 = _f1(tokens, num_tokens, normal_gold.split())
        is_match, best_f1 = is_match or is_equal, max(best_f1, f1)
    return is_match, best_f1


def _f1(tokens: Counter[str], num_tokens: int, gold_tokens: list[str]) -> float:
    """Return 2 * shared / (predicted + gold) over two bags of tokens, which equals the harmonic mean."""
    wanted = Counter(gold_tokens)
    shared = sum(min(count, tokens[token]) for token, count in wanted.items())
    return 2.0 * shared / (num_tokens + len(gold_tokens))
