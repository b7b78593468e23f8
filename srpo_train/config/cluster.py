"""Where `srpo train --ray` puts the parts of a run, and how often what dies is started again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, Strict, model_validator

from srpo_train.section import Section


class RayConfig(Section):
    """How `srpo train --ray` places a run on a cluster; nothing of it is read without `--ray`."""

    address: str = ""
    """The cluster: empty starts one on this machine that ends with the run, `auto` joins the one this machine belongs
    to, and `host:port` names one."""
    num_ranks: PositiveInt = 1
    """Trainer ranks: processes that share the update, as with `torchrun`."""
    cpus_per_rank: PositiveFloat = 1.0
    """Cores that each has to itself, as Ray counts them."""
    gpus_per_rank: NonNegativeInt = 0
    """GPUs of each: 1 to train on GPUs. With 0 a rank sees none, whatever the machine has."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK"] = "PACK"
    """`PACK` puts ranks on few machines where they fit, `SPREAD` on many, `STRICT_PACK` on one or nowhere."""
    num_env_workers: NonNegativeInt = 1
    """Processes that hold the environments with their graders and tools; with 0 every rank holds its own."""
    cpus_per_env_worker: PositiveFloat = 1.0
    """Cores of each."""
    engines_per_policy: NonNegativeInt = 0
    """Processes that sample for each policy: copies of the model with `engine.kind = "transformers"`, vLLM servers with
    `"served"`, which policies with adapters on one model share. With 0 ranks sample themselves, or ask the servers of
    `engine.served`."""
    cpus_per_engine: PositiveFloat = 1.0
    """Cores of each."""
    gpus_per_engine: NonNegativeInt = 0
    """GPUs of each, all on one machine."""
    server_options: Annotated[tuple[str, ...], Strict(False)] = ()
    """Options of vLLM for its servers, such as `["--tensor-parallel-size", "2"]`."""
    max_restarts: Annotated[int, Field(ge=-1)] = 10
    """Times an environment worker or an engine that died is started again; -1 knows no limit."""
    max_failures: Annotated[int, Field(ge=-1)] = 3
    """Times training goes on from the newest checkpoint after a rank died; -1 knows no limit."""
    copy_timeout_s: PositiveFloat = 1800.0
    """Seconds in which a copy of a policy has to answer a batch of requests or take new weights; one that does not is
    killed and started again, and others answer."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds to wait for room on the cluster, and for workers and engines to start."""

    @model_validator(mode="after")
    def _engines_use_what_they_are_given(self) -> RayConfig:
        if not self.engines_per_policy and (self.gpus_per_engine or self.server_options):
            raise ValueError("gpus_per_engine and server_options are those of engines; set engines_per_policy")
        return self
