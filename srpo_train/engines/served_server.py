"""One vLLM server, with its development and scale-out endpoints: what it is asked, and how new weights get there."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from srpo_envs.errors import SrpoError
from srpo_train.engines.bucket_receiver import LOST
from srpo_train.engines.buckets import Bucket
from srpo_train.engines.endpoint import Endpoint, Patience, Reply
from srpo_train.engines.kept import within_kept
from srpo_train.engines.publishing import notes_in
from srpo_train.engines.served_weights import WeightFolder

_T = TypeVar("_T")

FRESH = "default"
"""What a server calls the weights that it was started with."""
UNFINISHED = "unfinished"
"""What we call weights while they are being replaced; a push that breaks off leaves it behind."""

_GENERATE = "/inference/v1/generate"
_LABEL = "/update_weight_version"
_TAKE = "/update_weights"
_BEGIN = "begin an update"
_GIVE_UP = {"number": -1, "num_buckets": 0, "num_bytes": 0}
_NO_WORD = "no rank has taken a tensor"
_SHORT_S = 10.0
"""Longest wait for a question that takes no work."""
_LOWEST_LOGPROB = -9999.0
"""What vLLM writes in place of minus infinity and of what is not a number."""


class ServerFaultError(SrpoError, RuntimeError):
    """A server did not do what it was asked.

    Args:
        message: Names the server and what it was asked.
        is_down: It cannot be reached at all.
        is_lost: It waited in vain for what the group was to bring, so the fault is with another member.
    """

    def __init__(self, message: str, *, is_down: bool = False, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down
        self.is_lost = is_lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Weights that all servers are to have."""

    version: int
    """The policy's number for them."""
    label: str = FRESH
    """What servers call them; no other weights of any run are called so, but for those they were started with."""
    folder: Path | None = None
    """Where an adapter lies; None for a whole model."""
    weights: WeightFolder | None = None
    """The buckets of a whole model, some of which may be still to come; None for an adapter."""

    @property
    def is_first(self) -> bool:
        """Whether they are what the servers were started with, which nobody can give them."""
        return self.folder is None and self.weights is None


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
        api_key: Sent as a bearer token; empty for none.
        max_connections: Most requests at a time.

    Raises:
        ConfigError: the URL is not one.
    """

    def __init__(self, url: str, *, patience: Patience, api_key: str = "", max_connections: int = 1024) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        url = url.rstrip("/").removesuffix("/v1")
        self._endpoint = Endpoint(url, patience=patience, headers=headers, max_connections=max_connections)
        self._begun = 0.0
        self._asking: set[asyncio.Task[Reply]] = set()
        self._is_left = False
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
        self.push_s = 0.0
        """Seconds that its last push took."""

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

        Raises:
            ServerFaultError: the server was left.
        """
        return await self._generate(params, {"token_ids": prompt})

    def leave(self, trouble: str) -> None:
        """Wait for no response of this server any more, now or later: another one has its place.

        Its machine may be gone without a word, and connections to it stay open for as long as a response may take.

        Args:
            trouble: Why, as those who wait are told.
        """
        self.trouble, self._is_left = trouble, True
        for asking in self._asking:
            asking.cancel()

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

    async def take(self, published: Published, end: float) -> None:
        """Replace the weights by those that lie in a folder.

        Args:
            published: The new ones; what is still to come is waited for.
            end: Moment of `time.monotonic` at which they must be there.

        Raises:
            ServerFaultError: names the step that failed, or during which the time ran out.
        """
        weights = published.weights
        assert weights is not None
        await self.begin(end)
        notes = weights.folder / "notes" / re.sub(r"\W+", "-", self.url)
        notes.mkdir(parents=True, exist_ok=True)
        for bucket in weights.buckets:
            try:
                path = await within(end, weights.path(bucket))
            except (LookupError, TimeoutError) as error:
                raise ServerFaultError(f"{self.url}: {bucket} was not there to load ({error})") from error
            try:
                await self.load(bucket, len(weights.buckets), end, {"path": str(path), "notes": str(notes)})
            except ServerFaultError as fault:
                raise ServerFaultError(f"{fault}; {notes_in(notes) or _NO_WORD}", is_down=fault.is_down) from fault
        await self.finish(published, end)

    async def begin(self, end: float) -> None:
        """Give up what is under way and get ready for buckets.

        The label is changed first and last: a push that breaks off anywhere leaves a server that says so.

        Raises:
            ServerFaultError: names the step.
        """
        self._begun = time.monotonic()
        await self._tell("mark the weights as unfinished", _LABEL, {"new_version": UNFINISHED}, end)
        await self._tell("pause", "/pause?mode=abort", None, end)
        try:
            await self._tell(_BEGIN, "/start_weight_update", None, end)
        except ServerFaultError as fault:
            if fault.is_down:
                raise
            # Somebody may have left an update behind; vLLM ends one that fails.
            await self._endpoint.post(_TAKE, {"update_info": _GIVE_UP}, timeout_s=_left(end))
            await self._tell(_BEGIN, "/start_weight_update", None, end)

    async def num_workers(self, end: float) -> int:
        """Return how many workers hold the model.

        Raises:
            ServerFaultError: it does not say.
        """
        reply = await self._do("ask for its workers", "GET", "/get_world_size", timeout_s=min(_SHORT_S, _left(end)))
        try:
            return int(reply.body["world_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise ServerFaultError(f"{self.url}: it does not say how many workers it has; is it vLLM 0.32?") from error

    async def meet(self, info: Mapping[str, Any], end: float) -> None:
        """Let the workers join a group; `info` is a `GroupInfo`.

        Raises:
            ServerFaultError: they did not.
        """
        await self._tell("join the group", "/init_weight_transfer_engine", {"init_info": dict(info)}, end)

    async def load(self, bucket: Bucket, num_buckets: int, end: float, way: Mapping[str, Any]) -> None:
        """Let the workers load a bucket.

        Args:
            bucket: The next one.
            num_buckets: Of the push.
            end: When it must be loaded.
            way: How it comes; see `BucketInfo`.

        Raises:
            ServerFaultError: they did not.
        """
        info = {"number": bucket.number, "num_buckets": num_buckets, "num_bytes": bucket.num_bytes, **way}
        await self._tell(f"load {bucket} of {num_buckets}", _TAKE, {"update_info": info}, end)

    async def finish(self, published: Published, end: float) -> None:
        """Put the weights to use, and their name on what they sample.

        Raises:
            ServerFaultError: names the step.
        """
        await self._tell("finish the update", "/finish_weight_update", {}, end)
        await self._tell("clear the prefix cache", "/reset_prefix_cache?reset_running_requests=true", None, end)
        await self._tell("resume", "/resume", None, end)
        await self._tell("name the weights", _LABEL, {"new_version": published.label}, end)
        await self.confirm(published)

    async def confirm(self, published: Published) -> None:
        """See that the weights are there.

        Raises:
            ServerFaultError: others are.
        """
        if (label := await self.label()) != published.label:
            raise ServerFaultError(
                f"{self.url}: it has the weights {label!r} after those of {published.label!r} were sent"
            )
        self.push_s = time.monotonic() - self._begun

    async def close(self) -> None:
        """Close all connections."""
        await self._endpoint.close()

    async def _generate(self, params: Mapping[str, Any], payload: Mapping[str, Any]) -> Reply:
        if self._is_left:
            raise ServerFaultError(f"{self.url}: {self.trouble}")
        self.num_under_way += 1
        asking = asyncio.ensure_future(self._endpoint.post(_GENERATE, {**payload, "sampling_params": params}))
        self._asking.add(asking)
        try:
            return await asking
        except asyncio.CancelledError:
            asked_by = asyncio.current_task()
            if self._is_left and not (asked_by and asked_by.cancelling()):  # else the request itself is given up
                raise ServerFaultError(f"{self.url}: {self.trouble}") from None
            raise
        finally:
            self._asking.discard(asking)
            self.num_under_way -= 1

    async def _tell(self, what: str, path: str, payload: Any, end: float) -> None:
        reply = await self._do(what, "POST", path, payload, timeout_s=_left(end))
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
        message = f"{self.url}: could not {what}: {reply.reason}{hint}"
        return ServerFaultError(message, is_down=reply.is_down, is_lost=LOST in reply.reason)


async def within(end: float, work: Awaitable[_T]) -> _T:
    """Return what comes of something before a moment of `time.monotonic`.

    Raises:
        TimeoutError: nothing did.
    """
    async with asyncio.timeout(_left(end)):
        return await work


def _left(end: float) -> float:
    return max(end - time.monotonic(), 1e-3)


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
