"""Values that several sections take, with what they must be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Of a run, a policy or a server."""
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^/?#\s]+[^?#\s]*$")]
Probability = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
FinitePositive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
