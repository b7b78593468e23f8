"""Chat completions, as OpenAI defined them and many servers speak them: bodies of requests, and how to read answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srpo_envs.records import FinishReason
from srpo_train.engines.base import MOST_UNSEEN_TOKENS, GenerationRequest, Sampling

_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|maximum context|max_model_len|(prompt|input).{0,30}too (long|many)"
    r"|too many tokens",
    re.IGNORECASE,
)
_CLOSING_TAG = re.compile(r"</([\w-]+)>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One answer of an endpoint."""

    text: str
    """What the model wrote, stop text included."""
    finish_reason: FinishReason
    """``abort`` where the endpoint held the answer back."""
    num_tokens: int | None
    """Sampled tokens, hidden reasoning included; None where the endpoint does not say."""
    abort_reason: str = ""
    """Why it was held back."""


def chat_payload(
    model: str, request: GenerationRequest, sampling: Sampling, limit_field: str, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of a request. What has its default is left out, for endpoints that refuse fields.

    Args:
        model: Which model of the endpoint.
        request: What is asked.
        sampling: How tokens are drawn.
        limit_field: Name of the token limit.
        extra: Further fields, or other values for these; None takes a field out.
    """
    payload: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": request.prompt}],
        limit_field: request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.top_p < 1 else None,
        "top_k": sampling.top_k or None,
        # Endpoints keep seeds in 32 bits or in a double; two requests with one seed do no harm.
        "seed": request.seed % 2**31,
        "stop": list(request.stop) or None,
        **extra,
    }
    return {name: value for name, value in payload.items() if value is not None}


def read_completion(body: Mapping[str, Any], stop: Sequence[str]) -> Completion:
    """Read the first choice of a reply.

    Reasoning that the endpoint keeps apart is put back before the text, between ``<think>`` tags: environments read
    what the model wrote, and decide themselves what counts.

    Args:
        body: The JSON object of the reply.
        stop: Texts that end the response.

    Raises:
        ValueError: it is not a chat completion; says what is missing.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise ValueError(f"no 'choices' in the reply, only {sorted(body)}")
    choice, message = choices[0], choices[0].get("message")
    if not isinstance(message, Mapping):
        raise ValueError(f"no 'message' in the choice, only {sorted(choice)}")
    num_tokens = _num_tokens(body)
    reason = choice.get("finish_reason")
    if reason in ("abort", "content_filter", "error"):
        return Completion(text="", finish_reason="abort", num_tokens=num_tokens, abort_reason=f"it ended by {reason!r}")
    text = _text(message, is_cut=reason == "length")
    if reason != "length":
        text += cut_stop_text(text, stop, choice)
    return Completion(text=text, finish_reason="length" if reason == "length" else "stop", num_tokens=num_tokens)


def is_too_long(message: str) -> bool:
    """Whether an endpoint refuses a request because it does not fit the model's context."""
    return _TOO_LONG.search(message) is not None


def cut_stop_text(text: str, stop: Sequence[str], choice: Mapping[str, Any]) -> str:
    """Return the stop text that ended a response and that the endpoint has cut off; empty where none did.

    vLLM and SGLang say which one it was. Elsewhere a natural end looks the same, so a closing tag counts where its tag
    is open, and another text where there is only one.

    Args:
        text: The response as it came.
        stop: The stop texts of the request.
        choice: What the endpoint says of the response.
    """
    if not stop or text.endswith(tuple(stop)):
        return ""
    for field in ("stop_reason", "matched_stop"):
        if field in choice:
            return choice[field] if choice[field] in stop else ""
    due = [end for end in stop if _is_due(text, end, is_only=len(stop) == 1)]
    return due[0] if len(due) == 1 else ""


def _is_due(text: str, end: str, *, is_only: bool) -> bool:
    if tag := _CLOSING_TAG.fullmatch(end.strip()):
        return text.rfind(f"<{tag[1]}>") > text.rfind(f"</{tag[1]}>")
    return is_only


def _text(message: Mapping[str, Any], *, is_cut: bool) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):  # parts, of which only texts are an answer
        content = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if not reasoning or not isinstance(reasoning, str):
        return str(content)
    is_unfinished = is_cut and not content
    return f"<think>\n{reasoning.strip()}\n" + ("" if is_unfinished else f"</think>\n\n{str(content).lstrip()}")


def _num_tokens(body: Mapping[str, Any]) -> int | None:
    usage = body.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) and 0 <= count <= MOST_UNSEEN_TOKENS else None
