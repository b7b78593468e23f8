"""An engine at the other end of an OpenAI-compatible endpoint: texts in, texts out, for evaluation only."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self
from urllib.parse import parse_qsl

from srpo_envs.errors import ConfigError, EngineError, near_miss
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.endpoint import Endpoint, Patience, Reply
from srpo_train.engines.in_flight import InFlight
from srpo_train.engines.openai_chat import chat_payload, is_too_long, read_completion

logger = logging.getLogger(__name__)

_PATH = "/chat/completions"
_WRONG_DOOR = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
"""Refusals that every request would meet: another address, no key, no money, no such model."""


class OpenAIEngine:
    """Asks any endpoint with ``/chat/completions`` (OpenAI, vLLM, SGLang, llama.cpp, gateways ...).

    Generations hold texts and token counts, no token ids: such a policy can be evaluated, not trained. A prompt is one
    user message. A try that meets a broken connection, a timeout, a 5xx, 408 or 429 is repeated after a pause that
    doubles each time and is at least as long as the endpoint asks for in ``Retry-After``; what fails to the last is an
    ``abort``. A prompt beyond the model's context is an ``abort`` that is not tried again. An endpoint that nobody
    listens at, or that refuses key or model, fails the whole call.

    Args:
        policy_id: The policy to answer for.
        base_url: Everything before ``/chat/completions``, such as ``http://127.0.0.1:8000/v1``.
        model: Which model of the endpoint.
        api_key: Sent as a bearer token; empty for none.
        max_concurrent: Requests that may be under way at once.
        timeout_s: Longest wait for the answer to one try.
        max_retries: Tries after the first.
        first_pause_s: Pause before the first retry.
        longest_pause_s: Longest pause, unless the endpoint asks for more.
        limit_field: Name of the token limit; some endpoints want ``max_completion_tokens``.
        extra: Further fields of every request, such as ``{"chat_template_kwargs": {"enable_thinking": False}}``; a
            field that is None, such as ``{"seed": None}``, is left out.

    Raises:
        ConfigError: the URL is not one, or a number is out of range.
        MissingExtraError: httpx is not installed.

    Example:
        ``OpenAIEngine("qwen", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B")``
    """

    def __init__(
        self,
        policy_id: str,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        max_concurrent: int = 32,
        timeout_s: float = 600.0,
        max_retries: int = 6,
        first_pause_s: float = 0.5,
        longest_pause_s: float = 30.0,
        limit_field: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if max_concurrent < 1:
            raise ConfigError(
                f"engine of policy {policy_id!r}: max_concurrent must be at least 1, got {max_concurrent}"
            )
        patience = Patience(
            timeout_s=timeout_s, max_retries=max_retries, first_pause_s=first_pause_s, longest_pause_s=longest_pause_s
        )
        self.model = model
        self._policy_id = policy_id
        self._limit_field = limit_field
        self._extra = dict(extra or {})
        self._endpoint = Endpoint(
            base_url.rstrip("/").removesuffix(_PATH),
            patience=patience,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            max_connections=max_concurrent,
        )
        self._places = asyncio.Semaphore(max_concurrent)
        self._counts_are_missing = False
        self._in_flight = InFlight(f"srpo-openai-{policy_id}", self._answer)

    @classmethod
    def open(cls, policy_id: str, location: str) -> Self:
        """Make one from a URL whose query holds arguments: ``http://127.0.0.1:8000/v1?model=qwen&max_concurrent=8``.

        Without ``model`` the endpoint is asked, which must then have exactly one. ``api_key_env`` names the environment
        variable that holds the key, ``OPENAI_API_KEY`` when left out; a key itself has no place in a command line.

        Raises:
            ConfigError: an unknown argument, a value of the wrong kind, or a model that must be named.
            EngineError: the endpoint does not answer.
        """
        url, _, query = location.partition("?")
        arguments = _arguments(location, query, _settings(cls))
        api_key = os.environ.get(str(arguments.pop("api_key_env", "OPENAI_API_KEY")), "")
        model = str(arguments.pop("model", ""))
        engine = cls(policy_id, url, model, api_key=api_key, **arguments)
        if not model:
            try:
                engine.model = engine._in_flight.call(engine._only_model())
            except BaseException:
                engine.close()
                raise
        return engine

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        Raises:
            EngineError: nobody listens at the endpoint, or it refuses key or model.
        """
        return self._in_flight.generate(requests, sampling)

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Begin to answer requests; return at once."""
        self._in_flight.submit(requests, sampling)

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been answered; wait for at most `timeout_s` when nothing is ready.

        Raises:
            EngineError: nobody listens at the endpoint, or it refuses key or model.
        """
        return self._in_flight.poll(timeout_s)

    def cancel(self, request_ids: Collection[str]) -> None:
        """Give requests up; they never come back."""
        self._in_flight.cancel(request_ids)

    def close(self) -> None:
        """Close all connections; safe to call more than once."""
        self._in_flight.close(self._endpoint.close())

    async def _answer(self, request: GenerationRequest, sampling: Sampling) -> Generation:
        payload = chat_payload(self.model, request, sampling, self._limit_field, self._extra)
        asked = time.monotonic()
        async with self._places:
            begun = time.monotonic()
            reply = await self._endpoint.post_patiently(_PATH, payload)
            if _does_not_fit(reply) and payload.pop(self._limit_field, None):
                # A prompt that leaves less room than asked for is refused like one that leaves none. Without a limit
                # of ours the context itself is the limit.
                reply = await self._endpoint.post_patiently(_PATH, payload)
            timings = {"generate_s": time.monotonic() - begun, "queue_s": begun - asked}
            return self._generation(request, reply, timings)

    def _generation(self, request: GenerationRequest, reply: Reply, timings: Mapping[str, float]) -> Generation:
        if not reply.is_good:
            self._raise_if_for_all(reply)
            return _aborted(request, reply.reason, timings, is_hopeless=not reply.may_pass)
        try:
            completion = read_completion(reply.body, request.stop)
        except ValueError as error:
            return _aborted(request, str(error), timings, is_hopeless=False)
        if completion.finish_reason == "abort":
            return _aborted(request, completion.abort_reason, timings, is_hopeless=True)
        self._warn_of_missing_counts(completion.num_tokens)
        return Generation(
            request_id=request.request_id,
            text=completion.text,
            prompt_token_ids=(),
            token_ids=(),
            logprobs=(),
            finish_reason=completion.finish_reason,
            num_unseen_tokens=completion.num_tokens or 0,
            timings=timings,
        )

    def _raise_if_for_all(self, reply: Reply) -> None:
        who = f"engine of policy {self.policy_id!r}: {self._endpoint.url}"
        if reply.is_down:
            raise EngineError(f"{who} cannot be reached ({reply.reason}); is the server running?")
        if reply.status in _WRONG_DOOR:
            raise EngineError(f"{who} refuses model {self.model!r}: {reply.reason}; check URL, key and model")

    def _warn_of_missing_counts(self, num_tokens: int | None) -> None:
        if num_tokens is None and not self._counts_are_missing:
            self._counts_are_missing = True
            logger.warning("%s reports no token counts; costs in tokens will be 0", self._endpoint.url)

    async def _only_model(self) -> str:
        reply = await self._endpoint.get("/models", timeout_s=30.0)
        if not reply.is_good:
            self._raise_if_for_all(reply)
            raise EngineError(f"{self._endpoint.url}/models: {reply.reason}")
        listed = reply.body.get("data")
        names = [str(item["id"]) for item in listed if "id" in item] if isinstance(listed, list) else []
        if len(names) != 1:
            raise ConfigError(f"{self._endpoint.url} has the models {names}; add ?model=NAME to say which")
        return names[0]


def _does_not_fit(reply: Reply) -> bool:
    return reply.status in (400, 413, 422) and is_too_long(reply.reason)


def _aborted(request: GenerationRequest, reason: str, timings: Mapping[str, float], *, is_hopeless: bool) -> Generation:
    return Generation(
        request_id=request.request_id,
        text="",
        prompt_token_ids=(),
        token_ids=(),
        logprobs=(),
        finish_reason="abort",
        abort_reason=reason,
        is_hopeless=is_hopeless,
        timings=timings,
    )


def _settings(engine: type[OpenAIEngine]) -> dict[str, Any]:
    """What a location may set, with defaults that tell the kinds."""
    hidden = ("api_key", "extra")
    parameters = inspect.signature(engine).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in hidden}
    return {"model": "", "api_key_env": "", **named}


def _arguments(location: str, query: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in defaults:
            raise ConfigError(f"{location!r}: unknown setting {name!r}{near_miss(name, defaults)}")
        try:
            arguments[name] = type(defaults[name])(value)
        except ValueError as error:
            raise ConfigError(
                f"{location!r}: expected a number as in '{name}={defaults[name]}', got {value!r}"
            ) from error
    return arguments
