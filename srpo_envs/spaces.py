r"""`FreeText`: the space of every string.

`gymnasium.spaces.Text` holds words over a fixed alphabet, by default the ASCII letters and digits, so a prompt with a
space, a newline, ``\boxed{7}`` or a Chinese character lies outside of it. Language-model observations and actions are
any text, the empty one included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, create_empty_array
from gymnasium.vector.utils.space_utils import batch_space
from gymnasium.wrappers.utils import create_zero_array

_SAMPLE_PIECES = (*"abcxyz019 +-*=.,\n\t{}<>\"'\\$", "\\boxed{", "\\frac{1}{2}", "<think>", "答案", "é", "🙂", "\u200b")
"""What samples are made of: all that usually breaks text handling, but no lone surrogate, which no file could hold."""

_MAX_SAMPLE_PIECES = 24


class FreeText(Space[str]):
    r"""The space of every `str`: any length, any character, the empty string too.

    Samples are short strings of letters, digits, white space, LaTeX, tags, CJK and emoji; one in about 25 is empty.

    Example:
        >>> "\\boxed{7}\n" in FreeText() and "" in FreeText() and 7 not in FreeText()
        True

    Args:
        seed: Seed of the sampling stream.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a string of any length has no array of fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Return a random short string.

        Raises:
            ValueError: a mask or probability is given; there is no finite alphabet to weigh.
        """
        if mask is not None or probability is not None:
            raise ValueError("FreeText.sample takes neither mask nor probability: every string is allowed")
        length = int(self.np_random.integers(_MAX_SAMPLE_PIECES + 1))
        return "".join(_SAMPLE_PIECES[i] for i in self.np_random.integers(len(_SAMPLE_PIECES), size=length))

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText)

    def __repr__(self) -> str:
        return "FreeText()"


# Gymnasium's vector utilities dispatch on the exact type. `iterate` stays unregistered on purpose: a batch of texts is
# a tuple, and only for unregistered spaces does gymnasium walk that tuple instead of the characters of each text.


@create_empty_array.register
def _empty_texts(space: FreeText, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[str, ...]:
    return ("",) * n


@create_zero_array.register(FreeText)
def _no_text(space: FreeText) -> str:  # type: ignore[misc]  # gymnasium declares it for a space of any element
    return ""


@batch_differing_spaces.register(FreeText)
def _batch_texts(  # type: ignore[misc]  # the registered type is that of the elements
    spaces: list[FreeText],
) -> Space[Any]:
    return batch_space(spaces[0], len(spaces))


@is_space_dtype_shape_equiv.register
def _is_text_too(space_1: FreeText, space_2: Space[Any]) -> bool:
    return isinstance(space_2, FreeText)
