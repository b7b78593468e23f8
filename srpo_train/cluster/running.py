"""The driver of a run on Ray: it finds room, starts workers and engines, hands the ranks to Ray Train, and listens.

Whatever ends the driver ends the run: its workers, engines, ranks and servers belong to its connection, and Ray ends
them with that. A run that was ended so goes on with ``--resume``.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import srpo_envs
from srpo_envs.errors import ConfigError, EngineError, RankLostError, SrpoError
from srpo_train.cluster.connecting import cluster_nodes, connected
from srpo_train.cluster.placement import Group, fit, plan_groups
from srpo_train.cluster.ranks import Job, run_rank
from srpo_train.cluster.roster import Arrived, Desk, Failed, News, Roster, Seat
from srpo_train.config import Recipe
from srpo_train.run_dir import require_same_run, write_whole

logger = logging.getLogger(__name__)

PLACEMENT_FILE = "placement.json"
"""Who is where, with process ids, as it is now; in the run directory."""

_LISTEN_S = 0.25


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
        actors = {group: stack.enter_context(_started(group, recipe, desk)) for group in groups if group.kind != "rank"}
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


# --- workers and engines ------------------------------------------------------------------------------------------


@contextmanager
def _started(group: Group, recipe: Recipe, driver: Desk) -> Iterator[dict[str, Any]]:
    """Start the processes of a group in their places and wait until all are up; return handles by seat.

    Raises:
        ConfigError: others keep the places occupied.
        EngineError: a process did not start.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    places = placement_group(group.bundles, strategy=group.strategy)
    actors: dict[str, Any] = {}
    try:
        if not places.wait(recipe.ray.start_timeout_s):
            raise ConfigError(
                f"{group.name}: the cluster is large enough, but {group.count} places did not become free within "
                f"{recipe.ray.start_timeout_s:g} s (free now: {ray.available_resources()})"
            )
        for index in range(group.count):
            name = group.seat(index)
            kind, arguments = _process(group, recipe)
            desk = Desk(roster=driver.roster, name=name, kind=group.kind, folder=driver.folder)
            options = {
                "num_cpus": group.cpus,
                "num_gpus": group.gpus,
                "max_restarts": recipe.ray.max_restarts,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(places, index),
                # Moves of environments wait for each other nowhere: each has a thread.
                **({"max_concurrency": 100_000} if group.kind == "environments" else {}),
            }
            actors[name] = ray.remote(kind).options(**options).remote(desk, **arguments)
        _await_all(actors, recipe.ray.start_timeout_s)
        yield actors
    finally:
        for actor in actors.values():
            ray.kill(actor)
        remove_placement_group(places)


def _process(group: Group, recipe: Recipe) -> tuple[type, dict[str, Any]]:
    """Return the actor's class for a place of a group, and its arguments."""
    if group.kind == "environments":
        from srpo_train.cluster.worlds import EnvWorker

        return EnvWorker, {}
    if recipe.engine.kind == "served":
        from srpo_train.cluster.servers import ServerActor, server_spec

        return ServerActor, {"spec": server_spec(recipe, group.policy_ids)}
    from srpo_train.cluster.copies import CopyActor

    (policy_id,) = group.policy_ids
    own = {"device": recipe.policies[policy_id].device, "gradient_checkpointing": False}
    return CopyActor, {
        "num_threads": recipe.train.num_threads,
        "policy_id": policy_id,
        "spec": recipe.policy_specs()[policy_id] | own,
        "max_batch_tokens": recipe.engine.max_batch_tokens,
    }


def _await_all(actors: Mapping[str, Any], timeout_s: float) -> None:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    answers = {name: actor.ready.remote() for name, actor in actors.items()}
    try:
        ray.get(list(answers.values()), timeout=timeout_s)
    except GetTimeoutError:
        done, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=0)
        late = [name for name, answer in answers.items() if answer not in done]
        raise EngineError(f"not up after ray.start_timeout_s = {timeout_s:g} s: {', '.join(late)}") from None
    except (RayActorError, RayTaskError) as error:
        raise EngineError(f"a process of the cluster did not start: {reason_of(error)}") from error


def _job(recipe: Recipe, resume: bool, desk: Desk, actors: Mapping[Group, dict[str, Any]]) -> Job:
    import ray

    by_policy = {policy_id: handles for group, handles in actors.items() for policy_id in group.policy_ids}
    is_served = recipe.engine.kind == "served"
    seats: list[Seat] = ray.get(desk.actor.seats.remote())
    urls = {seat.name: seat.url for seat in seats}
    return Job(
        recipe=recipe,
        resume=resume,
        roster=desk.roster,
        folder=desk.folder,
        env_workers=next((handles for group, handles in actors.items() if group.kind == "environments"), {}),
        copies={} if is_served else by_policy,
        servers={name: {seat: urls[seat] for seat in handles} for name, handles in by_policy.items()}
        if is_served
        else {},
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


# --- what is going on ---------------------------------------------------------------------------------------------


class RunningTraining(Protocol):
    """Training that goes on beside whoever watches it."""

    error: BaseException | None
    """What it ended with, once it is over."""

    def is_over(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        ...


class Watch:
    """Passes on what the processes of a run tell, and keeps the file that says where they are.

    Args:
        run_dir: Where the file is.
        take_news: Returns, once, what is new.
        seats: Returns who is where now.
        on_news: Called with every piece of news.
    """

    def __init__(
        self,
        run_dir: Path,
        take_news: Callable[[], list[News]],
        seats: Callable[[], list[Seat]],
        on_news: Callable[[News], None],
    ) -> None:
        self._run_dir = run_dir
        self._take_news = take_news
        self._seats = seats
        self._on_news = on_news

    def until(self, training: RunningTraining) -> None:
        """Listen until training is over.

        Raises:
            SrpoError: what a rank says no restart will mend.
            RankLostError: Ray Train has given up.
        """
        is_over = False
        while not is_over:
            is_over = training.is_over(_LISTEN_S)
            self._listen()
        if training.error:
            raise RankLostError(
                f"training ended: {reason_of(training.error)}; see {self._run_dir} and go on with --resume"
            )

    def _listen(self) -> None:
        news = self._take_news()
        if any(isinstance(item, Arrived) for item in news):
            self._write_placement(self._seats())
        for item in news:
            if isinstance(item, Failed):
                raise item.error
            self._on_news(item)

    def _write_placement(self, seats: Sequence[Seat]) -> None:
        places = {"driver": {"pid": os.getpid()}, "seats": [asdict(seat) for seat in seats]}
        write_whole(self._run_dir / PLACEMENT_FILE, json.dumps(places, indent=2) + "\n")


def _call(method: Any) -> Callable[[], Any]:
    """Return a call of an actor's method that waits for what it returns."""
    import ray

    return lambda: ray.get(method.remote())


def reason_of(error: BaseException) -> str:
    """Say in one line what is below Ray's own words."""
    for inner in (*getattr(error, "worker_failures", {}).values(), getattr(error, "cause", None)):
        if inner is not None:
            return reason_of(inner)
    if isinstance(error, SrpoError):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
