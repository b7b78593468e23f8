"""From text to terms as Lucene's English analysis makes them: words, possessive, lower case, stop words, stems.

The same chain as Anserini's default: `StandardTokenizer`, `EnglishPossessiveFilter`, `LowerCaseFilter`, `StopFilter`
with Lucene's 33 English stop words, `PorterStemFilter`. Words are those of Unicode's annex 29 in Lucene's reading:

- letters and digits join, over ``. : ' · ’`` between letters and ``. , ; ' ’`` between digits; ``_`` joins both;
- Han and Hiragana come one by one, Katakana in runs, Hangul as letters, Thai and its neighbours in runs;
- an emoji is a word with all that belongs to it: skin tone, joined parts, both halves of a flag;
- a word ends after 255 UTF-16 units.

Only sequences of emoji that no keyboard makes are cut otherwise: a circled letter or a lone skin tone joined to others.

A pattern over Unicode's classes would hold thousands of ranges, so the characters of a text are first replaced by
letters that name their classes (`WORD_BREAK_CLASSES`) and words are found in those; text in ASCII needs no detour.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator

from retrieval.bm25.porter import porter_stem
from retrieval.bm25.word_break_classes import WORD_BREAK_CLASSES

STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
        *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
        *("will", "with"),
    )
)
"""Lucene's `EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`."""

MAX_WORD_UNITS = 255
"""Longest word, in UTF-16 units."""

_LONGEST_REMEMBERED = 32  # bounds the memory: texts without spaces would be remembered whole
_POSSESSIVES = ("'s", "'S", "’s", "’S", "＇s", "＇S")


def analyze(text: str) -> list[str]:
    """Return the terms of a text in order; a text of stop words and punctuation has none."""
    # No word reaches over a space, and what stands between two recurs: nearly all of the work is remembered.
    return [
        term
        for chunk in text.split(" ")
        for term in (_remembered_terms(chunk) if len(chunk) <= _LONGEST_REMEMBERED else _terms_of(chunk))
    ]


@functools.lru_cache(maxsize=1 << 18)
def term_of(word: str) -> str:
    """Return the term of a word, empty for a stop word."""
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    # Java maps each character by itself: no dot is left over from İ, and Σ is σ even at the end of a word
    word = word.replace("İ", "i").replace("Σ", "σ").lower()
    return "" if word in STOP_WORDS else porter_stem(word)


def _terms_of(chunk: str) -> tuple[str, ...]:
    return tuple(term for term in map(term_of, find_words(chunk)) if term)


_remembered_terms = functools.lru_cache(maxsize=1 << 18)(_terms_of)


def find_words(text: str) -> list[str]:
    """Return the words of a text in order, as they are written."""
    if text.isascii():
        classes, pattern = text, _ASCII_WORD
        found = pattern.findall(text)
    else:
        classes, pattern = text.translate(_CLASS_OF), _WORD
        found = [text[match.start() : match.end()] for match in pattern.finditer(classes)]
    if max(map(len, found), default=0) <= MAX_WORD_UNITS // 2:  # no character takes more than two units
        return found
    return [text[begin:end] for begin, end in _bounded_spans(text, classes, pattern)]


def _bounded_spans(text: str, classes: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of words as Lucene cuts them: it never sees more of a word than fits into its buffer."""
    position = 0
    while position < len(classes):
        match = pattern.search(classes, position, position + 2 * MAX_WORD_UNITS)  # not to the end of the longest word
        if match is None or match.start() > position + MAX_WORD_UNITS:
            position = match.start() if match else position + MAX_WORD_UNITS
            continue
        begin, limit = match.start(), _end_of_buffer(text, match.start())
        if match.end() > limit:
            match = pattern.match(classes, begin, limit)
        position = match.end() if match else begin + 1
        if match:
            yield match.span()


def _end_of_buffer(text: str, begin: int) -> int:
    units = text[begin : begin + MAX_WORD_UNITS].encode("utf-16-le", "surrogatepass")[: 2 * MAX_WORD_UNITS]
    return begin + len(units.decode("utf-16-le", "ignore"))


class _ClassOf(dict[int, str]):
    """Letters of classes by code point, for `str.translate`; a space for characters of none."""

    def __init__(self) -> None:
        ranges = []
        for letter, spans in WORD_BREAK_CLASSES.items():
            for span in spans.split():
                first, _, last = span.partition("-")
                ranges.append((int(first, 16), int(last or first, 16), letter))
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]

    def __missing__(self, code: int) -> str:
        first, last, letter = self._ranges[bisect_right(self._firsts, code) - 1]
        self[code] = letter if first <= code <= last else " "
        return self[code]


# Patterns over the letters of classes. What may precede a word is bounded, so that a long run of it that no word
# follows is not read to its end from each of its characters.
_CLASS_OF = _ClassOf()
_EXTEND = "mzktvfxXS"  # WB4: belongs to the character before it, whatever that is
_LEAD = f"{{0,{MAX_WORD_UNITS - 1}}}+"
_JOIN = f"_[_{_EXTEND}]*"
_DIGITS = f"0[0{_EXTEND}]*"
_HEBREW = f"h[{_EXTEND}]*+"
_LETTERS = f"""(?:[ae][ae{_EXTEND}]*|{_HEBREW}(?!'|"[{_EXTEND}]*h))+"""
_SEGMENT = "|".join(
    [
        f"""{_HEBREW}(?:'[{_EXTEND}]*|"[{_EXTEND}]*{_HEBREW})""",  # WB7a to WB7c: gershayim
        f"{_LETTERS}(?:{_JOIN}{_LETTERS}|[.:'][{_EXTEND}]*[aeh][{_EXTEND}]*(?:{_LETTERS})?)*",  # WB5 to WB7
        f"{_DIGITS}(?:(?:{_JOIN}|[.,'][{_EXTEND}]*){_DIGITS})*",  # WB8, WB11, WB12
    ]
)
_KATAKANA = f"K[K{_EXTEND}]*(?:{_JOIN}K[K{_EXTEND}]*)*"  # WB13
_SEGMENTS = f"(?:{_KATAKANA}|(?:{_SEGMENT})+)"
_PARTS = "[zmkfxXS]*"  # what an emoji takes in, besides selectors
_EMOJI = (
    f"(?:(?:z{_LEAD}E|zz{_LEAD}e|f{_PARTS}(?<=z)[Ee]){_PARTS}"
    f"(?:(?<=z)[Ee]{_PARTS}|vz+[Ee]{_PARTS})*"  # WB3c: a joiner goes on to the next
    f"(?:v(?:x+X)?)?|f{_PARTS})"
)
_WORD = re.compile(
    "|".join(
        [
            f"(?:(?<!_)_[_{_EXTEND}]{_LEAD})?+{_SEGMENTS}(?:{_JOIN}{_SEGMENTS})*(?:{_JOIN})?",  # WB13a, WB13b
            f"[cH][{_EXTEND}]*",
            f"[sS][s{_EXTEND}]*",
            _EMOJI,
            f"r[{_EXTEND}]*r[{_EXTEND}]*",  # WB15, WB16: flags
            f"#[zmfxXS]*+(?:k{_PARTS}(?:vk{_PARTS})?|vk{_PARTS})",  # keycaps of # and *; those of digits are numbers
        ]
    )
)
_ASCII_SEGMENT = "(?:[A-Za-z]+(?:(?:_+|[.:'])[A-Za-z]+)*|[0-9]+(?:(?:_+|[.,;'])[0-9]+)*)+"
_ASCII_WORD = re.compile(f"(?:(?<!_)_+)?+{_ASCII_SEGMENT}(?:_+{_ASCII_SEGMENT})*_*")
