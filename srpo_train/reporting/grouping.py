"""Which runs are one method: those whose recipes differ by seed alone, under a name no other method has."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.reporting.methods import Choices, told_apart


class Named(Protocol):
    """What can be grouped."""

    @property
    def path(self) -> Path:
        """Where it lies, for errors."""
        ...

    @property
    def method(self) -> str:
        """Name of its method."""
        ...

    @property
    def is_labelled(self) -> bool:
        """Whether the reader chose that name."""
        ...

    @property
    def choices(self) -> Choices:
        """What it has in common with runs that differ by seed alone."""
        ...


T = TypeVar("T", bound=Named)


def grouped(items: Sequence[T]) -> dict[str, list[T]]:
    """Return items by method, in the order in which methods first appear.

    Methods of one name are told apart by what differs in their choices, which follows in brackets.

    Raises:
        ConfigError: one label is for items that differ in more than their seed, or is the name of another method.
    """
    found: dict[str, list[T]] = defaultdict(list)
    for item in items:
        key = json.dumps(item.choices, sort_keys=True, default=str)
        found[f"label {item.method}" if item.is_labelled else key].append(item)
    groups = list(found.values())
    for group in groups:
        _check_label(group)
    named = dict(zip(_named_apart([group[0] for group in groups]), groups, strict=True))
    if len(named) < len(groups):
        _refuse_twins([group[0] for group in groups])
    return named


def check_labels(labels: Mapping[Path, str], paths: Sequence[Path]) -> None:
    """Refuse a label for what is not reported.

    Raises:
        ConfigError: names the nearest path.
    """
    for path in labels:
        if path not in paths:
            raise ConfigError(f"--label {path}=...: not among what is given{near_miss(str(path), map(str, paths))}")


def _check_label(group: Sequence[Named]) -> None:
    first = group[0]
    for other in group[1:]:
        apart = [text for text in told_apart([first.choices, other.choices]) if text]
        if apart:
            raise ConfigError(
                f"{first.path} and {other.path}: one label, {first.method!r}, for two methods, which differ in "
                f"{' against '.join(apart)}; give them two labels"
            )


def _named_apart(firsts: Sequence[Named]) -> list[str]:
    """Names of methods, each by its first item; a label stays as it is."""
    named = []
    for first in firsts:
        twins = [other for other in firsts if other.method == first.method]
        suffix = told_apart([other.choices for other in twins])[twins.index(first)]
        named.append(f"{first.method} ({suffix})" if suffix and not first.is_labelled else first.method)
    return named


def _refuse_twins(firsts: Sequence[Named]) -> None:
    for first in firsts:
        for other in firsts:
            if other is not first and other.method == first.method:
                raise ConfigError(
                    f"{first.path} and {other.path}: two methods would both be called {first.method!r}; "
                    f'tell them apart with --label {other.path}="..."'
                )
