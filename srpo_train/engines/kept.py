"""What top-k and top-p left of a distribution, read from an engine's list of the likeliest tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable

MOST_KEPT = 1024
"""Largest ``top_k`` whose tokens are returned; vLLM is started so that it may list as many."""


def within_kept(
    sampled: tuple[int, float], listed: Iterable[tuple[int, float]], lowest: float = -math.inf
) -> tuple[tuple[int, ...], float]:
    """Return the tokens that were left, in ascending order, and the log-probability of the sampled one within them.

    A list may be short of tokens whose probabilities equal the last one's, since what ties with it is not removed:
    given that the sampled token is one of those listed, its probability is that within the list, which is exact.

    Args:
        sampled: Token and log-probability after top-k and top-p.
        listed: The likeliest tokens likewise; removed ones may be among them.
        lowest: What an engine writes for a removed token, or more.

    Example:
        >>> within_kept((7, math.log(0.5)), [(5, math.log(0.5)), (7, math.log(0.5)), (9, -math.inf)])
        ((5, 7), -0.6931471805599453)
    """
    kept = dict([sampled, *((token, logprob) for token, logprob in listed if logprob > lowest)])
    return tuple(sorted(kept)), sampled[1] - math.log(math.fsum(map(math.exp, kept.values())))
