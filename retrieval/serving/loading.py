"""A retriever that is opened in the background, so that its server answers while a large index loads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from retrieval.engine import fingerprint_of, num_passages_of
from srpo_envs.search import Passage, Retriever, close_retriever, search_all

logger = logging.getLogger(__name__)

Opener = Callable[[], Retriever]
"""Opens a retriever; may take long."""
State = Literal["loading", "ready", "failed"]

PROGRESS_EVERY_S = 10.0


class LoadingRetriever:
    """Opens a retriever in a thread and is that retriever afterwards.

    Args:
        source: A retriever, or what opens one.
        on_failure: Called in that thread when the retriever cannot be opened.
    """

    def __init__(self, source: Retriever | Opener, on_failure: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._on_failure = on_failure
        self._retriever: Retriever | None = None
        self.error: BaseException | None = None
        """Why the retriever cannot be opened."""

    @property
    def state(self) -> State:
        """How far it is."""
        if self.error is not None:
            return "failed"
        return "loading" if self._retriever is None else "ready"

    @property
    def trouble(self) -> str:
        """Why it cannot search, empty when it can."""
        if self.error is not None:
            return f"the retriever cannot be opened: {self.error}"
        return "the retriever is still loading" if self._retriever is None else ""

    @property
    def fingerprint(self) -> str:
        """Corpus and settings of the index; empty while it loads or where the retriever has none."""
        return fingerprint_of(self._retriever) if self._retriever else ""

    @property
    def num_passages(self) -> int:
        """How many passages the index holds; 0 while it loads or where the retriever does not say."""
        return num_passages_of(self._retriever) if self._retriever else 0

    def start(self) -> None:
        """Begin to open."""
        if not callable(self._source):
            self._retriever = self._source
            return
        opening = threading.Thread(target=self._open, args=(self._source,), name="open-retriever", daemon=True)
        opening.start()
        threading.Thread(target=self._report, args=(opening,), name="report-opening", daemon=True).start()

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Search, and check the answer.

        Raises:
            RetrieverError: the engine failed or answered with something else than it promises.
        """
        assert self._retriever is not None, "only asked when ready"
        return search_all(self._retriever, queries, top_k)

    def close(self) -> None:
        """Close the retriever, where it can be closed."""
        if self._retriever:
            close_retriever(self._retriever)

    def _open(self, opener: Opener) -> None:
        start = time.monotonic()
        try:
            self._retriever = opener()
        except BaseException as error:  # kept: /health tells it, and the server ends with it
            self.error = error
            logger.error("the retriever cannot be opened: %s: %s", type(error).__name__, error)
            self._on_failure()
            return
        logger.info("%d passages ready to be searched after %.1f s", self.num_passages, time.monotonic() - start)

    def _report(self, opening: threading.Thread) -> None:
        start = time.monotonic()
        opening.join(PROGRESS_EVERY_S)
        while opening.is_alive():
            logger.info("opening the retriever, %.0f s so far", time.monotonic() - start)
            opening.join(PROGRESS_EVERY_S)
