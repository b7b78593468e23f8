"""One vLLM server, with its development and scale-out endpoints: what it is asked, and how new weights get there."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import SrpoError
from srpo_train.engines.endpoint import Endpoint, Patience, Reply
from srpo_train.engines.kept import within_kept

FRESH = "default"
"""What a server calls the weights that it was started with."""
UNFINISHED = "unfinished"
"""What we call weights while they are being replaced; a push that breaks off leaves it behind."""

_GENERATE = "/inference/v1/generate"
_SHORT_S = 10.0
"""Longest wait for a question that takes no work."""
_LOWEST_LOGPROB = -9999.0
"""What vLLM writes in place of minus infinity and of what is not a number."""


class ServerFaultError(SrpoError, RuntimeError):
    """A server did not do what it was asked; `is_down` when it cannot be reached at all."""

    def __init__(self, message: str, *, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Weights that all servers are to have."""

    version: int
    """The policy's number for them."""
    label: str = FRESH
    """What servers call them; no other weights of any run are called so, but for those they were started with."""
    folder: Path | None = None
    """Where servers find them; None for those they were started with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One response of a server."""

    token_ids: tuple[int, ...]
    """What was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each, within what it was drawn from."""
    kept: tuple[tuple[int, ...], ...]
    """For each those that it was drawn from; empty where they were not asked for."""
    finish_reason: str
    """vLLM's word."""
    labels: frozenset[str]
    """The weights that sampled it; several when they changed on the way."""


class VllmServer:
    """Talks to one server, from one event loop.

    Args:
        url: Its address.
        patience: Timeouts; retries are made by whoever has other servers to turn to.
        publish_timeout_s: Longest time of a push, all steps together.
        api_key: Sent as a bearer token; empty for none.
        max_connections: Most requests at a time.

    Raises:
        ConfigError: the URL is not one.
    """

    def __init__(
        self, url: str, *, patience: Patience, publish_timeout_s: float, api_key: str = "", max_connections: int = 1024
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        url = url.rstrip("/").removesuffix("/v1")
        self._endpoint = Endpoint(url, patience=patience, headers=headers, max_connections=max_connections)
        self._publish_timeout_s = publish_timeout_s
        self.num_under_way = 0
        """Requests that wait for this server."""
        self.context_length = 0
        """Most tokens of prompt and response together; 0 until it was asked."""
        self.trouble = "it was not asked yet"
        """Why it gets no requests; empty when it does."""
        self.changing = asyncio.Lock()
        """Held while its weights are looked at or replaced."""
        self.models: tuple[str, ...] = ()
        """Names of what it serves, as last seen: the model it was started with, and adapters."""

    @property
    def url(self) -> str:
        """Its address."""
        return self._endpoint.url

    async def generate(self, prompt: tuple[int, ...], params: Mapping[str, Any], published: Published) -> Reply:
        """Ask once for a response to prompt tokens.

        Args:
            prompt: Tokens.
            params: How to continue them, in vLLM's words.
            published: What should sample it.
        """
        return await self._generate(params, {"token_ids": prompt})

    def read(self, body: Mapping[str, Any], *, with_kept: bool) -> Sampled:
        """Read the answer to `generate`; see `read_sampled`."""
        return read_sampled(body, with_kept=with_kept)

    async def label(self) -> str:
        """Return what the server calls its weights, and see on the way that it is well.

        Raises:
            ServerFaultError: it does not answer as a vLLM with development endpoints does.
        """
        await self._do("ask for its health", "GET", "/health")
        models = (await self._do("ask for its model", "GET", "/v1/models")).body.get("data")
        models = [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
        self.models = tuple(str(model.get("id")) for model in models)
        self.context_length = int(models[0].get("max_model_len") or 0) if models else 0
        label = (await self._do("ask for its weights", "GET", "/weight_info")).body.get("weight_version")
        if not self.context_length or not isinstance(label, str):
            raise ServerFaultError(f"{self.url}: it does not say its context length and its weights; is it vLLM 0.32?")
        return label

    async def take(self, published: Published) -> None:
        """Replace the weights.

        Raises:
            ServerFaultError: names the step that failed, or during which the time ran out.
        """
        await self._replace(published, time.monotonic() + self._publish_timeout_s)
        if (label := await self.label()) != published.label:
            raise ServerFaultError(
                f"{self.url}: it has the weights {label!r} after those of {published.label!r} were sent"
            )

    async def close(self) -> None:
        """Close all connections."""
        await self._endpoint.close()

    async def _generate(self, params: Mapping[str, Any], payload: Mapping[str, Any]) -> Reply:
        self.num_under_way += 1
        try:
            return await self._endpoint.post(_GENERATE, {**payload, "sampling_params": params})
        finally:
            self.num_under_way -= 1

    async def _replace(self, published: Published, end: float) -> None:
        """Replace the weights before a moment; requests under way are aborted.

        The label is changed first and last: a push that breaks off anywhere leaves a server that says so.
        """
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(published.folder)}}
        steps: list[tuple[str, str, Any]] = [
            ("mark the weights as unfinished", "/update_weight_version", {"new_version": UNFINISHED}),
            ("pause", "/pause?mode=abort", None),
            ("load the weights", "/collective_rpc", reload),
            ("clear the prefix cache", "/reset_prefix_cache?reset_running_requests=true", None),
            ("resume", "/resume", None),
            ("name the weights", "/update_weight_version", {"new_version": published.label}),
        ]
        for what, path, payload in steps:
            reply = await self._do(what, "POST", path, payload, timeout_s=max(end - time.monotonic(), 1e-3))
            if reply.body.get("success") is False:
                raise ServerFaultError(f"{self.url}: could not {what}: {dict(reply.body)}")

    async def _do(
        self, what: str, method: str, path: str, payload: Any = None, *, timeout_s: float = _SHORT_S
    ) -> Reply:
        ask = self._endpoint.get(path, timeout_s=timeout_s) if method == "GET" else None
        reply = await (ask or self._endpoint.post(path, payload, timeout_s=timeout_s))
        if not reply.is_good:
            raise self._fault(what, reply, "srpo serve-policy")
        return reply

    def _fault(self, what: str, reply: Reply, command: str) -> ServerFaultError:
        hint = f"; start it with `{command}`" if reply.status in (403, 404) else ""
        return ServerFaultError(f"{self.url}: could not {what}: {reply.reason}{hint}", is_down=reply.is_down)


def read_sampled(body: Mapping[str, Any], *, with_kept: bool) -> Sampled:
    """Read the first choice of a server's answer, and what each token was drawn from, where that was asked for.

    Raises:
        ValueError: it is not what was asked for.
        FloatingPointError: the model's logits are not numbers.
    """
    try:
        (choice,) = body["choices"]
        token_ids = tuple(int(token) for token in choice["token_ids"])
        entries = choice["logprobs"]["content"]
        logprobs = tuple(float(entry["logprob"]) for entry in entries)
        sampled = tuple(int(entry["token_id"]) for entry in entries)
        listed = [
            [(int(other["token_id"]), float(other["logprob"])) for other in entry.get("top_logprobs") or ()]
            for entry in entries
        ]
        labels = frozenset(str(span["version"]) for span in choice["weight_versions"] or ())
        finish_reason = str(choice["finish_reason"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an answer without {error}: {str(dict(body))[:200]}") from error
    if sampled != token_ids:
        raise ValueError(f"{len(token_ids)} tokens with log-probabilities of {len(sampled)} others")
    if not all(math.isfinite(value) and value > _LOWEST_LOGPROB for value in logprobs):
        raise FloatingPointError("the model's logits are not finite")
    kept: tuple[tuple[int, ...], ...] = ()
    if with_kept:
        pairs = zip(token_ids, logprobs, strict=True)
        read = [within_kept(pair, others, _LOWEST_LOGPROB) for pair, others in zip(pairs, listed, strict=True)]
        kept, logprobs = tuple(tokens for tokens, _ in read), tuple(logprob for _, logprob in read)
    return Sampled(token_ids=token_ids, logprobs=logprobs, kept=kept, finish_reason=finish_reason, labels=labels)
