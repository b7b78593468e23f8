"""Plain data through JSON and back."""

from __future__ import annotations

import json
import math
from collections import Counter, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.sandbox.keeper.plain import decode, dumps, encode

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=3) | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


def types_of(value: Any) -> Any:
    """The value's type and, in order, those of what it holds."""
    if isinstance(value, dict):
        return dict, [(types_of(key), types_of(item)) for key, item in value.items()]
    return (type(value), [types_of(item) for item in value]) if isinstance(value, list | tuple) else type(value)


@given(plain)
@settings(max_examples=50)
def test_values_and_types_survive_json(value: Any) -> None:
    back = decode(json.loads(dumps(encode(value))))
    assert back == value
    assert types_of(back) == types_of(value)


@pytest.mark.parametrize(
    "value", [pytest.param(10**5000, id="long"), -(2**63) - 1, "\ud800", "\0", -0.0, math.inf, [], {}, set(), b"\xff"]
)
def test_edges_survive_json(value: Any) -> None:
    assert repr_of(decode(json.loads(dumps(encode(value))))) == repr_of(value)


def repr_of(value: Any) -> str:
    return hex(value) if isinstance(value, int) else repr(value)


def test_nan_stays_nan() -> None:
    assert math.isnan(decode(encode(math.nan)))


def test_subclasses_become_their_base() -> None:
    class Colour(IntEnum):
        RED = 3

    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __index__(self) -> int:
            return 99

    point = namedtuple("point", "x y")
    assert encode([Colour.RED, Liar(5), point(1, 2), Counter("aa")]) == [3, 5, {"tuple": [1, 2]}, {"dict": [["a", 2]]}]
    assert type(encode(Liar(5))) is int


def test_numpy_scalars_and_arrays_are_plain() -> None:
    assert encode([np.int64(3), np.float32(0.5), np.bool_(True), np.arange(2)]) == [3, 0.5, True, [0, 1]]


@pytest.mark.parametrize("value", [object(), iter([]), range(3), len, [1, {2: lambda: 0}]])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="not plain data"):
        encode(value)


@pytest.mark.parametrize(
    "form", [{}, {"a": 1}, {"tuple": [], "set": []}, [{"int": "zz"}], {"bytes": "x"}, {"dict": [[1]]}]
)
def test_other_forms_are_refused(form: Any) -> None:
    with pytest.raises(ValueError):
        decode(form)


@given(plain)
@settings(max_examples=50)
def test_text_is_that_of_the_json_module(value: Any) -> None:
    assert dumps(encode(value)) == json.dumps(encode(value), separators=(",", ":"))
