from factories import make_episode, make_event, make_member
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.records import ToolCall
from srpo_train.viewer.text import Excerpt, excerpt, one_line, visible
from srpo_train.viewer.timeline import EventCredit, EventScores, MemberScores, build_timeline


def test_members_of_one_active_set_stand_in_one_event_with_each_prompt_once():
    members = (make_member(0, prompt="a"), make_member(1, prompt="b"), make_member(2, prompt="a"))
    timeline = build_timeline(make_episode(events=(make_event(3, members=members),)))
    (event,) = timeline.events
    assert [member.agent for member in event.members] == ["solver_0", "solver_1", "solver_2"]
    assert [(prompt.text.text, prompt.agents) for prompt in event.prompts] == [
        ("a", ("solver_0", "solver_2")),
        ("b", ("solver_1",)),
    ]


def test_the_outcome_of_the_task_is_told():
    timeline = build_timeline(
        make_episode(
            reward=1.0,
            task={"question": "3+4?", "gold": 7},
            info={"answer": [7], "metrics": {"a": 1, "b": 0.5}, "x": None},
        )
    )
    assert (timeline.question.text, timeline.gold.text, timeline.is_correct) == ("3+4?", "7", True)
    assert timeline.outcome == (("answer", Excerpt("[7]")), ("metrics", Excerpt("a 1 · b 0.5")), ("x", Excerpt("")))
    assert build_timeline(make_episode(task={"id": 1})).question.text == '{"id": 1}'


def test_a_malformed_answer_has_a_reason_and_no_reading():
    bad = make_member(0, parsed=None, malformed_reason="no verdict")
    timeline = build_timeline(make_episode(events=(make_event(1, members=(bad,)),)))
    assert timeline.events[0].members[0].malformed_reason == "no verdict"
    assert timeline.events[0].members[0].parsed == Excerpt()
    assert timeline.events[0].num_malformed == 1


def test_what_a_search_found_is_told_apart_into_passages():
    found = ({"title": "Peru", "text": "Lima is", "score": 2.5}, {"text": "no title"})
    calls = (
        ToolCall(name="search", arguments={"query": "q"}, result=found),
        ToolCall(name="run", arguments="1+1", result={"out": "2"}),
        ToolCall(name="grade", arguments={}, result=1.0, kind="grade"),
    )
    events = (make_event(1, tool_calls=calls),)
    search, run, grade = build_timeline(make_episode(events=events)).events[0].tool_calls
    assert [(p.title, p.text.text, p.score) for p in search.passages] == [
        ("Peru", "Lima is", 2.5),
        ("", "no title", None),
    ]
    assert search.result == Excerpt() and search.arguments == (("query", Excerpt("q")),)
    assert (run.arguments, run.result.text, grade.kind) == ((("", Excerpt("1+1")),), '{"out": "2"}', "grade")


def test_credit_and_scores_join_their_events():
    scores = EventScores(
        members=(MemberScores(log_ratio=0.3, logprobs=(-0.4, -0.5, -0.3), token_texts=("a", "\u202e", "c")),),
        log_ratio=0.3,
        ratio=1.35,
        is_clipped=True,
    )
    timeline = build_timeline(
        make_episode((3, 1, 1)),
        credits={"ep/e0": EventCredit(advantage=0.5, member_advantages=(0.5, 0.5, 0.1)), "ep/e1": EventCredit()},
        scores={"ep/e1": scores},
    )
    first, second, third = timeline.events
    assert first.advantage == 0.5 and [member.advantage for member in first.members] == [0.5, 0.5, 0.1]
    assert second.advantage is None and (second.ratio, second.is_clipped) == (1.35, True)
    assert second.members[0].tokens.current == (-0.4, -0.5, -0.3)
    assert second.members[0].tokens.texts == ("a", "⟦U+202E⟧", "c")
    assert third.credit is None and third.ratio is None


def test_long_texts_are_cut_and_say_by_how_much():
    member = make_member(0, length=9, text="x" * 5000)
    timeline = build_timeline(make_episode(events=(make_event(1, members=(member,)),)), max_text=1000, max_tokens=4)
    shown = timeline.events[0].members[0]
    assert (len(shown.text.text), shown.text.num_omitted) == (1000, 4000)
    assert (len(shown.tokens.behavior), shown.tokens.num_omitted) == (4, 5)
    assert shown.num_tokens == 9


def test_an_episode_of_very_many_texts_is_cut_further():
    members = tuple(make_member(index, text="y" * 20_000, prompt="p" * 20_000) for index in range(400))
    timeline = build_timeline(make_episode(events=(make_event(400, members=members),)))
    assert sum(len(member.text.text) for member in timeline.events[0].members) < 1_000_000


def test_what_hides_or_steers_is_made_visible():
    assert visible("a\x1b[31m\u202eb\u2066\u200b\ud800\x9b\x7f\x00") == (
        "a␛[31m⟦U+202E⟧b⟦U+2066⟧⟦U+200B⟧⟦U+D800⟧⟦U+009B⟧␡␀"
    )
    assert visible("l1\r\nl2\tx\ny\rz") == "l1\nl2\tx\ny␍z"
    assert visible("שלום 👩\u200d🔬 é") == "שלום 👩\u200d🔬 é"
    assert visible("\U000e0041") == "⟦U+E0041⟧"


def test_one_line_is_one_line():
    assert one_line("a\n\nb \t c") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert str(excerpt("abcdef", 4)) == "abcd … 2 more characters"


@given(st.text())
def test_visible_text_holds_no_character_that_acts(text: str):
    shown = visible(text)
    shown.encode()
    assert not set(shown) & {"\x1b", "\x00", "\u202e", "\u2028", "\r", "\x85", "\ufeff"}
    assert visible(shown) == shown
