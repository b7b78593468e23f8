"""Stop texts: noticing that the response now contains one, whatever tokens spell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Decode = Callable[[list[int]], str]

_REPLACEMENT = "\ufffd"
"""What a tokenizer shows for bytes that are not yet a whole character."""


class StopTexts:
    """Finds stop texts in a growing response.

    A stop text may be spelled by one token, by several, or end in the middle of one. Decoding the whole response after
    every token would be quadratic and slower than a small model, so there are two filters before it: the vocabulary is
    searched once for tokens that could complete a stop text at all, and only the last few tokens are decoded then. The
    whole response decides.

    Args:
        decode: Text of token ids, without special tokens.
        vocabulary_size: Number of token ids.

    A stop text is looked for in the text that the environment reads. Special tokens do not appear there; those that
    end a response belong to the policy's end-of-sequence ids.
    """

    def __init__(self, decode: Decode, vocabulary_size: int) -> None:
        self._decode = decode
        self._vocabulary_size = vocabulary_size
        self._pieces: list[str] = []
        self._completing: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def completing(self, stops: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return [V] bool: whether a token may be the one that completes one of the stop texts."""
        if stops not in self._completing:
            self._completing[stops] = np.array(
                [_may_complete(piece, stops) for piece in self._vocabulary()], dtype=bool
            )
        return self._completing[stops]

    def reached(self, token_ids: Sequence[int], stops: tuple[str, ...]) -> bool:
        """Return whether the response contains one of the stop texts, given that it did not one token earlier."""
        # A character takes at most four byte-level tokens; one more token keeps a leading space alive.
        window = 4 * max(len(stop) for stop in stops) + 1
        tail = self._decode(list(token_ids[-window:]))
        if not any(stop in tail for stop in stops):
            return False
        text = self._decode(list(token_ids))
        return any(stop in text for stop in stops)

    def _vocabulary(self) -> list[str]:
        if not self._pieces:
            self._pieces = [self._decode([token]) for token in range(self._vocabulary_size)]
        return self._pieces


def _may_complete(piece: str, stops: tuple[str, ...]) -> bool:
    if _REPLACEMENT in piece:
        return True
    # A tokenizer may hide a token's outer spaces when it is decoded alone, so a stop text that ends in a space can be
    # completed by any token.
    return any(stop[-1].isspace() or stop[-1] in piece for stop in stops)
