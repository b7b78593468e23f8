"""Texts of a policy in this process, for engines that know no tokens: as a function, and behind an HTTP endpoint."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from srpo_envs.errors import EngineError
from srpo_envs.records import Member
from srpo_train.engines.agent import AgentReply
from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling
from srpo_train.engines.conformance_policy import conformance_policy
from srpo_train.engines.transformers import TransformersEngine

MODEL = "conformance"
"""The only model of the endpoint."""

_GATHER_S = 0.005
"""A batch begins when nobody has asked for so long; requests of one call come one by one."""


class _Waiting(NamedTuple):
    request: GenerationRequest
    sampling: Sampling
    future: Future[Generation]


class Batches:
    """Lets many threads ask an engine for one response each; those that wait are sampled together.

    Args:
        engine: Used from one thread of this object, until `close`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="srpo-conformance-batches", daemon=True)
        self._thread.start()

    def answer(self, request: GenerationRequest, sampling: Sampling) -> Generation:
        """Wait for one response.

        Raises:
            EngineError: the engine failed.
        """
        future: Future[Generation] = Future()
        self._waiting.put(_Waiting(request, sampling, future))
        return future.result()

    def play(self, member: Member) -> AgentReply:
        """Answer as an agent that draws its random numbers from its seat.

        Raises:
            EngineError: the engine failed.
            ValueError: it gave the request up.
        """
        request = GenerationRequest(
            request_id=member.agent,
            prompt=member.prompt,
            max_new_tokens=member.max_new_tokens,
            seed=member.index,
            stop=member.stop,
        )
        generation = self.answer(request, Sampling())
        if generation.finish_reason == "abort":
            raise ValueError(generation.abort_reason)
        text, stop = cut_at_stop(generation.text, member.stop)
        return AgentReply(text=text + (stop or ""), num_tokens=generation.num_tokens)

    def close(self) -> None:
        """End the thread once all that was asked is answered."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while first := self._waiting.get():
            batch = [first, *self._others()]
            for sampling in {waiting.sampling for waiting in batch}:
                self._sample([waiting for waiting in batch if waiting.sampling == sampling], sampling)

    def _others(self) -> Iterator[_Waiting]:
        with contextlib.suppress(queue.Empty):
            while waiting := self._waiting.get(timeout=_GATHER_S):
                yield waiting
            self._waiting.put(None)  # the end is for `_run` to see

    def _sample(self, batch: Sequence[_Waiting], sampling: Sampling) -> None:
        try:
            generations = self._engine.generate([waiting.request for waiting in batch], sampling)
        except EngineError as error:
            for waiting in batch:
                waiting.future.set_exception(error)
        else:
            for waiting, generation in zip(batch, generations, strict=True):
                waiting.future.set_result(generation)


@contextlib.contextmanager
def answer_in_batches() -> Iterator[Batches]:
    """Sample from the conformance policy for the time of the body.

    It computes in double precision: which requests make a batch is a matter of time, and so would be the rounding.
    """
    batches = Batches(TransformersEngine(conformance_policy(torch.float64)))
    try:
        yield batches
    finally:
        batches.close()


@contextlib.contextmanager
def serve_texts(batches: Batches, context_length: int) -> Iterator[str]:
    """Answer ``/chat/completions`` on this machine for the time of the body, as vLLM and SGLang do.

    A stop text is cut off and named in ``stop_reason``; a prompt that leaves less room than asked for is refused.

    Args:
        batches: What answers.
        context_length: Most tokens of prompt and response together.

    Yields:
        The base URL.
    """
    with _Server(functools.partial(_complete, batches, context_length)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def _complete(batches: Batches, context_length: int, body: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Return status and body of the reply to a body."""
    if body["model"] != MODEL:
        return 404, _error(f"the model {body['model']!r} does not exist")
    limit, stop = body.get("max_tokens"), body.get("stop") or ()
    generation = batches.answer(
        GenerationRequest(
            request_id="chat",
            prompt=body["messages"][-1]["content"],
            max_new_tokens=limit or context_length,
            seed=body.get("seed", 0),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ),
        Sampling(temperature=body.get("temperature", 1.0), top_p=body.get("top_p", 1.0), top_k=body.get("top_k", 0)),
    )
    num_prompt_tokens = len(generation.prompt_token_ids)
    if generation.finish_reason == "abort" or num_prompt_tokens + (limit or 1) > context_length:
        asked = f"{num_prompt_tokens} tokens of prompt and {limit or 1} of response"
        return 400, _error(f"the maximum context length is {context_length} tokens, not {asked}")
    text, stop_reason = cut_at_stop(generation.text, stop)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": generation.finish_reason,
        "stop_reason": stop_reason,
    }
    usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": generation.num_tokens}
    return 200, {"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Return a response without the stop text that came first and what stood after it, and that stop text."""
    ends = [(text.index(end) + len(end), end) for end in stop if end in text]
    if not ends:
        return text, None
    place, first = min(ends)
    return text[: place - len(first)], first


def _error(message: str) -> Mapping[str, Any]:
    return {"error": {"message": message}}


_Reply = Callable[[Mapping[str, Any]], tuple[int, Mapping[str, Any]]]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # connections that a client keeps open have a thread each
    request_queue_size = 256

    def __init__(self, reply: _Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client gave its request up."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece: the body would wait until the head is acknowledged
    server: _Server

    def do_POST(self) -> None:  # the name is the standard library's
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            status, reply = self.server.reply(body)
        except EngineError as error:
            status, reply = 500, _error(str(error))
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""
