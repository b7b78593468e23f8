"""What a run is, between two steps: weights, optimisers, counters; how it is saved, taken up again and rolled back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from srpo_envs.errors import CheckpointError
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
    ) -> None:
        self._store = store
        self._team = team
        self._learner = learner
        self._critic = critic
        self._styles = styles
        self._ranks = ranks

    @RECORDER.phase("checkpoint")
    def save(self, step: int, best: int | None, write_ahead: Callable[[Path], None]) -> None:
        """Add a checkpoint.

        Args:
            step: Training steps taken.
            best: A step whose weights must be kept as well.
            write_ahead: Writes what was sampled ahead into a folder, which it makes if there is something.
        """
        state: dict[str, Any] = {
            "step": step,
            "learner": self._learner.state_dict(),
            "styles": self._styles.state_dict(),
            "versions": {policy.policy_id: policy.version for policy in self._team},
        }
        if self._critic:
            state["critic"] = self._critic.state_dict()
        if self._ranks.is_main:
            self._store.save(step, functools.partial(self._write, write_ahead), state, best=best)
        else:
            self._write(write_ahead, None)
        self._ranks.from_main(lambda: None)  # a rank that ends now must not take the main one with it

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

    def _write(self, write_ahead: Callable[[Path], None], begun: Path | None) -> None:
        """Write what a checkpoint holds beside the state; the main rank says where, the others add their parts."""
        folder = self._ranks.from_main(lambda: begun)
        assert folder is not None
        for policy in self._team.trained:  # the others are what the recipe names
            if policy.shards or self._ranks.is_main:
                policy.save(folder / policy.policy_id)
        self._learner.save_shards(folder / _SHARDS_FOLDER)
        if self._critic and self._ranks.is_main:
            self._critic.critic.save(folder / CRITIC_FOLDER)
        if self._ranks.is_main:
            write_ahead(folder / AHEAD_FOLDER)
