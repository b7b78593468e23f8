"""Exact match and F1 of short text answers, with SQuAD v1.1 normalisation and the best of several golds.

Normalisation lower-cases, deletes ASCII punctuation, deletes the articles a, an and the as whole words, and collapses
white space, in this order. By default Unicode is left as it is, as in the published scores: 'Beyoncé' in composed and
decomposed form, curly quotes and full-width digits are different texts. `fold_unicode` makes them equal.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MINUS_SIGN = "\u2212"


def normalise_text(text: str) -> str:
    """Return the SQuAD v1.1 normal form of a text."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def fold_unicode(text: str) -> str:
    """Return a text in which spellings of the same characters are one and punctuation is ASCII or gone.

    Compatibility composition (NFKC: one form of an accented letter, ASCII for full-width digits, plain blanks), then
    without punctuation outside ASCII, the minus sign and invisible format characters, because SQuAD deletes their ASCII
    counterparts. Letters keep their accents. A text of nothing else is returned as it is.
    """
    kept = "".join(char for char in unicodedata.normalize("NFKC", text) if char.isascii() or not _is_folded(char))
    return unicodedata.normalize("NFKC", kept) if kept.strip() else text


def _is_folded(char: str) -> bool:
    category = unicodedata.category(char)
    return category.startswith("P") or category == "Cf" or char == _MINUS_SIGN


def score_qa(prediction: str, golds: str | Iterable[object], *, fold: bool = False) -> tuple[bool, float]:
    """Score a prediction against the best of its gold answers.

    F1 is the harmonic mean of precision and recall over the bag of normalised tokens. A side that normalises to nothing
    matches only when the raw texts are equal, so an empty answer never earns the gold 'The The'.

    Args:
        prediction: the answer text, its tags already removed.
        golds: one gold text, or several of which the best counts; numbers are read as their text.
        fold: compare after `fold_unicode`; the published scores do not.

    Returns:
        (exact match, F1 in [0, 1]); (False, 0.0) when there is no gold.
    """
    texts = [golds] if isinstance(golds, str) else [str(gold) for gold in golds]
    if fold:
        prediction, texts = fold_unicode(prediction), [fold_unicode(gold) for gold in texts]
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
