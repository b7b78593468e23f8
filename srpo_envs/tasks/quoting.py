"""Words of others in a prompt: what a member wrote and what a document says, so set that they pass for nothing else."""

from __future__ import annotations

import re

_LINE_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CHAT_MARK = re.compile(r"<(?=[|｜]|/?s>|(?:start|end)_of_turn>|[be]os>)|\[(?=/?INST\])")


def quote(text: str) -> str:
    """Return a member's or a document's words with ``> `` before every line, whatever line break they use.

    The spelling of chat-template marks (``<|im_start|>``, ``<end_of_turn>``, ``[INST]``) is broken up, because a
    tokenizer would read them in a prompt as the end of the user's turn.
    """
    lines = _LINE_BREAK.split(_CHAT_MARK.sub(r"\g<0> ", text))
    return "\n".join(f"> {line}".rstrip() for line in lines)


def without_thinking(text: str) -> str:
    """Return a response without its thinking, finished or not; thinking is private and never committed."""
    visible = text.rpartition("</think>")[2]
    return visible.partition("<think>")[0].strip()
