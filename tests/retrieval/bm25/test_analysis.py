"""Words and terms, as Lucene 9.9 makes them: the tables were read off Anserini's default English analyzer."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.bm25.analysis import MAX_WORD_UNITS, STOP_WORDS, analyze, find_words, term_of

TERMS = [
    ("The Director's possibly generally relational archaeology", "director possibl gener relat archaeolog"),
    ("O'Neil's U.S.A. A.B.C F.C. can't e.g. x:y a;b", "o'neil u.s.a a.b.c f.c can't e.g x:y b"),
    ("3,500.5 1.5.2 12:30 4'5 3;4 1,000,", "3,500.5 1.5.2 12 30 4'5 3;4 1,000"),
    ("foo_bar __init__ _ ___ 10_000 well-known", "foo_bar __init__ 10_000 well known"),
    ("AT&T C++ user@example.org http://a.b/c?d=e", "t c user example.org http a.b c d e"),
    ("Teacher’s ｔｅａ＇s ’s 'S JAMES'S rock'n'roll children‘s", "teacher ｔｅａ s s jame rock'n'rol children‘"),
    ("İstanbul ΣΊΣΥΦΟΣ Straße ÅNGSTRÖM ǅ ﬁre É e\u0301", "istanbul σίσυφοσ straße ångström ǆ ﬁre é e\u0301"),
    ("中文 ひらがな 東京タワーへ行く", "中 文 ひ ら が な 東 京 タワー へ 行 く"),
    ("カタカナ カタ_カナ ｶﾀｶﾅ aカb", "カタカナ カタ_カナ ｶﾀｶﾅ カ b"),
    ("한국어 조선말", "한국어 조선말"),
    ("ภาษาไทย ລາວ မြန်မာ ខ្មែរ ก1ข", "ภาษาไทย ລາວ မြန်မာ ខ្មែរ ก 1 ข"),
    ("אב\"ג ג'ירפה צה\"ל עב'1", "אב\"ג ג'ירפה צה\"ל עב'1"),
    ("हिन्दी ქართული العربية ١٢٣٫٤ ٣،٤", "हिन्दी ქართული العربية ١٢٣٫٤ ٣،٤"),
    (
        "soft\xadhyphen zero\u200bwidth zwj\u200dx l·l \ufeffbom x\x00y",
        "soft\xadhyphen zero width zwj\u200dx l·l bom x y",
    ),
    ("😀 👍🏽 👨\u200d👩\u200d👧 a😀b ❤\ufe0f", "😀 👍🏽 👨\u200d👩\u200d👧 😀 b ❤\ufe0f"),
    ("🇵🇪🇫🇷🇮 1\ufe0f\u20e3 #\ufe0f\u20e3 *\u20e3 #5", "🇵🇪 🇫🇷 1\ufe0f\u20e3 #\ufe0f\u20e3 *\u20e3 5"),
    ("🏴\U000e0067\U000e0062\U000e007f ©2020 ™ ℹ\ufe0f Ⓜx", "🏴\U000e0067\U000e0062\U000e007f © 2020 ™ ℹ\ufe0f ⓜx"),
    ("𝐁𝐨𝐥𝐝 𐐀𐐨 𠀀𠀁", "𝐁𝐨𝐥𝐝 𐐨𐐨 𠀀 𠀁"),
    ("flies dies agreed hopping hoped sky happy say us was as", "fli di agre hop hope sky happi sai us"),
    ("it's its", "it"),  # the first is a stop word when the possessive is gone, the second only as a stem
]


@pytest.mark.parametrize(("text", "terms"), TERMS)
def test_terms_are_those_of_lucene(text, terms):
    assert analyze(text) == terms.split(" ")


def test_the_stop_words_are_lucenes_33():
    assert len(STOP_WORDS) == 33
    assert analyze(" ".join(sorted(STOP_WORDS)).title()) == []
    assert analyze("") == analyze(" \n.,!?") == []


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("x" * 600, [255, 255, 90]),
        ("\U00010400" * 300, [127, 127, 46]),  # two UTF-16 units each: 254 of 255 are used
        ("ab." * 100, [254, 44]),
        ("é" * 255, [255]),
    ],
)
def test_long_words_are_cut_where_lucene_cuts_them(text, lengths):
    assert [len(word) for word in find_words(text)] == lengths
    assert MAX_WORD_UNITS == 255


@given(st.text(alphabet="ab1_.,':;-# ", max_size=30))
def test_text_in_ascii_needs_no_detour_to_give_the_same_words(text):
    assert find_words(f"{text} é")[:-1] == find_words(text)


@given(st.text(max_size=40))
def test_words_stand_in_the_text_in_order(text):
    position = 0
    for word in find_words(text):
        position = text.index(word, position) + len(word)


@given(st.lists(st.sampled_from(["Peru's", "中", "é", "12,5", "the", "😀", "ภา"])))
def test_a_space_always_parts_words(words):
    assert analyze(" ".join(words)) == [term_of(word) for word in words if term_of(word)]


@given(
    st.text(
        st.sampled_from(
            ["a", "'", "s", "_", " ", "\u202f", "\u3000", "\n", "é", "\u0301", "😀", "\u200d", "🇵", "中", "1", ","]
        )
    )
)
def test_what_is_remembered_by_chunks_is_what_the_whole_text_has(text):
    assert analyze(text) == [term for term in map(term_of, find_words(text)) if term]


def test_half_a_surrogate_pair_parts_words():
    assert analyze("a\ud83db c") == ["b", "c"]


@pytest.mark.parametrize(
    "text",
    [start + run * 100_000 for start in ("", "é") for run in ("_", "a.", "'", "#", "_a", "1;")]
    + [run * 100_000 for run in ("\u200d", "_\u0301", "א", 'א"', "🇵", "ℹ\u200d", "中", "❤\ufe0f", "#\u0301")],
)
def test_no_text_takes_long(text):
    begun = time.process_time()
    find_words(text)
    assert time.process_time() - begun < 2
