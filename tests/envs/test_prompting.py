"""Prompt templates: values are inserted, never interpreted, and no part of the state gets lost."""

from __future__ import annotations

import importlib.resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import ScheduleError, UnknownIdError
from srpo_envs.prompting import PromptTemplate, load_prompt


def test_placeholders_are_filled_in_both_spellings():
    assert PromptTemplate("$question: ${context}s").fill({"question": "Q", "context": "draft"}) == "Q: drafts"


def test_dollar_signs_that_are_no_placeholders_stay():
    template = PromptTemplate("$$5 and $3 and $X, $question$")
    assert template.fill({"question": "Q"}) == "$5 and $3 and $X, Q$"


@given(st.text())
def test_values_are_inserted_as_they_are(value):
    assert PromptTemplate("[$question]").fill({"question": value}) == f"[{value}]"


def test_a_placeholder_inside_a_value_is_not_filled():
    values = {"question": "What is $context?", "context": "$question ${question} $$"}
    assert PromptTemplate("$question\n$context").fill(values) == "What is $context?\n$question ${question} $$"


def test_a_placeholder_without_a_value_raises():
    with pytest.raises(ScheduleError, match=r"\$contxt has no value; did you mean 'context'"):
        PromptTemplate("$contxt").fill({"question": "Q", "context": "C"})


def test_a_value_no_placeholder_uses_raises():
    with pytest.raises(ScheduleError, match=r"\['drafts'\], which the prompt does not use"):
        PromptTemplate("$question $context").fill({"question": "Q", "context": "C", "drafts": "D"})


def test_the_question_alone_may_go_unused():
    assert PromptTemplate("Answer.").fill({"question": "Q"}) == "Answer."


def test_the_seat_may_go_unused_and_a_prompt_that_names_it_needs_it():
    assert PromptTemplate("$question").fill({"question": "Q", "seat": "2"}) == "Q"
    assert PromptTemplate("$question, searcher $seat").fill({"question": "Q", "seat": "2"}) == "Q, searcher 2"
    with pytest.raises(ScheduleError, match=r"\$seat has no value"):
        PromptTemplate("searcher $seat").fill({"question": "Q"})


@pytest.mark.parametrize("role", ["router", "solver", "verifier", "aggregator"])
def test_math_prompts_have_the_three_parts_in_order(role):
    text = load_prompt("math", "observation", "team_context", role)
    positions = [text.index(heading) for heading in ("# Task", "# Team context", f"# Your role: {role}")]
    assert positions == sorted(positions)
    names = PromptTemplate(text).names
    assert names == ["question", "context"] + ["num_solvers"] * (role == "router")


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [("math", "solvr", "no prompt 'solvr' in family 'math'; did you mean 'solver'"), ("chess", "solver", "'chess'")],
)
def test_a_missing_template_is_named(family, name, message):
    with pytest.raises(UnknownIdError, match=message):
        load_prompt(family, name)


# --- shipped templates --------------------------------------------------------------------------------------------

PROMPTS = importlib.resources.files("srpo_envs") / "prompts"


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".txt") for path in (PROMPTS / "math").iterdir()))
def test_programs_are_asked_for_in_prompts_with_the_placeholders_of_mathematics(name):
    assert PromptTemplate(load_prompt("code", name)).names == PromptTemplate(load_prompt("math", name)).names


def test_programs_need_no_prompt_that_mathematics_lacks():
    names = [{path.name for path in (PROMPTS / family).iterdir()} for family in ("code", "math")]
    assert names[0] == names[1]


@pytest.mark.parametrize("family", ["math", "code", "arithmetic"])
def test_a_worker_is_told_its_part_and_never_the_question(family):
    assert PromptTemplate(load_prompt(family, "worker")).names == ["context"]
