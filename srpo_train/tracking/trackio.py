"""trackio: a local dashboard without a server or an account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from srpo_envs.errors import MissingExtraError
from srpo_train.config import Recipe
from srpo_train.metrics import Values
from srpo_train.showcase import ShownEpisode
from srpo_train.tracking.episode_text import COLUMNS, as_code, table_row


class TrackioTracker:
    """Scalars, and a table of episodes for every step that shows some; ``trackio show`` opens the dashboard.

    Args:
        recipe: Settings.
        run_id: Name of the run there; a resumed one goes on under its own.
    """

    def __init__(self, recipe: Recipe, run_id: str) -> None:
        try:
            import trackio
        except ImportError as error:
            raise MissingExtraError("trackio", "trackio") from error
        self._trackio: Any = trackio
        self._run: Any = trackio.init(
            project=recipe.log.trackio_project,
            name=run_id,
            resume="allow",
            config=recipe.model_dump(mode="json"),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, values: Values, episodes: Sequence[ShownEpisode]) -> None:
        """Hand over one step; texts of a table are Markdown there, so the transcript is code."""
        sent: dict[str, Any] = dict(values)
        if episodes:
            rows = [[as_code(cell) if isinstance(cell, str) else cell for cell in table_row(step, s)] for s in episodes]
            sent["episodes"] = self._trackio.Table(columns=list(COLUMNS), data=rows)
        self._run.log(sent, step=step)

    def warn(self, message: str) -> None:
        """Raise an alert."""
        self._run.alert(title="srpo", text=message)

    def close(self) -> None:
        """Hand over what waits and finish."""
        self._run.finish()
