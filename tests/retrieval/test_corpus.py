"""Reading corpora: what is read, and what a fault is told to be."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import contents_of, corpus_digest, iter_passages, read_corpus, row_of, split_contents
from srpo_envs.errors import CorpusError
from srpo_envs.search import Passage

PERU = {"id": "1", "contents": '"Peru"\nThe capital of Peru is Lima.'}
LIMA = {"id": "2", "title": "Lima", "text": "Lima lies by the sea."}
READ = [
    Passage(id="1", title="Peru", text="The capital of Peru is Lima."),
    Passage(id="2", title="Lima", text="Lima lies by the sea."),
]


def write(tmp_path, content, name="corpus.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_both_kinds_of_rows_are_read(tmp_path):
    assert list(read_corpus(write(tmp_path, lines(PERU, LIMA)))) == READ


@pytest.mark.parametrize(
    "content",
    [
        lines(PERU, LIMA).replace("\n", "\r\n"),
        "\ufeff" + lines(PERU, LIMA),
        "\n" + lines(PERU) + "  \n\n" + lines(LIMA).rstrip("\n"),
        lines({**PERU, "id": 1, "score": 3}, {**LIMA, "id": 2}),
    ],
    ids=["crlf", "byte order mark", "blank lines, no last newline", "whole-number ids, other fields"],
)
def test_harmless_variety_changes_nothing(tmp_path, content):
    assert list(read_corpus(write(tmp_path, content))) == READ


def test_compressed_corpora_are_read(tmp_path):
    assert list(read_corpus(write(tmp_path, gzip.compress(lines(PERU, LIMA).encode()), "corpus.jsonl.gz"))) == READ


def test_line_separators_of_unicode_stay_inside_a_text(tmp_path):
    row = json.dumps({"id": "1", "title": "a\u2028b", "text": "c\u2029d\x85e\x0bf"}, ensure_ascii=False)
    assert list(read_corpus(write(tmp_path, row))) == [Passage(id="1", title="a\u2028b", text="c\u2029d\x85e\x0bf")]


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Peru"\nLima.', "Peru", "Lima."),
        ('"Peru"\nLima.\nAndes.', "Peru", "Lima.\nAndes."),
        ('""Weird Al" Yankovic"\nA singer.', '"Weird Al" Yankovic', "A singer."),
        ('"Peru"\n', "Peru", ""),
        ('"Heroes" is an album.', "", '"Heroes" is an album.'),
        ("Peru\nLima.", "", "Peru\nLima."),
        ('"\nLima.', "", '"\nLima.'),
    ],
)
def test_the_title_is_a_first_line_in_quotes(contents, title, text):
    assert split_contents(contents) == (title, text)


@given(st.text(alphabet='ab"\n', max_size=9))
def test_contents_survive_being_split(contents):
    title, text = split_contents(contents)
    assert contents_of(Passage(id="1", title=title, text=text)) == (text if not title else contents)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(PERU) + '{"id": "2", "contents": "cut', r"line 2: not JSON .* cut short"),
        (lines(PERU) + "[1, 2]\n", r"line 2: expected an object, got list"),
        (b'{"id": "1", "contents": "\xff"}\n', r"line 1: not JSON"),
        (lines(PERU, {"id": "2", "title": "Lima"}), r"line 2: expected texts .* got the fields \['id', 'title'\]"),
        (lines({"id": "1", "contents": None}), r"line 1: expected texts .* got contents of type NoneType"),
        (lines({"contents": "a"}), r"line 1: expected a text or a whole number in \"id\", got None"),
        (lines({"id": True, "contents": "a"}), r"line 1: .* got True"),
        (lines({"id": "", "contents": "a"}), r"line 1: .* got ''"),
        (lines(PERU, LIMA, {**LIMA, "id": "1"}), r"line 3: the id '1' is used twice"),
        ('{"id": "1", "contents": "\\ud83d"}\n', r"line 1: holds half of a surrogate pair"),
        ("\n", r"holds no passage"),
        ("", r"holds no passage"),
    ],
)
def test_faults_name_file_and_line(tmp_path, content, message):
    with pytest.raises(CorpusError, match=rf"corpus.jsonl.*{message}"):
        list(read_corpus(write(tmp_path, content)))


def test_an_escaped_surrogate_pair_is_one_character(tmp_path):
    assert next(read_corpus(write(tmp_path, '{"id": "1", "contents": "\\ud83d\\ude00"}'))).text == "\U0001f600"


def test_a_missing_file_is_named():
    with pytest.raises(CorpusError, match=r"no corpus at 'nowhere.jsonl'"):
        list(read_corpus("nowhere.jsonl"))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:20] + b"????" + data[24:], lambda _: b"x"]
)
def test_damaged_compression_is_told(tmp_path, damage):
    data = gzip.compress("".join(lines({**PERU, "id": number}) for number in range(50)).encode())
    with pytest.raises(CorpusError, match=r"corpus.jsonl.gz.*(cannot be read|not JSON)"):
        list(read_corpus(write(tmp_path, damage(data), "corpus.jsonl.gz")))


def test_passages_given_directly_are_checked_as_well():
    assert list(iter_passages(READ)) == READ
    with pytest.raises(CorpusError, match="passage 3: the id '1' is used twice"):
        list(iter_passages([*READ, READ[0]]))
    with pytest.raises(CorpusError, match="the corpus holds no passage"):
        list(iter_passages([]))


def test_the_digest_is_of_the_passages_not_of_the_file(tmp_path):
    plain = write(tmp_path, lines(PERU, LIMA))
    packed = write(tmp_path, gzip.compress(b"".join(map(row_of, READ))), "corpus.jsonl.gz")
    assert corpus_digest(iter_passages(plain)) == corpus_digest(read_corpus(packed)) == corpus_digest(READ)
    assert corpus_digest(READ) != corpus_digest(READ[::-1])


def test_a_written_row_is_read_back(tmp_path):
    passage = Passage(id="é", title='"', text="a\u2028\n\t\U0001f600")
    assert list(read_corpus(write(tmp_path, row_of(passage)))) == [passage]
