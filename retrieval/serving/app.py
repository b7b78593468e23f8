"""The web application of the search server: ``POST /retrieve``, ``GET /health`` and ``GET /metrics``."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import re
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, StrictBool, StrictInt, StrictStr

from retrieval.serving.batching import Batcher, Found, QueueFullError
from retrieval.serving.loading import LoadingRetriever
from retrieval.serving.metrics import ServerMetrics
from retrieval.serving.middleware import LimitedBodies, MeasuredRequests
from retrieval.serving.protocol import FINGERPRINT_HEADER, TIMEOUT_HEADER, render_answer
from retrieval.serving.settings import ServerSettings

logger = logging.getLogger(__name__)

_SURROGATES = re.compile("[\ud800-\udfff]")
_LAST_CALL_S = 1.0
"""How long a call of the engine may take that nobody waits for any more, before the server ends without it."""


class RetrieveRequest(BaseModel):
    """The body of ``POST /retrieve``; fields beyond these are ignored, as clients of other servers send some."""

    queries: list[StrictStr]
    """What to search for."""
    topk: StrictInt | None = None
    """Most passages for each query."""
    return_scores: StrictBool = False
    """Whether each document comes with its score."""


class SearchService:
    """What stands behind the routes: the retriever, the queue in front of it, and the metrics."""

    def __init__(self, retriever: LoadingRetriever, settings: ServerSettings) -> None:
        self.retriever = retriever
        self.settings = settings
        self.metrics = ServerMetrics()
        self._batcher: Batcher | None = None

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Open the retriever and start the workers; at the end let them finish."""
        self._batcher = batcher = Batcher(
            self.retriever.search,
            max_batch=self.settings.max_batch,
            max_wait_s=self.settings.batch_wait_s,
            max_waiting=self.settings.max_waiting,
            num_workers=self.settings.num_workers,
            on_batch=self.metrics.observe_batch,
        )
        self.metrics.watch_queue(lambda: batcher.num_waiting)
        self.retriever.start()
        try:
            yield
        finally:
            if batcher.close(timeout_s=_LAST_CALL_S):
                self.retriever.close()
            else:
                logger.warning("the engine still searches: the retriever is left open")

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of ``/health``."""
        state, trouble = str(self.retriever.state), self.retriever.trouble
        busy_s = self._batcher.busy_s() if self._batcher else 0.0
        if busy_s > self.settings.request_timeout_s:
            state, trouble = "stalled", f"the engine has been searching for {busy_s:.0f} s"
        body = {
            "status": state,
            "fingerprint": self.retriever.fingerprint,
            "num_passages": self.retriever.num_passages,
            "version": importlib.metadata.version("srpo"),
            "max_top_k": self.settings.max_top_k,
            "max_queries": self.settings.max_queries,
            "max_query_chars": self.settings.max_query_chars,
        }
        return (503, body | {"detail": trouble}) if trouble else (200, body)

    def require_valid(self, queries: Sequence[str], top_k: int) -> None:
        """Refuse a request beyond the limits with 422."""
        if not 1 <= top_k <= self.settings.max_top_k:
            raise HTTPException(422, f"topk: expected 1 to {self.settings.max_top_k}, got {top_k}")
        if len(queries) > self.settings.max_queries:
            raise HTTPException(422, f"queries: expected at most {self.settings.max_queries}, got {len(queries)}")
        longest = self.settings.max_query_chars
        for number, query in enumerate(queries):
            if len(query) > longest:
                raise HTTPException(422, f"queries[{number}]: expected at most {longest} characters, got {len(query)}")
            if _SURROGATES.search(query):
                raise HTTPException(422, f"queries[{number}]: holds half of a surrogate pair, which is no text")

    async def search(self, queries: Sequence[str], top_k: int, timeout_s: float) -> Found:
        """Answer a valid request, or raise the HTTP error that says why not."""
        if self._batcher is None or self.retriever.trouble:
            raise self._unavailable(self.retriever.trouble)
        try:
            parts = self._batcher.submit(queries, top_k)
        except QueueFullError as error:
            raise self._unavailable(str(error)) from error
        try:
            return await _gathered(parts, timeout_s)
        except TimeoutError as error:
            raise HTTPException(504, f"no answer within {timeout_s:g} s") from error
        except Exception as error:  # the engine's; the server lives on
            logger.warning("search failed: %s: %s", type(error).__name__, error)
            raise HTTPException(500, f"search failed: {type(error).__name__}: {error}") from error

    def _unavailable(self, reason: str) -> HTTPException:
        return HTTPException(503, reason, headers={"Retry-After": str(self.settings.retry_after_s)})


async def _gathered(parts: Sequence[Future[Found]], timeout_s: float) -> Found:
    """Wait for all parts; when time is up or one fails, those that no worker has taken yet are not searched."""
    try:
        async with asyncio.timeout(timeout_s):
            answers = await asyncio.gather(*map(asyncio.wrap_future, parts))
    finally:
        for part in parts:
            part.cancel()
    return [passages for answer in answers for passages in answer]


def build_app(service: SearchService) -> FastAPI:
    """Return the web application over a service."""
    settings = service.settings
    app = FastAPI(title="Search server", summary=__doc__, lifespan=service.running)
    app.add_middleware(LimitedBodies, max_bytes=settings.max_body_bytes)
    app.add_middleware(MeasuredRequests, path="/retrieve", metrics=service.metrics)

    @app.post("/retrieve")
    async def retrieve(
        request: RetrieveRequest, timeout_s: Annotated[float | None, Header(alias=TIMEOUT_HEADER, gt=0)] = None
    ) -> Response:
        """Search for every query."""
        top_k = settings.default_top_k if request.topk is None else request.topk
        service.require_valid(request.queries, top_k)
        limit_s = min(timeout_s or settings.request_timeout_s, settings.request_timeout_s)
        found = await service.search(request.queries, top_k, limit_s)
        body = render_answer(found, with_scores=request.return_scores)
        headers = {FINGERPRINT_HEADER: service.retriever.fingerprint}
        return Response(body, media_type="application/json", headers=headers)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Tell whether searches are answered (200) or not (503), and over which index."""
        status, body = service.health()
        return JSONResponse(body, status)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(service.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _reason(error)}, 422)

    @app.exception_handler(400)  # FastAPI's own, for a body that it cannot decode
    async def refuse_undecodable(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": "the body is not JSON: it is no UTF-8, or nested too deeply"}, 422)

    return app


def _reason(error: RequestValidationError) -> str:
    """The first thing wrong with a request, in one line: ``queries[3]: Input should be a valid string``."""
    first = error.errors()[0]
    source, *path = first["loc"]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if not path:
        return f'{source}: expected JSON (Content-Type: application/json) such as {{"queries": ["..."], "topk": 3}}'
    return f"{where}: {first['msg']}"
