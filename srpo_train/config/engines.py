"""Engines: who generates, and how it is set up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    model_validator,
)

from srpo_envs.errors import ConfigError
from srpo_train.config.values import Name, Probability, Url
from srpo_train.section import Section


class VllmConfig(Section):
    """How vLLM is set up; each policy, or each base of adapters, has a vLLM of its own."""

    dtype: Literal["policy", "float32", "bfloat16", "float16"] = "policy"
    """Number format there; `policy` takes that of the policy."""
    gpu_memory_utilization: Probability = 0.4
    """Share of a GPU's memory that each vLLM takes for weights and cache; what is left is the trainer's when they share
    the GPU."""
    kv_cache_memory_bytes: NonNegativeInt = 0
    """Size of the cache per GPU, in place of that share; 0 keeps to the share, and to 64 MiB on a CPU."""
    max_model_len: NonNegativeInt = 0
    """Most tokens of prompt and response together; 0 takes the policy's context."""
    max_num_seqs: PositiveInt = 256
    """Responses that are decoded together."""
    enforce_eager: bool = False
    """Do without compiled graphs: starts faster, decodes slower. Always so on a CPU."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share a model; above 1 the weights reach them through a file in memory."""
    sleep: bool = False
    """Give vLLM's memory to the trainer during updates; for a GPU they share, and for one vLLM. Without effect on a
    CPU."""
    publish_timeout_s: PositiveFloat = 300.0
    """Seconds after which a publication of weights counts as hung and the run ends."""


class ServedConfig(Section):
    """vLLM servers, which `srpo serve-policy` starts; each holds a model, or adapters of policies over one."""

    servers: dict[Name, Annotated[tuple[Url, ...], Strict(False), Field(min_length=1)]] = Field(default_factory=dict)
    """URLs of the servers of each policy, by policy id. Adapters over one model may have the same ones. Left out where
    `ray.engines_per_policy` starts servers."""
    weights_dir: str = ""
    """Folder for published weights, which trainer and servers see under the same path; when empty one of the trainer's
    temporary folders, for servers on the same machine."""
    api_key_env: str = ""
    """Environment variable that holds the servers' key, if they ask for one."""
    timeout_s: PositiveFloat = 600.0
    """Longest wait for one response; it is then asked of another server."""
    max_retries: NonNegativeInt = 3
    """Tries of a response after the first, before it is given up."""
    publish_timeout_s: PositiveFloat = 300.0
    """Seconds after which a publication of weights counts as hung and the run ends."""
    transport: Literal["file", "gloo", "nccl"] = "file"
    """How weights get to servers: `file` through `weights_dir`; `gloo` and `nccl` over a process group of trainer and
    workers, which needs no folder that both see. Adapters go through `weights_dir` always."""
    bucket_bytes: PositiveInt = 1 << 30
    """Size of the pieces in which a model is put together, sent and loaded: so much of it the trainer holds at once."""
    group_host: str = ""
    """Address of the trainer's machine, as servers see it, for `gloo` and `nccl`; when empty the one it has on the way
    to a policy's first server."""
    outage_s: PositiveFloat = 300.0
    """Seconds that requests wait while no server of a policy is fit, before the run ends."""

    def neighbours(self, policy_id: str) -> frozenset[str]:
        """Return the other policies on any server of a policy."""
        own = set(self.servers[policy_id])
        return frozenset(other for other, urls in self.servers.items() if other != policy_id and own & set(urls))

    def check_neighbours(self, bases: Mapping[str, Hashable | None]) -> None:
        """Check that policies on one server stand on the same model.

        Args:
            bases: What each policy is an adapter of, or a frozen copy of, by policy id; None for a model of its own.

        Raises:
            ConfigError: some do not.
        """
        for policy_id, base in bases.items():
            for other in sorted(self.neighbours(policy_id)):
                if base is None or bases[other] != base:
                    raise ConfigError(
                        f"engine.served.servers: {policy_id!r} and {other!r} have a server in common, which holds one "
                        "model; they would have to be adapters over the same one"
                    )


class EngineConfig(Section):
    """Who generates."""

    kind: Literal["transformers", "vllm", "served"] = "transformers"
    """`transformers` samples from the trainer's own model, on CPU or GPU; `vllm` from a copy in vLLM, in the same
    process, to which the weights are published after every update; `served` from copies on vLLM servers likewise."""
    max_batch_tokens: PositiveInt = 131072
    """Most prompt and response tokens held at once while generating; more pending prompts are split into batches.
    `transformers` only."""
    vllm: VllmConfig | None = None
    """Settings of `vllm`."""
    served: ServedConfig | None = None
    """Settings of `served`."""

    @property
    def num_servers(self) -> int:
        """Servers that sample; 0 where the trainer's processes do."""
        return len({url for urls in self.served.servers.values() for url in urls}) if self.served else 0

    @model_validator(mode="before")
    @classmethod
    def _show_defaults(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("kind") == "vllm":
            return {"vllm": {}, **data}
        return data

    @model_validator(mode="after")
    def _uses_what_it_sets_up(self) -> EngineConfig:
        for name in ("vllm", "served"):
            if getattr(self, name) and self.kind != name:
                raise ValueError(f'{name}: kind = "{self.kind}" would not read these settings; set kind = "{name}"')
        if self.kind == "served" and not self.served:
            raise ValueError('served: kind = "served" needs to know the servers of each policy')
        return self
