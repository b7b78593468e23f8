"""The ``--x`` option of commands that draw curves."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Axis(enum.StrEnum):
    """What curves are drawn against."""

    STEP = "step"
    TOKENS = "tokens"
    TIME = "time"


AxisOption = Annotated[Axis, typer.Option("--x", help="Draw against training steps, sampled tokens, or time.")]
