"""Prompt templates: files with ``$placeholders``, filled once per active set.

Values are inserted, never interpreted: a question or a draft that contains ``$answer`` stays as it is.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Mapping

from srpo_envs.errors import ScheduleError, UnknownIdError, near_miss

ALWAYS_GIVEN = ("question", "seat")
"""Placeholders every prompt may use and none has to: the task's question, and the member's seat counted from 1."""

_PLACEHOLDER = re.compile(r"\$(?:(\$)|([a-z_]+)|\{([a-z_]+)\})")


class PromptTemplate:
    """A text with ``$name`` or ``${name}`` placeholders; ``$$`` is a dollar sign and any other ``$`` is itself.

    Split once, so that filling is a join; this is on the path of every environment step.
    """

    def __init__(self, text: str) -> None:
        self.names: list[str] = []
        self._pieces: list[str] = [""]
        position = 0
        for match in _PLACEHOLDER.finditer(text):
            self._pieces[-1] += text[position : match.start()]
            position = match.end()
            if match.group(1):
                self._pieces[-1] += "$"
            else:
                self.names.append(match.group(2) or match.group(3))
                self._pieces.append("")
        self._pieces[-1] += text[position:]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with every placeholder replaced.

        Raises:
            ScheduleError: a placeholder has no value, or a value has no placeholder (a part of the state the
                role would silently not see); those of `ALWAYS_GIVEN` may go unused.
        """
        try:
            inserted = [values[name] for name in self.names]
        except KeyError as error:
            raise ScheduleError(
                f"prompt placeholder ${error.args[0]} has no value{near_miss(error.args[0], values)}"
            ) from None
        if unused := set(values) - set(self.names) - set(ALWAYS_GIVEN):
            raise ScheduleError(
                f"the ask gives {sorted(unused)}, which the prompt does not use{near_miss(min(unused), self.names)}"
            )
        parts = [self._pieces[0]]
        for value, piece in zip(inserted, self._pieces[1:], strict=True):
            parts.append(value)
            parts.append(piece)
        return "".join(parts)


@functools.cache
def load_prompt(family: str, *names: str) -> str:
    """Return the joined text of template files ``prompts/<family>/<name>.txt``, separated by a blank line.

    The paper's three-part prompts (appendix B) are ``load_prompt("math", "observation", "team_context", "solver")``.

    Raises:
        UnknownIdError: there is no such family or file.
    """
    folder = importlib.resources.files("srpo_envs") / "prompts" / family
    parts = []
    for name in names:
        path = folder / f"{name}.txt"
        if not path.is_file():
            known = [item.name.removesuffix(".txt") for item in folder.iterdir()] if folder.is_dir() else []
            raise UnknownIdError(f"no prompt {name!r} in family {family!r}{near_miss(name, known)}")
        parts.append(path.read_text(encoding="utf-8").strip("\n"))
    return "\n\n".join(parts)
