"""What every engine does with a request that it cannot answer, or not to its full length."""

from __future__ import annotations

from srpo_train.engines.base import Generation, GenerationRequest


def room_for(request: GenerationRequest, prompt: tuple[int, ...], context_length: int | None) -> int:
    """Return how many tokens a request may sample; 0 or less when it cannot be answered.

    Args:
        request: Asks for at most so many.
        prompt: Its tokens; an empty prompt has nothing to continue.
        context_length: Most tokens of prompt and response together; None for no limit.
    """
    if not prompt:
        return 0
    room = request.max_new_tokens if context_length is None else context_length - len(prompt)
    return min(request.max_new_tokens, room)


def overlong(
    request: GenerationRequest, prompt: tuple[int, ...], *, policy_id: str, context_length: int | None, version: int
) -> Generation:
    """Return the generation of a request whose prompt leaves no room in the context."""
    reason = (
        f"the prompt has {len(prompt)} tokens, the context of policy {policy_id!r} holds {context_length} with at "
        "least one to sample"
    )
    return given_up(request, prompt, reason, version=version, is_hopeless=True)


def given_up(
    request: GenerationRequest, prompt: tuple[int, ...], reason: str, *, version: int, is_hopeless: bool = False
) -> Generation:
    """Return the generation of a request that was not answered."""
    return Generation(
        request_id=request.request_id,
        text="",
        prompt_token_ids=prompt,
        token_ids=(),
        logprobs=(),
        finish_reason="abort",
        abort_reason=reason,
        is_hopeless=is_hopeless,
        policy_version=version,
    )
