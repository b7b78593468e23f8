"""Plain data as JSON: what may pass between a program and the world, in either direction.

Numbers, text, None, lists, tuples, dictionaries, sets, bytes and complex numbers survive with their types; everything
else is refused. Subclasses arrive as their base, so no method a program wrote leaves its process. `decode` builds
dictionaries and sets and so hashes what it is given: it runs only inside boxes, where a flood of colliding keys costs
the program its own time. Outside, values stay encoded.
"""

from __future__ import annotations

from _json import encode_basestring_ascii as _quote

TYPE_CHECKING = False
if TYPE_CHECKING:  # every box pays for its imports
    from collections.abc import Callable
    from typing import Any

MEMORY_EXIT = 93
"""Exit code of a script that ended with MemoryError."""

_JSON_INT_MAX = 1 << 63


def encode(value: Any) -> Any:
    """Return the JSON form of a value.

    Raises:
        TypeError: the value, or one inside it, is not plain data.
        RecursionError: the value is nested too deeply, or holds itself.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        whole = int.__index__(value)
        return whole if -_JSON_INT_MAX <= whole < _JSON_INT_MAX else {"int": hex(whole)}
    if isinstance(value, float):
        number = float.__float__(value)
        return number if number - number == 0.0 else {"float": repr(number)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    return _encode_container(value)


def _encode_container(value: Any) -> Any:
    if isinstance(value, list):
        return [encode(item) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in dict.items(value)]}
    if isinstance(value, set):
        return {"set": [encode(item) for item in set.__iter__(value)]}
    if isinstance(value, frozenset):
        return {"frozenset": [encode(item) for item in frozenset.__iter__(value)]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


def dumps(form: Any) -> str:
    """Return the text of a JSON form, as `json.dumps` would; importing that costs a box more than all it does here."""
    if form is None or isinstance(form, bool):
        return {None: "null", True: "true", False: "false"}[form]
    if isinstance(form, str):
        return str(_quote(form))
    if isinstance(form, int | float):
        return repr(form)
    if isinstance(form, list):
        return f"[{','.join(map(dumps, form))}]"
    return f"{{{','.join(f'{_quote(key)}:{dumps(item)}' for key, item in form.items())}}}"


def decode(form: Any) -> Any:
    """Return the value of a JSON form.

    Raises:
        ValueError: the form is none that `encode` writes.
        TypeError: a set or a dictionary holds something that cannot be hashed.
    """
    if isinstance(form, list):
        return [decode(item) for item in form]
    if not isinstance(form, dict):
        return form
    if len(form) != 1:
        raise ValueError(f"expected one tag, got {sorted(form)}")
    ((tag, content),) = form.items()
    if tag not in _DECODERS:
        raise ValueError(f"unknown tag {tag!r}")
    return _DECODERS[tag](content)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": float,
    "complex": lambda content: complex(*map(decode, content)),
    "bytes": bytes.fromhex,
    "tuple": lambda content: tuple(map(decode, content)),
    "dict": lambda content: {decode(key): decode(item) for key, item in content},
    "set": lambda content: set(map(decode, content)),
    "frozenset": lambda content: frozenset(map(decode, content)),
}
