"""TensorBoard: curves and episodes in the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srpo_envs.errors import MissingExtraError
from srpo_train.metrics import Values
from srpo_train.showcase import ShownEpisode
from srpo_train.tracking.episode_text import as_code, described


class TensorBoardTracker:
    """Scalars and episodes; points of a killed run that come after its checkpoint are purged on resume."""

    def __init__(self, log_dir: Path, resume_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "train") from error
        self._writer: Any = SummaryWriter(str(log_dir), purge_step=0 if resume_step is None else resume_step + 1)

    def write(self, step: int, values: Values, episodes: Sequence[ShownEpisode]) -> None:
        """Add one point per metric, and the episodes as one text."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if episodes:
            texts = [as_code(described(shown)) for shown in episodes]
            self._writer.add_text("episodes", "\n\n---\n\n".join(texts), step)
        self._writer.flush()

    def warn(self, message: str) -> None:
        """Curves show no warnings."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
