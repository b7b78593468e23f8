"""Reading nested settings: TOML files, dotted overrides, and errors people can act on."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.section import Section

S = TypeVar("S", bound="Section")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a recipe or another TOML file.

    Raises:
        ConfigError: it is not there, cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe; the ones shipped are in recipes/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML ({error}); texts need quotes") from error


def parse_override(
    text: str, expected: str = "--set section.key=value, such as --set optim.lr=1e-6"
) -> tuple[tuple[str, ...], Any]:
    """Split ``dotted.key=value`` into its keys and its TOML value.

    Args:
        text: As given on the command line.
        expected: The form, for the error message.

    Raises:
        ConfigError: there is no ``=`` or no key.

    Example:
        >>> parse_override("env.kwargs.variant=routed")
        (('env', 'kwargs', 'variant'), 'routed')
    """
    dotted, equals, written = text.partition("=")
    keys = tuple(part.strip().strip("\"'") for part in dotted.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"{text!r}: expected {expected}")
    try:
        document = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return keys, written.strip()
    return keys, document["value"] if len(document) == 1 else written.strip()


def assign(data: dict[str, Any], keys: tuple[str, ...], value: Any, text: str) -> None:
    """Set one key of a nested mapping.

    Raises:
        ConfigError: something that is no section stands in the way.
    """
    table = data
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text}: {'.'.join(keys[:depth])} is {table!r}, not a section")
    table[keys[-1]] = value


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item})
    return flat


def check_section(
    kind: type[S],
    data: Mapping[str, Any],
    *,
    source: str,
    overrides: Mapping[tuple[str, ...], str] | None = None,
) -> S:
    """Check a nested mapping against a section; for its arguments see `srpo_train.config.parse_recipe`.

    Raises:
        ConfigError: all that is wrong, one line each.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, item, source, overrides or {}) for item in error.errors()]
    raise ConfigError("\n".join(lines))


def _explain(kind: type[Section], error: Any, source: str, overrides: Mapping[tuple[str, ...], str]) -> str:
    """One line for one pydantic error: where, which key, what is wrong, and the way out."""
    location = tuple(str(part) for part in error["loc"])
    where = next((f"--set {text}" for keys, text in overrides.items() if _concerns(keys, location, error)), source)
    key = f"{'.'.join(location)}: " if location else ""
    return f"{where}: {key}{_reason(kind, error, location)}"


def _concerns(keys: tuple[str, ...], location: tuple[str, ...], error: Any) -> bool:
    """Whether the override of `keys` caused the error: it set the value, or made the unknown section."""
    depth = len(location) if error["type"] == "extra_forbidden" else len(keys)
    return keys[:depth] == location[: len(keys)]


def _reason(kind: type[Section], error: Any, location: tuple[str, ...]) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key{near_miss(location[-1], _known_keys(kind, location[:-1]))}"
    if error["type"] == "missing":
        return "is required and missing"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{error['msg'].replace('Input should', 'should')}, got {error['input']!r}"


def _known_keys(kind: Any, location: tuple[str, ...]) -> list[str]:
    """The keys of the section at a location, walking from the outermost one through fields, mappings and lists."""
    for part in location:
        if _is_section(kind):
            kind = _optional_section(kind.model_fields[part].annotation)
        else:
            kind = next(filter(_is_section, typing.get_args(kind)))
    return list(kind.model_fields)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _optional_section(annotation: Any) -> Any:
    """The section of a key that may be left out; any other annotation as it is."""
    kinds = typing.get_args(annotation)
    return next(filter(_is_section, kinds), annotation) if type(None) in kinds else annotation
