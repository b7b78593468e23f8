"""Answers every question again, the slow way, and refuses those that have another answer or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scripts.facts_corpus.graph import Fact, Graph
from scripts.facts_corpus.names import name_key
from scripts.facts_corpus.questions import Question


def verify_questions(graph: Graph, questions: Iterable[Question]) -> None:
    """Check that each question has exactly one right answer in the graph, and a passage that says it.

    A chain is walked from everything that has the first name, over every fact that there is, so that a second reading
    of a name, a second value and a second subject would each show as a second answer.

    Raises:
        ValueError: a question has another answer, or more than one, or its last passages do not have it.
    """
    for question in questions:
        answers = _compared(graph, question) if "comparison" in question.kind else _walked(graph, question)
        texts = [graph.passages[key].text for key in question.gold[-1]]
        if name_key(question.answers[0]) not in answers or ("comparison" not in question.kind and len(answers) > 1):
            raise ValueError(f"{question.text!r}: expected {question.answers[0]!r} alone, got {sorted(answers)}")
        if not any(question.answers[0] in text for text in texts):
            raise ValueError(f"{question.text!r}: {question.answers[0]!r} is not in the last of {question.gold}")


def _compared(graph: Graph, question: Question) -> set[str]:
    """Return the names of the two that are compared, which differ."""
    names = {name_key(graph.entities[key.split(".")[0]].name) for key in question.gold[-1]}
    return names if len(names) == 2 else set()


def _walked(graph: Graph, question: Question) -> set[str]:
    """Return the names of everything that the question's relations lead to from its first name."""
    labels = question.template.split(">")
    start = question.gold[0][0].split(".")[0]
    nodes = {start}
    if not labels[0].startswith("~"):
        kind = graph.entities[start].kind
        nodes = {entity.key for entity in graph.namesakes(graph.entities[start]) if entity.kind == kind}
    for label in labels[:-1]:
        nodes = {key for node in nodes for fact, key in _leads(graph, node, label) if key}
    facts = [(fact, key) for node in nodes for fact, key in _leads(graph, node, labels[-1])]
    return {name_key(graph.entities[key].name if key else fact.value.text) for fact, key in facts}


def _leads(graph: Graph, node: str, label: str) -> Iterator[tuple[Fact, str | None]]:
    """Yield each fact that a label leads over, and the entity behind it; backwards, from the values of a subject."""
    for fact in graph.about(node, label.removeprefix("~")):
        if label.startswith("~"):
            yield from ((other, other.subject) for other in graph.with_value(fact.relation, fact.value))
        else:
            yield fact, fact.value.entity
