"""Weights & Biases, also without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srpo_envs.errors import MissingExtraError
from srpo_train.config import Recipe
from srpo_train.metrics import Values
from srpo_train.showcase import ShownEpisode
from srpo_train.tracking.episode_text import COLUMNS, table_row


class WandbTracker:
    """Scalars, and a table of episodes for every step that shows some; alarms are alerts.

    Offline, all is kept in the run directory, one folder for each start of the run, for ``wandb sync``.

    Args:
        recipe: Name and settings.
        run_dir: Where W&B keeps its files.
        run_id: The run there; a resumed one goes on under its own.
    """

    def __init__(self, recipe: Recipe, run_dir: Path, run_id: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb") from error
        self._wandb: Any = wandb
        self._run: Any = wandb.init(
            project=recipe.log.wandb_project,
            name=recipe.name,
            id=run_id,
            resume="allow",
            dir=str(run_dir),
            config=recipe.model_dump(mode="json"),
            mode="offline" if recipe.log.wandb_offline else None,
            settings=wandb.Settings(console="off"),
        )

    def write(self, step: int, values: Values, episodes: Sequence[ShownEpisode]) -> None:
        """Send one step."""
        sent: dict[str, Any] = dict(values)
        if episodes:
            rows = [table_row(step, shown) for shown in episodes]
            sent["episodes"] = self._wandb.Table(columns=list(COLUMNS), data=rows)
        self._run.log(sent, step=step)

    def warn(self, message: str) -> None:
        """Send an alert."""
        self._run.alert(title="srpo", text=message)

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()
