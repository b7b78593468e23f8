"""The driver of a run on Ray: it finds room, starts workers and engines, hands the ranks to Ray Train, and listens.

Whatever ends the driver ends the run: its workers, engines, ranks and servers belong to its connection, and Ray ends
them with that. A run that was ended so goes on with ``--resume``.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import srpo_envs
from srpo_envs.errors import ConfigError
from srpo_train.cluster.connecting import cluster_nodes, connected
from srpo_train.cluster.placement import Group, fit, plan_groups
from srpo_train.cluster.ranks import Job, run_rank
from srpo_train.cluster.roster import Desk, News, Roster
from srpo_train.cluster.starting import await_all, started
from srpo_train.cluster.watching import Watch
from srpo_train.config import Recipe
from srpo_train.run_dir import require_same_run


def train_on_ray(recipe: Recipe, *, resume: bool = False, on_news: Callable[[News], None]) -> Path:
    """Train on a cluster as the recipe says and return the run directory, which all machines see under this path.

    Args:
        recipe: The run; its ``[ray]`` section says what is placed.
        resume: Go on from the newest checkpoint of the run directory, or begin when there is none.
        on_news: Called, in this thread, with everything that somebody who watches wants to know.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no such cluster, it has no room, or the recipe cannot be used.
        EngineError: an engine or an environment worker cannot be started.
        RankLostError: ranks died more often than `ray.max_failures` allows.
    """
    groups = plan_groups(recipe)
    require_same_run(recipe, resume=resume)  # what would fail on the ranks is said before they are started
    recipe.role_map(srpo_envs.make(recipe.env.id, **recipe.env.kwargs).roles)
    recipe.build_objective()
    recipe = recipe.model_copy(update={"output_dir": str(Path(recipe.output_dir).resolve())})
    with connected(recipe.ray.address), ExitStack() as stack:
        require_room(groups)
        recipe.run_dir.mkdir(parents=True, exist_ok=True)
        roster, desk = _open_roster()
        actors = {group: stack.enter_context(started(group, recipe, desk)) for group in groups if group.kind != "rank"}
        await_all(ChainMap(*actors.values()), recipe.ray.start_timeout_s)
        job = _job(recipe, resume, desk, actors)
        take_news, seats = _call(roster.take_news), _call(roster.seats)
        Watch(recipe.run_dir, take_news, seats, on_news).until(_Training(groups[0], job))
    return recipe.run_dir


def require_room(groups: Sequence[Group]) -> None:
    """Refuse to start what the cluster could never hold.

    Raises:
        ConfigError: names every group that finds no room, and what is missing.
    """
    if missing := fit(groups, cluster_nodes()).missing:
        raise ConfigError("the cluster cannot hold this run: " + "; ".join(missing))


def _open_roster() -> tuple[Any, Desk]:
    """Start the roster on this machine, so that it lives as long as the driver; return it and the driver's own desk."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    name = f"srpo-roster-{uuid.uuid4().hex[:8]}"
    actor = ray.remote(Roster).options(name=name, num_cpus=0, scheduling_strategy=here).remote()
    return actor, Desk(roster=name, name="driver", kind="driver", folder=os.getcwd())


def _call(method: Any) -> Callable[[], Any]:
    """Return a call of an actor's method that waits for what it returns."""
    import ray

    return lambda: ray.get(method.remote())


def _job(recipe: Recipe, resume: bool, desk: Desk, actors: Mapping[Group, dict[str, Any]]) -> Job:
    return Job(
        recipe=recipe,
        resume=resume,
        roster=desk.roster,
        folder=desk.folder,
        env_workers=next((handles for group, handles in actors.items() if group.kind == "environments"), {}),
        engines={policy_id: handles for group, handles in actors.items() for policy_id in group.policy_ids},
    )


# --- ranks --------------------------------------------------------------------------------------------------------


class _Training:
    """Ray Train's part of the run, on a thread of its own.

    On the main thread it would take Ctrl-C for itself.
    """

    def __init__(self, ranks: Group, job: Job) -> None:
        self._ranks = ranks
        self._job = job
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="srpo-ray-train", daemon=True)
        self._thread.start()

    def is_over(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            _trainer(self._ranks, self._job).fit()
        except BaseException as error:  # the boundary of the thread: raised where the run is awaited
            self.error = error


def _trainer(ranks: Group, job: Job) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    recipe = job.recipe
    return TorchTrainer(
        run_rank,
        train_loop_config={"job": job},
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if ranks.gpus else "gloo", timeout_s=int(recipe.distributed.timeout_s)
        ),
        scaling_config=ScalingConfig(
            num_workers=ranks.count,
            use_gpu=bool(ranks.gpus),
            resources_per_worker=ranks.bundles[0],
            placement_strategy=ranks.strategy,
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(recipe.run_dir),
            failure_config=FailureConfig(max_failures=recipe.ray.max_failures),
        ),
    )
