"""What a run is, between two steps: weights, optimisers, counters; how it is saved, taken up again and rolled back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from srpo_envs.errors import CheckpointError, SrpoError
from srpo_train.checkpoint import Checkpoint, CheckpointStore
from srpo_train.diagnostics.tokens import RoleStyles
from srpo_train.distributed.ranks import Ranks
from srpo_train.learner import Learner
from srpo_train.policies.team import Team
from srpo_train.throughput.recorder import RECORDER
from srpo_train.value_learner import ValueLearner

AHEAD_FOLDER = "_ahead"
CRITIC_FOLDER = "_critic"  # no policy can be called so: ids begin with a letter or a digit
_SHARDS_FOLDER = "_shards"


class RunState:
    """Everything a step changes, and its way to disk and back.

    Args:
        store: Where checkpoints lie.
        team: The policies.
        learner: Their optimisers.
        critic: The critic's, where there is one.
        styles: What is remembered of the roles' first words.
        ranks: The run's processes, which all make the same calls.
        in_background: Copy what a checkpoint holds into ordinary memory, and write most of it while training goes on.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        team: Team,
        learner: Learner,
        critic: ValueLearner | None,
        styles: RoleStyles,
        ranks: Ranks,
        in_background: bool,
    ) -> None:
        self._store = store
        self._team = team
        self._learner = learner
        self._critic = critic
        self._styles = styles
        self._ranks = ranks
        self._in_background = in_background
        self._writing_ranks = ranks.beside() if in_background else ranks
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="srpo-checkpoint")
        self._under_way: Future[None] | None = None

    @RECORDER.phase("checkpoint")
    def save(self, step: int, best: int | None, write_ahead: Callable[[Path], None]) -> None:
        """Add a checkpoint; in the background it is there when `settle` has returned, which the next one waits for.

        Args:
            step: Training steps taken.
            best: A step whose weights must be kept as well.
            write_ahead: Writes what was sampled ahead into a folder, which it makes if there is something.

        Raises:
            CheckpointError: it, or the one before it in the background, could not be written.
            StorageFullError: there is no room for it.
        """
        self.settle()
        state: dict[str, Any] = {
            "step": step,
            "learner": self._learner.state_dict(),
            "styles": self._styles.state_dict(),
            "versions": {policy.policy_id: policy.version for policy in self._team},
        }
        if self._critic:
            state["critic"] = self._critic.state_dict()
        parts = self._learner.parts()
        if self._ranks.is_main:
            self._store.begin(step, lambda folder: self._write_models(write_ahead, folder))
        else:
            self._write_models(write_ahead, None)
        if self._in_background:
            state, parts = _copied(state), _copied(parts)
            self._under_way = self._writer.submit(self._complete, step, state, parts, best)
        else:
            self._complete(step, state, parts, best)

    def settle(self) -> None:
        """Wait until a checkpoint that is being written in the background is there.

        Raises:
            CheckpointError: it could not be written.
            StorageFullError: there was no room for it.
        """
        under_way, self._under_way = self._under_way, None
        if under_way:
            with RECORDER.span("await checkpoint", "checkpoint"):
                under_way.result()

    def close(self) -> None:
        """Let what is being written come to its end, whatever that is; safe to call more than once."""
        self._writer.shutdown()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up what `save` wrote; the policies' and the critic's weights are read when those are made.

        Raises:
            CheckpointError: it is another team's.
        """
        state = self._store.load_state(checkpoint)
        if set(state["versions"]) != set(self._team.policies):
            raise CheckpointError(
                f"{checkpoint.path}: the checkpoint holds policies {sorted(state['versions'])}, the recipe "
                f"{sorted(self._team.policies)}; start a new run with another name"
            )
        self._learner.load_state_dict(state["learner"])
        self._learner.load_shards(checkpoint.path / _SHARDS_FOLDER)
        self._styles.load_state_dict(state["styles"])
        if self._critic:
            self._critic.load_state_dict(state["critic"])
        for policy_id, version in state["versions"].items():
            self._team[policy_id].version = version

    def roll_back(self, best: int | None) -> Checkpoint | None:
        """Take back weights and optimisers of a good checkpoint; steps, rates and a critic go on as they are.

        Args:
            best: The step that was good; the newest checkpoint at or before it is taken.

        Returns:
            That checkpoint, or None when there is none.
        """
        self.settle()
        good = None if best is None else self._ranks.from_main(lambda: self._store.not_after(best))
        if good is None:
            return None
        for policy in self._team.trained:
            if not policy.shards:
                policy.restore(good.path / policy.policy_id)
            policy.version += 1
        self._learner.load_optimizers(self._store.load_state(good)["learner"])
        self._learner.load_shards(good.path / _SHARDS_FOLDER)
        return good

    def _write_models(self, write_ahead: Callable[[Path], None], begun: Path | None) -> None:
        """Write models and what was sampled ahead: the main rank does, the others help to put its models together."""
        folder = self._ranks.from_main(lambda: begun)
        assert folder is not None
        for policy in self._team.trained:  # the others are what the recipe names
            if policy.shards or self._ranks.is_main:
                policy.save(folder / policy.policy_id)
        if self._critic and self._ranks.is_main:
            self._critic.critic.save(folder / CRITIC_FOLDER)
        if self._ranks.is_main:
            write_ahead(folder / AHEAD_FOLDER)

    def _complete(self, step: int, state: dict[str, Any], parts: dict[str, Any], best: int | None) -> None:
        """Write the rest, of which every rank has parts, and let the checkpoint be there."""
        trouble: SrpoError | None = None
        try:
            if self._ranks.is_main:
                self._store.complete(step, lambda folder: self._write_parts(parts, folder), state, best=best)
            else:
                self._write_parts(parts, None)
        except SrpoError as error:
            trouble = error
        # All know how the main rank fared before one of them ends, which would take the others with it.
        self._writing_ranks.from_main(lambda: _raise(trouble))
        _raise(trouble)

    def _write_parts(self, parts: dict[str, Any], begun: Path | None) -> None:
        folder = self._writing_ranks.from_main(lambda: begun)
        assert folder is not None
        if not parts:
            return
        from srpo_train.distributed.sharding import save_parts  # much of torch

        for policy_id, its_parts in parts.items():
            save_parts(its_parts, folder / _SHARDS_FOLDER / policy_id, self._writing_ranks)


def _raise(trouble: SrpoError | None) -> None:
    if trouble:
        raise trouble


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Copy a state into ordinary memory, the parts of spread tensors as such."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # much of torch

    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    with contextlib.closing(DefaultStager(options)) as stager:
        return cast("dict[str, Any]", stager.stage(state))
