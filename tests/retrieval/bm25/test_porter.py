"""Stems, as Lucene's PorterStemFilter gives them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.bm25.porter import porter_stem

STEMS = """
    caresses caress   ponies poni       ties ti         caress caress     cats cat          feed feed
    agreed agre       plastered plaster bled bled       motoring motor    sing sing         conflated conflat
    troubled troubl   sized size        hopping hop     tanned tan        falling fall      hissing hiss
    fizzed fizz       failing fail      filing file     happy happi       sky sky           say sai
    enjoyed enjoi     relational relat  conditional condit valenci valenc digitizer digit   conformabli conform
    radicalli radic   differentli differ vileli vile    analogousli analog vietnamization vietnam predication predic
    operator oper     feudalism feudal  decisiveness decis hopefulness hope callousness callous formaliti formal
    sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize formal electriciti electr
    electrical electr hopeful hope      goodness good   revival reviv     allowance allow   inference infer
    airliner airlin   gyroscopic gyroscop adjustable adjust defensible defens irritant irrit replacement replac
    adjustment adjust dependent depend  adoption adopt  homologou homolog communism commun  activate activ
    angulariti angular homologous homolog effective effect bowdlerize bowdler probate probat rate rate
    cease ceas        controll control  roll roll       generalizations gener oscillators oscil  yyyed yy
"""
DEPARTURES = [("as", "as"), ("us", "us"), ("is", "is"), ("possibly", "possibl"), ("archaeology", "archaeolog")]
"""Where the paper of 1980 says otherwise: a, u, i, possibli, archaeologi."""


@pytest.mark.parametrize(("word", "stem"), [*zip(STEMS.split()[::2], STEMS.split()[1::2], strict=True), *DEPARTURES])
def test_stems_are_those_of_lucene(word, stem):
    assert porter_stem(word) == stem


@given(st.text(alphabet="aeiouylstdnbcgmzé7", min_size=3, max_size=12))
def test_a_stem_never_is_empty_nor_longer_than_its_word(word):
    assert 1 <= len(porter_stem(word)) <= len(word)


@given(st.text(alphabet="1234567890éß中.'", max_size=12))
def test_what_has_no_latin_suffix_stays(word):
    assert porter_stem(word) == word
