"""Whole numbers with commas between them, as several options take them."""

from __future__ import annotations

from srpo_envs.errors import ConfigError


def whole_numbers(option: str, text: str, example: str = "0,1,2") -> tuple[int, ...]:
    """Read the value of an option.

    Raises:
        ConfigError: it is not whole numbers with commas between them.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers, such as {option} {example}") from None
