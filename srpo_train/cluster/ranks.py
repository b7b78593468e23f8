"""What runs on each rank of Ray Train: the same training loop as under ``torchrun``, with its parts on the cluster."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from srpo_envs.errors import SrpoError, SurroundingsError, WorkerLostError
from srpo_train.cluster.copies import CopiesEngine
from srpo_train.cluster.lines import ActorLine
from srpo_train.cluster.roster import Desk, Failed, RosterSink, as_metrics
from srpo_train.cluster.servers import AddressBook
from srpo_train.cluster.worlds import EnvWorkers
from srpo_train.collect.environments import World
from srpo_train.config import EnvConfig, Recipe, ServedConfig
from srpo_train.engines.base import Engine
from srpo_train.engines.making import make_engines
from srpo_train.engines.publishing import weights_of
from srpo_train.metrics import Sink, Values
from srpo_train.places import env_factory
from srpo_train.policies.policy import Policy

_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a rank is sent."""

    recipe: Recipe
    """The run."""
    resume: bool
    """Whether a run that is already there is to be continued."""
    roster: str
    """Name of the roster's actor."""
    folder: str
    """The driver's working directory."""
    env_workers: Mapping[str, Any]
    """Handles of the environment workers by seat."""
    engines: Mapping[str, Mapping[str, Any]]
    """Handles of the copies or servers of each policy, by policy id and seat."""


def run_rank(settings: Mapping[str, Job]) -> None:
    """Train as one rank; what Ray Train calls in every worker.

    A rank that is started again goes on from the newest checkpoint. Errors that would come again are told to the
    driver, which ends the run; bad surroundings are raised, and Ray Train starts all ranks anew.
    """
    import ray.train

    from srpo_train.cli._worlds import hide_transformers_progress
    from srpo_train.loop import train

    job = settings["job"]
    rank = ray.train.get_context().get_world_rank()
    desk = Desk(roster=job.roster, name=f"rank {rank}", kind="rank", folder=job.folder)
    life = ray.get(desk.arrive())
    hide_transformers_progress()
    try:
        train(job.recipe, resume=job.resume or life > 0, places=OnCluster(job, desk, rank=rank, life=life))
    except SrpoError as error:
        if not isinstance(error, SurroundingsError):
            ray.get(desk.tell(Failed(error)))
        raise


class OnCluster:
    """Environments and engines of a run in other processes of the cluster, and a driver that watches.

    Args:
        job: What is where.
        desk: This rank's.
        rank: Its number.
        life: How often it had been started before.
    """

    def __init__(self, job: Job, desk: Desk, *, rank: int, life: int) -> None:
        self._job = job
        self._desk = desk
        self._workers = (
            EnvWorkers(
                [ActorLine(name, actor) for name, actor in job.env_workers.items()],
                rank=rank,
                life=life,
                on_rebuilt=lambda: desk.count("rebuilt episodes"),
            )
            if job.env_workers
            else None
        )

    @property
    def is_sampling_elsewhere(self) -> bool:
        """Whether the cluster runs engines, or the recipe names servers."""
        return bool(self._job.engines) or self._job.recipe.engine.kind == "served"

    @property
    def num_engines(self) -> int:
        """Copies or servers of the cluster, or servers that the recipe names."""
        own = {seat for seats in self._job.engines.values() for seat in seats}
        return len(own) or self._job.recipe.engine.num_servers

    def worlds(self, config: EnvConfig) -> Callable[[], World]:
        """Return what makes one environment after another: on the workers, or here where there are none."""
        if self._workers is None:
            return env_factory(config)
        return functools.partial(self._workers.make, config)

    def engines(self, policies: Iterable[Policy]) -> dict[str, Engine]:
        """Return engines that ask the cluster's copies or servers, or those of the recipe."""
        import ray

        job, config = self._job, self._job.recipe.engine
        if not job.engines:
            return make_engines(policies, config)
        if config.served:
            return self._ask_servers(policies, config.served)
        engines: dict[str, Engine] = {}
        for policy in policies:
            lines = [
                ActorLine(name, actor, timeout_s=job.recipe.ray.copy_timeout_s)
                for name, actor in job.engines[policy.policy_id].items()
            ]
            engine = CopiesEngine(policy, lines, store=ray.put)
            engine.publish(policy.version, weights_of(policy))
            engines[policy.policy_id] = engine
        return engines

    def watcher(self, done_steps: int) -> Sink:
        """Return the way to the driver's terminal."""
        return RosterSink(self._desk, done_steps)

    def metrics(self) -> Values:
        """Return what was started again, and which episodes went on elsewhere."""
        import ray

        return as_metrics(ray.get(self._desk.actor.tally.remote()))

    def _ask_servers(self, policies: Iterable[Policy], served: ServedConfig) -> dict[str, Engine]:
        seats = self._job.engines
        known = {seat: self._address(seat, actor) for actors in seats.values() for seat, actor in actors.items()}
        urls = {policy_id: tuple(known[seat] for seat in actors) for policy_id, actors in seats.items()}
        config = self._job.recipe.engine.model_copy(update={"served": served.model_copy(update={"servers": urls})})
        engines = make_engines(policies, config)
        book = AddressBook(self._addresses, known)
        for policy_id, engine in engines.items():
            book.add(list(seats[policy_id]), engine)  # type: ignore[arg-type]  # a ServedEngine
        book.start()
        return engines

    def _address(self, seat: str, actor: Any) -> str:
        """Return where a server is now; one that is being started again is waited for.

        Raises:
            WorkerLostError: it does not come back.
        """
        line, end = ActorLine(seat, actor), time.monotonic() + self._job.recipe.ray.start_timeout_s
        while True:
            try:
                return str(line.send("ready")())
            except WorkerLostError:
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE_S)

    def _addresses(self) -> dict[str, str]:
        import ray

        return {seat.name: seat.url for seat in ray.get(self._desk.actor.seats.remote()) if seat.url}
