"""What a rule finds."""

from __future__ import annotations

from typing import NamedTuple


class Trouble(NamedTuple):
    """Something that is wrong at a step.

    Example:
        ``Trouble("length_runaway", "responses of role 'solver' ...", "solver")``
    """

    alarm: str
    """The rule, as in ``[alarms]`` and docs/alarms.md."""
    message: str
    """What is seen, against which bound, and what to do, in a sentence."""
    subject: str = ""
    """The role it is about; empty for the whole run."""
