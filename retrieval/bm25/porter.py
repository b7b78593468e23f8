"""Porter's stemmer, in the form its author distributes: the algorithm of 1980 with his three later departures.

The departures are: words of one or two letters stay, ``-bli`` becomes ``-ble`` (the paper: ``-abli``, ``-able``), and
``-logi`` becomes ``-log``. Lucene's `PorterStemFilter` is this form; stemmers that follow the paper more closely, such
as Snowball's ``porter``, give other stems to words like ``possibly`` and ``archaeology``.

Source: M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980; https://tartarus.org/martin/PorterStemmer
"""

from __future__ import annotations

from collections.abc import Mapping

_DERIVATIONS = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_ENDINGS = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_RESIDUES = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"),
    *("sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


def porter_stem(word: str) -> str:
    """Return the stem of a word in lower case; characters other than ``aeiouy`` count as consonants."""
    if len(word) <= 2:
        return word
    word = _strip_plural(word)
    word = _strip_participle(word)
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(word, _DERIVATIONS)
    word = _replace_suffix(word, _ENDINGS)
    word = _strip_residue(word)
    return _tidy_end(word)


def _form(word: str) -> str:
    """Return ``c`` for every consonant and ``v`` for every vowel; ``y`` is a vowel after a consonant."""
    form = ""
    for letter in word:
        form += "v" if letter in "aeiou" or (letter == "y" and form.endswith("c")) else "c"
    return form


def _measure(word: str) -> int:
    """Return how often a consonant follows a vowel: Porter's m."""
    return _form(word).count("vc")


def _ends_in_double_consonant(word: str) -> bool:
    return len(word) >= 2 and word[-1] == word[-2] and _form(word)[-1] == "c"


def _ends_in_short_syllable(word: str) -> bool:
    """Whether the end is consonant, vowel, consonant, the last not w, x or y: Porter's *o."""
    return _form(word).endswith("cvc") and word[-1] not in "wxy"


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_participle(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    stem = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if stem == word or "v" not in _form(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _ends_in_double_consonant(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_in_short_syllable(stem) else stem


def _replace_suffix(word: str, replacements: Mapping[str, str]) -> str:
    """Replace the first suffix that fits, where something measurable stands before it."""
    for suffix, replacement in replacements.items():
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            return stem + replacement if _measure(stem) > 0 else word
    return word


def _strip_residue(word: str) -> str:
    for suffix in _RESIDUES:
        if word.endswith(suffix):
            stem = word[: -3 if suffix.endswith("ion") else -len(suffix)]
            return stem if _measure(stem) > 1 else word
    return word


def _tidy_end(word: str) -> str:
    """Drop a last e and one of two last l, where the word stays long enough."""
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_in_short_syllable(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word
