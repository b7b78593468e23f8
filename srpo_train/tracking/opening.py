"""The views a recipe asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from srpo_envs.errors import MissingExtraError
from srpo_train.config import Recipe
from srpo_train.metrics import MetricLogger, Sink
from srpo_train.tracking.guard import GuardedTracker, Ledger, Tracker
from srpo_train.tracking.tensorboard import TensorBoardTracker
from srpo_train.tracking.trackio import TrackioTracker
from srpo_train.tracking.wandb import WandbTracker

logger = logging.getLogger(__name__)

_LEDGER_FOLDER = "trackers"


def open_metrics(recipe: Recipe, run_dir: Path, resume_step: int | None = None, *, watcher: Sink) -> MetricLogger:
    """Return the logger of a run with the views its recipe asks for.

    A tracker that cannot be opened is reported, and the run does without it.

    Args:
        recipe: Its ``log`` section and name are used.
        run_dir: Directory of the run.
        resume_step: Step of the checkpoint the run goes on from; None at the beginning.
        watcher: Where progress is shown.

    Raises:
        MissingExtraError: a tracker is asked for and not installed.
    """
    return MetricLogger(run_dir, resume_step, [watcher, *_trackers(recipe, run_dir, resume_step)])


def _trackers(recipe: Recipe, run_dir: Path, resume_step: int | None) -> Iterator[Sink]:
    """TensorBoard takes points back on resume; the others only ever append, and so have a ledger."""
    settings = recipe.log
    if settings.tensorboard:
        yield from _opened(
            "TensorBoard", recipe, None, partial(TensorBoardTracker, run_dir / "tensorboard", resume_step)
        )
    is_new = resume_step is None
    if settings.wandb:
        ledger = Ledger(run_dir / _LEDGER_FOLDER / "wandb.json", recipe.name, is_new=is_new)
        yield from _opened("W&B", recipe, ledger, partial(WandbTracker, recipe, run_dir, ledger.run_id))
    if settings.trackio:
        ledger = Ledger(run_dir / _LEDGER_FOLDER / "trackio.json", recipe.name, is_new=is_new)
        yield from _opened("trackio", recipe, ledger, partial(TrackioTracker, recipe, ledger.run_id))


def _opened(name: str, recipe: Recipe, ledger: Ledger | None, make: Callable[[], Tracker]) -> Iterator[Sink]:
    try:
        tracker = make()
    except MissingExtraError:
        raise
    except Exception as error:  # a login, a network, a disk: whatever it is, training does not depend on it
        logger.warning("%s cannot be opened, and the run does without it: %s", name, error)
        return
    settings = recipe.log
    yield GuardedTracker(
        name,
        tracker,
        ledger=ledger,
        episodes_every=settings.episodes_every,
        num_episodes=settings.num_episodes,
        seed=recipe.seed,
    )
