"""Workers and engines at their places: started by Ray, and ended when the run ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.cluster.placement import Group
from srpo_train.cluster.roster import Desk
from srpo_train.cluster.watching import reason_of
from srpo_train.config import Recipe


@contextmanager
def started(group: Group, recipe: Recipe, driver: Desk) -> Iterator[dict[str, Any]]:
    """Start the processes of a group at their places, for as long as the body runs; return handles by seat.

    Raises:
        ConfigError: others keep the places occupied.
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


def await_all(actors: Mapping[str, Any], timeout_s: float) -> None:
    """Wait until all processes are up.

    Raises:
        EngineError: one did not start, or not in time.
    """
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
