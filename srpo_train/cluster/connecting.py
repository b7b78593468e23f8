"""Being connected to a Ray cluster: one that is there, or one of this machine that ends with the connection."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from typing import Any

from srpo_envs.errors import ConfigError, MissingExtraError
from srpo_train.cluster.placement import Node

_SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # Ray Train would move ranks to a folder of its own
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # a run calls nobody outside unasked
}


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a cluster while the body runs; all that was started on it for the body ends with it.

    Args:
        address: See `ray.address` of a recipe.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster answers there, or this process is connected already.
    """
    require_ray()
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    import ray

    if ray.is_initialized():
        raise ConfigError("this process is connected to a Ray cluster, which a run does by itself; call ray.shutdown()")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "srpo"}
    try:
        if address:
            ray.init(address=address, **options)
        else:
            ray.init(address="local", include_dashboard=False, **options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"ray.address = {address!r}: no cluster answers there ({error}); start one with `ray start --head`, or "
            "leave the key out to start one on this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def require_ray() -> None:
    """Refuse to go on without Ray.

    Raises:
        MissingExtraError: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray")


def cluster_nodes() -> list[Node]:
    """Return the machines of the cluster that this process is connected to, with all that they have."""
    import ray

    return [
        Node(
            name=node["NodeManagerAddress"],
            cpus=float(node["Resources"].get("CPU", 0)),
            gpus=float(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def this_machine() -> Node:
    """Return what a cluster that is started on this machine will have."""
    import torch

    return Node(name="this machine", cpus=float(os.cpu_count() or 1), gpus=float(torch.cuda.device_count()))


def known_nodes(address: str) -> list[Node]:
    """Return the machines that a run would find, without starting anything.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster answers there.
    """
    require_ray()
    if not address:
        return [this_machine()]
    with connected(address):
        return cluster_nodes()
