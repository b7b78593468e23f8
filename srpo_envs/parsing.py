r"""Readers of model text: pure functions from a response to `Parsed` or `Malformed`.

Bad model text is data. A reader never raises on it, never repairs it and never falls back to a default such as approve,
stop or all: what cannot be read is `Malformed` with a short stable reason, which the environment records and penalises
(SRPO appendix B). Every reader takes time linear in the text, whatever the text holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

STOP = "STOP"
"""The parsed value of a router's decision to end the collection of evidence."""

CORRECT, INCORRECT = "Correct", "Incorrect"
"""The parsed values of an evaluator's verdict."""

MAX_QUERY_CHARS = 2000
"""Longest search query in characters. Search servers refuse long ones, and that would be held against the server."""

_BOX_COMMAND = re.compile(r"\\boxed(?![A-Za-z])")
_FBOX_COMMAND = re.compile(r"\\fbox(?![A-Za-z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)|\\[A-Za-z]+|[^\W\d_](?![^\W\d_])")
_FENCE = re.compile(r"[ \t]*```([^\s`]*)[ \t]*\r?")
_ROUTE_INDEX = re.compile(r"[0-9]{1,9}")
_SUBTASK = re.compile(r"^[ \t#*]*SUBTASK[ \t]*([0-9]{1,9})[ \t]*:[ \t*]*", re.MULTILINE | re.IGNORECASE)
"""The head of a subtask, at the start of a line and maybe set in bold."""
_CONTROL_SPACE = re.compile(r"(?<!\\)(?:\\\\)*\\\s+\Z")
"""The LaTeX space at the end of a box, whose blank must not be stripped from its backslash."""
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A response that follows the format of its role.

    Example:
        >>> parse_verdict("The sum is off. <verify>reject</verify>")
        Parsed(value='reject')
    """

    value: Any
    """What the role decided: an answer text, a verdict word, `STOP`, or a tuple of indices."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A response that breaks the format of its role.

    Example:
        >>> parse_boxed_answer("The answer is 12.")
        Malformed(reason='no boxed answer')
    """

    reason: str
    """Short and stable, so that reasons can be counted: 'no boxed answer', 'two verdict tags'."""


# --- boxed answers ------------------------------------------------------------------------------------------------


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed` of a response, stripped, or None.

    The last box decides: when it is empty or never closed the result is None, never an earlier box. Escaped braces do
    not count, a nested box is the innermost one, `\boxed 5` needs no braces, and `\fbox` is read when no `\boxed`
    exists. Text before the last `</think>` is not read, and thinking that never ends holds no answer.

    Args:
        text: the whole response.

    Returns:
        The content without its braces, or None when there is no usable box.
    """
    visible = _after_thinking(text)
    if visible is None:
        return None
    start = _last_end(_BOX_COMMAND, visible)
    if start is None:
        start = _last_end(_FBOX_COMMAND, visible)
    if start is None:
        return None
    content = _argument(visible, start)
    if content is None:
        return None
    stripped = content.strip().strip(_INVISIBLE).strip()
    ends_in_control_space = _CONTROL_SPACE.search(content) is not None
    return stripped + " " * ends_in_control_space or None


def parse_boxed_answer(text: str) -> Parsed | Malformed:
    """Read a solver's or an aggregator's response: `Parsed(answer text)`.

    Args:
        text: the whole response.

    Returns:
        The boxed answer, or why there is none.
    """
    answer = extract_boxed(text)
    if answer is not None:
        return Parsed(answer)
    visible = _after_thinking(text)
    if visible is None:
        return Malformed("unfinished thinking")
    has_box = _BOX_COMMAND.search(visible) or _FBOX_COMMAND.search(visible)
    return Malformed("empty or unclosed box" if has_box else "no boxed answer")


def parse_boxed_verdict(text: str) -> Parsed | Malformed:
    r"""Read an evaluator's response: the last box holds ``Correct`` or ``Incorrect``, in any case.

    Args:
        text: the whole response.

    Returns:
        `Parsed(CORRECT)` or `Parsed(INCORRECT)`, or why there is neither. Words outside a box decide nothing, nor does
        an earlier box: an evaluator that goes on to an answer of its own has given no verdict.
    """
    content = parse_boxed_answer(text)
    if isinstance(content, Malformed):
        return content
    verdict = {word.lower(): word for word in (CORRECT, INCORRECT)}.get(content.value.lower())
    return Malformed("unknown verdict") if verdict is None else Parsed(verdict)


def parse_selection(text: str, *, num_drafts: int) -> Parsed | Malformed:
    r"""Read the response of an aggregator that selects: the last box holds the number of a draft.

    Args:
        text: the whole response.
        num_drafts: drafts there are, numbered from 1.

    Returns:
        `Parsed(number)`, or why there is none; a number that no draft has is none.
    """
    content = parse_boxed_answer(text)
    if isinstance(content, Malformed):
        return content
    if not _ROUTE_INDEX.fullmatch(content.value):
        return Malformed("not a number")
    number = int(content.value)
    return Parsed(number) if 1 <= number <= num_drafts else Malformed("no draft of that number")


def _after_thinking(text: str) -> str | None:
    """Return what follows the last `</think>`; None when a `<think>` is still open there."""
    visible = text[end + len("</think>") :] if (end := text.rfind("</think>")) >= 0 else text
    return None if "<think>" in visible else visible


def _last_end(pattern: re.Pattern[str], text: str) -> int | None:
    """Return where the last match ends."""
    end = None
    for match in pattern.finditer(text):
        end = match.end()
    return end


def _argument(text: str, start: int) -> str | None:
    """Return the argument of a box command that ends at `start`: a brace group or one bare item."""
    while start < len(text) and text[start].isspace():
        start += 1
    if text.startswith("{", start):
        end = _group_end(text, start)
        return None if end is None else text[start + 1 : end]
    bare = _BARE_BOX.match(text, start)
    if bare is None:
        return None
    end = bare.end()
    while bare.group().startswith("\\") and text.startswith("{", end):
        group_end = _group_end(text, end)
        if group_end is None:
            return None
        end = group_end + 1
    return text[start:end]


def _group_end(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the one at `start`, skipping escaped characters."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


# --- free text ----------------------------------------------------------------------------------------------------


def parse_text(text: str) -> Parsed | Malformed:
    """Read a response in free words: `Parsed(what follows the thinking)`, unless nothing does.

    Args:
        text: the whole response.
    """
    visible = _after_thinking(text)
    if visible is None:
        return Malformed("unfinished thinking")
    stripped = visible.strip().strip(_INVISIBLE).strip()
    return Parsed(stripped) if stripped else Malformed("empty response")


def parse_subtasks(text: str, *, most: int) -> Parsed | Malformed:
    """Read an orchestrator's response: lines ``SUBTASK 1: ...``, ``SUBTASK 2: ...``, each up to the next.

    Args:
        text: the whole response; what stands before the first subtask is not read.
        most: most subtasks there may be.

    Returns:
        `Parsed(subtasks)`, a tuple of texts, or why there is none. A plan is malformed as a whole: too many subtasks,
        an empty one, or numbers that do not count 1, 2, 3.
    """
    visible = _after_thinking(text)
    if visible is None:
        return Malformed("unfinished thinking")
    heads = list(_SUBTASK.finditer(visible))
    if not heads:
        return Malformed("no subtask")
    if len(heads) > most:
        return Malformed("too many subtasks")
    if [int(head[1]) for head in heads] != list(range(1, len(heads) + 1)):
        return Malformed("subtasks not numbered in order")
    ends = [head.start() for head in heads[1:]] + [len(visible)]
    subtasks = [visible[head.end() : end].strip() for head, end in zip(heads, ends, strict=True)]
    return Parsed(tuple(subtasks)) if all(subtasks) else Malformed("empty subtask")


# --- code ---------------------------------------------------------------------------------------------------------


def parse_code_block(text: str, *, languages: Sequence[str] = ("python", "py", "python3")) -> Parsed | Malformed:
    """Read a programmer's response: `Parsed(program)` of the last fenced block in one of the languages.

    A fence is a line of three backticks, which may name a language; its block ends at the next line of bare backticks.
    Blocks inside thinking are not read, blocks of other languages or of none are passed over, and a last block that
    never ends is malformed, whatever came before it.

    Args:
        text: the whole response.
        languages: names a block may carry, in small letters.

    Returns:
        The program between the fences, or why there is none.
    """
    visible = _after_thinking(text)
    if visible is None:
        return Malformed("unfinished thinking")
    program: str | None = None
    for language, content, is_closed in _fenced_blocks(visible):
        if language in languages:
            if not is_closed:
                return Malformed("unclosed code block")
            program = content
    if program is None:
        return Malformed("no code block")
    return Parsed(program) if program.strip() else Malformed("empty code block")


def _fenced_blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the language of every block in small letters, its content, and whether it ends; only the last may not."""
    language: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if language is None:
            if fence is not None:
                language, lines = fence[1].casefold(), []
        elif fence is not None and not fence[1]:
            yield language, "\n".join(lines), True
            language = None
        else:
            lines.append(line)
    if language is not None:
        yield language, "\n".join(lines), False


# --- tags ---------------------------------------------------------------------------------------------------------


def parse_verdict(
    text: str, *, tag: str = "verify", verdicts: Sequence[str] = ("approve", "reject")
) -> Parsed | Malformed:
    """Read a verifier's response: exactly one tag holding exactly one known verdict.

    Args:
        text: the whole response.
        tag: name of the tag.
        verdicts: the recognised words; case and surrounding blanks do not matter.

    Returns:
        `Parsed(verdict)` in the spelling of `verdicts`, or why there is none.
    """
    content = _decision(text, tag, "verdict")
    if isinstance(content, Malformed):
        return content
    known = {verdict.casefold(): verdict for verdict in verdicts}
    verdict = known.get(content.value.casefold())
    return Malformed("unknown verdict") if verdict is None else Parsed(verdict)


def parse_route(text: str, *, low: int, high: int, allow_stop: bool = True, tag: str = "route") -> Parsed | Malformed:
    """Read a router's response: STOP or a list of member indices.

    Args:
        text: the whole response.
        low: smallest index that may be chosen.
        high: largest index that may be chosen, inclusive.
        allow_stop: whether STOP is a choice.
        tag: name of the tag.

    Returns:
        `Parsed(STOP)`, `Parsed(indices)` with duplicates removed in order of first mention, or why there is neither. An
        empty list and a list with one index out of range are malformed as a whole.
    """
    content = _decision(text, tag, "route")
    if isinstance(content, Malformed):
        return content
    choice = content.value
    if choice.upper() == STOP:
        return Parsed(STOP) if allow_stop else Malformed("stop not allowed")
    if choice.startswith("[") != choice.endswith("]"):
        return Malformed("unbalanced list")
    items = [item.strip() for item in choice.removeprefix("[").removesuffix("]").split(",")]
    if not all(_ROUTE_INDEX.fullmatch(item) for item in items):
        return Malformed("not a list of indices")
    indices = tuple(dict.fromkeys(int(item) for item in items))
    return Parsed(indices) if all(low <= index <= high for index in indices) else Malformed("index out of range")


def parse_search(text: str) -> Parsed | Malformed:
    """Read a searcher's response: a think block, then exactly one `<search>` tag with a query.

    Args:
        text: the whole response.

    Returns:
        `Parsed(query)`, or why there is none; a query beyond `MAX_QUERY_CHARS` is none.
    """
    query = _after_think_block(text, "search", other="answer")
    if isinstance(query, Parsed) and len(query.value) > MAX_QUERY_CHARS:
        return Malformed("query too long")
    return query


def parse_answer(text: str) -> Parsed | Malformed:
    """Read an answerer's response: a think block, then exactly one `<answer>` tag with a text.

    Args:
        text: the whole response.

    Returns:
        `Parsed(answer)`, or why there is none.
    """
    return _after_think_block(text, "answer", other="search")


def parse_step(text: str) -> Parsed | Malformed:
    """Read the response of an agent that searches and answers by itself: a think block, then one tag of either kind.

    Args:
        text: the whole response.

    Returns:
        `Parsed(("search", query))` or `Parsed(("answer", answer))`, or why there is neither.
    """
    for tag, reader in (("search", parse_search), ("answer", parse_answer)):
        if isinstance(step := reader(text), Parsed):
            return Parsed((tag, step.value))
    visible = text.rpartition("</think>")[2]
    reason = parse_answer(text) if "<answer>" in visible else parse_search(text)
    assert isinstance(reason, Malformed)
    return Malformed("neither search nor answer tag") if reason.reason == "no search tag" else reason


def _decision(text: str, tag: str, noun: str) -> Parsed | Malformed:
    """Read the one tag of a response in which thinking is optional; a tag inside thinking decides nothing."""
    block = _only_block(text, tag, noun)
    if isinstance(block, Malformed):
        return block
    if _after_thinking(text) is None:
        return Malformed("unfinished thinking")
    start, end = block.value
    if start < text.rfind("</think>"):
        return Malformed(f"{noun} tag inside thinking")
    content = text[start:end].strip()
    return Parsed(content) if content else Malformed(f"empty {noun} tag")


def _after_think_block(text: str, tag: str, *, other: str) -> Parsed | Malformed:
    """Read a response that must think once, close the thinking, and then use its own tag once and no other role's."""
    thinking = _only_block(text, "think", "think")
    if isinstance(thinking, Malformed):
        return thinking
    block = _only_block(text, tag, tag)
    if isinstance(block, Malformed):
        return block
    think_end, (start, end) = thinking.value[1], block.value
    if start < think_end:
        return Malformed(f"{tag} tag before the end of thinking")
    if f"<{other}>" in text[think_end:]:
        return Malformed(f"{other} tag beside the {tag} tag")
    content = text[start:end].strip()
    return Parsed(content) if content else Malformed(f"empty {tag} tag")


def _only_block(text: str, tag: str, noun: str) -> Parsed | Malformed:
    """Return `Parsed((start, end))` of the content between the only opening and the only closing tag of a name."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    num_open, num_close = text.count(opening), text.count(closing)
    if num_open == 0 and num_close == 0:
        return Malformed(f"no {noun} tag")
    if num_open > 1 or num_close > 1:
        return Malformed(f"two {noun} tags")
    start, end = text.find(opening) + len(opening), text.find(closing)
    if num_open == 0 or num_close == 0 or end < start:
        return Malformed(f"unclosed {noun} tag")
    return Parsed((start, end))
