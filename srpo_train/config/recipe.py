"""`Recipe`: everything that decides a run, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.alarms.settings import AlarmsConfig
from srpo_train.config.cluster import RayConfig
from srpo_train.config.engines import EngineConfig
from srpo_train.config.policies import PolicyConfig
from srpo_train.config.reading import assign, check_section, flatten, parse_override, read_toml
from srpo_train.config.rollouts import RolloutConfig, SamplingConfig
from srpo_train.config.running import DistributedConfig, LogConfig, TrainConfig
from srpo_train.config.updates import CriticConfig, ObjectiveConfig, OptimConfig
from srpo_train.config.values import Name
from srpo_train.config.worlds import EnvConfig, EvalConfig
from srpo_train.roles import ANY_ROLE, policy_id_of
from srpo_train.section import Section

if TYPE_CHECKING:
    from srpo_train.objective.spec import Objective


class Recipe(Section):
    """One run, completely described."""

    name: Name
    """Name of the run, and of its directory under `output_dir`."""
    seed: NonNegativeInt = 0
    """Decides tasks, sampling and mini-batches."""
    output_dir: str = "runs"
    """Where run directories are made."""
    env: EnvConfig
    eval: EvalConfig = EvalConfig()
    policies: Annotated[dict[Name, PolicyConfig], Field(min_length=1)]
    roles: dict[str, str] = Field(default_factory=dict)
    """Role to policy id; `"*"` stands for every role without an entry. May be left out when there is one policy."""
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optim: OptimConfig = OptimConfig()
    critic: CriticConfig | None = None
    train: TrainConfig = TrainConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    distributed: DistributedConfig = DistributedConfig()
    ray: RayConfig = RayConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _roles_name_policies(self) -> Recipe:
        for role, policy_id in self.roles.items():
            if policy_id not in self.policies:
                raise ValueError(
                    f"roles.{role}: no policy {policy_id!r} in [policies]{near_miss(policy_id, self.policies)}"
                )
        unused = sorted(set(self.policies) - set(self.roles.values()))
        if self.roles and unused:
            raise ValueError(
                f"policies.{unused[0]}: no entry of [roles] uses this policy; map a role to it or remove it"
            )
        if not self.roles and len(self.policies) > 1:
            raise ValueError(
                f"roles: needed to share out the policies {sorted(self.policies)}, such as '*' = {unused[0]!r}"
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Recipe:
        num_episodes = self.rollout.prompts_per_step * self.rollout.group_size
        if self.optim.num_minibatches > num_episodes:
            raise ValueError(
                f"optim.num_minibatches: should be at most the {num_episodes} episodes of a step "
                f"(rollout.prompts_per_step x rollout.group_size), each of which may be a single event, "
                f"got {self.optim.num_minibatches}"
            )
        settings = {"optim": self.optim} | {f"policies.{name}.optim": self.optim_of(name) for name in self.policies}
        if self.critic:
            settings["critic.optim"] = self.optim.model_copy(update=self.critic.optim.model_dump(exclude_none=True))
        for name, optim in settings.items():
            if optim.warmup_steps > self.train.num_steps:
                raise ValueError(
                    f"{name}.warmup_steps: should be at most train.num_steps = {self.train.num_steps}, "
                    f"got {optim.warmup_steps}"
                )
            if self.train.token_budget and optim.schedule != "constant":
                raise ValueError(
                    f'{name}.schedule: should be "constant" under train.token_budget, which does not say at which step '
                    f"the run ends, got {optim.schedule!r}"
                )
        return self

    @model_validator(mode="after")
    def _rollouts_can_overlap(self) -> Recipe:
        if self.rollout.max_lag and self.engine.kind == "vllm":
            raise ValueError(
                'rollout.max_lag: engine.kind = "vllm" runs in the trainer\'s process and cannot sample during an '
                'update; use "served", with vLLM servers on other GPUs, or max_lag = 0'
            )
        if self.rollout.early_start and self.optim.num_epochs > 1:
            raise ValueError(
                f"rollout.early_start: the first mini-batch is trained on before the others are there, so there is no "
                f"second pass; set optim.num_epochs = 1, got {self.optim.num_epochs}, or early_start = false"
            )
        if self.rollout.early_start and self.optim.num_minibatches > self.rollout.prompts_per_step:
            raise ValueError(
                f"rollout.early_start: a mini-batch is made of whole groups; set optim.num_minibatches to at most "
                f"rollout.prompts_per_step = {self.rollout.prompts_per_step}, got {self.optim.num_minibatches}"
            )
        return self

    @model_validator(mode="after")
    def _alarms_can_act(self) -> Recipe:
        if self.alarms.needs_good_checkpoint and not self.eval.every:
            raise ValueError("alarms: an action 'rollback' needs evaluations to know what was good; set eval.every")
        return self

    @model_validator(mode="after")
    def _policies_can_be_trained(self) -> Recipe:
        if not any(policy.trainable for policy in self.policies.values()):
            raise ValueError("policies: every one has trainable = false, which leaves nothing to train")
        for policy_id in self.policies:
            try:
                self.sampling_of(policy_id)
            except ValidationError as error:
                problem = error.errors()[0]
                raise ValueError(f"policies.{policy_id}.sampling: {problem['ctx']['error']}") from None
        return self

    @model_validator(mode="after")
    def _policies_have_servers(self) -> Recipe:
        if not self.engine.served:
            return self
        if self.ray.engines_per_policy:
            if self.engine.served.servers:
                raise ValueError(
                    "engine.served.servers: ray.engines_per_policy starts servers of its own; leave one of them out"
                )
            return self
        for policy_id in self.policies.keys() ^ self.engine.served.servers.keys():
            raise ValueError(
                f"engine.served.servers: policies and servers must have the same ids, only one has {policy_id!r}"
            )
        return self

    @model_validator(mode="after")
    def _policies_can_be_sharded(self) -> Recipe:
        if self.distributed.sharding == "none":
            return self
        way_out = 'with distributed.sharding = "fsdp"'
        for policy_id, policy in self.policies.items():
            if policy.adapter:
                raise ValueError(
                    f"policies.{policy_id}.adapter: a base that adapters stand on is not sharded; train the whole "
                    f'model {way_out}, or the adapter with "none"'
                )
        if self.log.role_gradients_every:
            raise ValueError(f"log.role_gradients_every: measures whole gradients, which no rank has; set 0 {way_out}")
        return self

    @property
    def run_dir(self) -> Path:
        """Directory of the run."""
        return Path(self.output_dir) / self.name

    @property
    def eval_env(self) -> EnvConfig:
        """The evaluation world: `env` with `eval.kwargs` laid over its arguments."""
        return EnvConfig(id=self.env.id, kwargs={**self.env.kwargs, **self.eval.kwargs})

    def optim_of(self, policy_id: str) -> OptimConfig:
        """Return the optimiser settings of a policy."""
        return self.optim.model_copy(update=self.policies[policy_id].optim.model_dump(exclude_none=True))

    def sampling_of(self, policy_id: str) -> SamplingConfig:
        """Return how training rollouts of a policy draw tokens."""
        own = self.policies[policy_id].sampling.model_dump(exclude_none=True)
        return SamplingConfig.model_validate({**self.sampling.model_dump(), **own})

    def objective_of(self, policy_id: str) -> ObjectiveConfig:
        """Return the objective of events in which a policy acts."""
        return self.objective.model_copy(update=self.policies[policy_id].objective.model_dump(exclude_none=True))

    def build_objective(self) -> Objective:
        """Return the objective of the run.

        Raises:
            UnknownIdError: no preset of that name.
            ConfigError: a field has a value it cannot have, or there is a critic that nothing would read.
        """
        objective = self.objective.build()
        if self.critic and not objective.advantage.needs_critic:
            raise ConfigError(
                f"critic: advantages of the estimator {objective.advantage.estimator!r} read no critic; leave [critic] "
                'out, or set objective.preset = "ppo"'
            )
        if objective.advantage.needs_critic and self.distributed.sharding != "none":
            raise ConfigError(
                f"objective: the estimator {objective.advantage.estimator!r} needs a critic, which is not sharded; use "
                'distributed.sharding = "none"'
            )
        if self.rollout.max_lag and objective.correction == "none":
            raise ConfigError(
                f"rollout.max_lag = {self.rollout.max_lag}: samples come from older weights than those that are "
                'trained, which nothing corrects; set objective.correction = "event" (or "member", "token"), or '
                "max_lag = 0"
            )
        if self.rollout.early_start and (objective.advantage.needs_critic or objective.advantage.whiten):
            raise ConfigError(
                f"rollout.early_start: the objective {objective.name!r} needs the whole batch before its first update, "
                "for a critic or to whiten advantages; set early_start = false"
            )
        return objective

    @property
    def critic_settings(self) -> CriticConfig:
        """The critic, with the settings of the first trained policy where the recipe gives none of its own."""
        own = self.critic or CriticConfig()
        policy = next(policy for policy in self.policies.values() if policy.trainable)
        missing = {name: getattr(policy, name) for name in _OF_THE_POLICY if getattr(own, name) is None}
        return own.model_copy(update=missing)

    @property
    def critic_optim(self) -> OptimConfig:
        """The optimiser settings of the critic."""
        return self.optim.model_copy(update=self.critic_settings.optim.model_dump(exclude_none=True))

    def policy_specs(self, checkpoint: Path | None = None) -> dict[str, dict[str, Any]]:
        """Return the arguments of `Policy.load` by policy id, with the weights of a checkpoint where one is given."""
        return {policy_id: self._policy_spec(policy_id, checkpoint) for policy_id in self.policies}

    def reference_specs(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of `Policy.load` of each policy's reference: what `model` names, never trained."""
        options = {"adapter": None, "trainable": False, "gradient_checkpointing": False}
        return {
            policy_id: spec | options | {"device": self.policies[policy_id].device}
            for policy_id, spec in self.policy_specs().items()
        }

    def _policy_spec(self, policy_id: str, checkpoint: Path | None) -> dict[str, Any]:
        config = self.policies[policy_id]
        own = {"optim", "objective", "sampling", "adapter", "model"}
        spec = config.model_dump(exclude=own) | {"seed": self.seed}
        if self.distributed.sharding != "none" and config.trainable:
            spec["device"] = "cpu"  # whole, it may be too large for a GPU; its parts are moved there block by block
        if checkpoint is None or not config.trainable:  # what is not trained is not in checkpoints
            return spec | {"source": config.model, "adapter": config.adapter}
        return spec | {"source": str(checkpoint / policy_id), "base": config.model if config.adapter else None}

    @property
    def role_table(self) -> dict[str, str]:
        """The ``[roles]`` section, or one policy for every role where it is left out."""
        return dict(self.roles) or {ANY_ROLE: next(iter(self.policies))}

    def policy_of(self, role: str) -> str:
        """Return the id of the policy that answers for a role.

        Raises:
            ConfigError: the role has no policy and there is no ``"*"``.
        """
        return policy_id_of(self.role_table, role)

    def role_map(self, role_names: Iterable[str]) -> dict[str, str]:
        """Return role to policy id for the roles of an environment.

        Raises:
            ConfigError: a role has no policy, or ``[roles]`` names a role the environment does not have.
        """
        names = list(role_names)
        for role in self.roles:
            if role != ANY_ROLE and role not in names:
                raise ConfigError(f"roles.{role}: environment {self.env.id!r} has no such role{near_miss(role, names)}")
        return {role: self.policy_of(role) for role in names}

    def to_toml(self) -> str:
        """Return the resolved recipe as TOML; reading it back gives an equal recipe."""
        return tomli_w.dumps(self.model_dump(mode="python", exclude_none=True))

    def differences(self, other: Recipe) -> list[str]:
        """Return the dotted keys whose values differ, sorted."""
        mine, theirs = (flatten(item.model_dump(exclude_none=True)) for item in (self, other))
        return sorted(key for key in mine | theirs if mine.get(key, _ABSENT) != theirs.get(key, _ABSENT))


_ABSENT = object()
_OF_THE_POLICY = ("model", "dtype", "device", "gradient_checkpointing")
"""Settings of a critic that are those of the first trained policy unless it has its own."""


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe, apply overrides and check everything.

    Args:
        path: The recipe.
        overrides: ``dotted.key=value``; the value is read as TOML and, where it is none, taken as text.

    Raises:
        ConfigError: the file or an override cannot be read, a key is unknown, or a value cannot be used.

    Example:
        >>> load_recipe("recipes/tiny-arithmetic.toml", ["optim.lr=1e-4"]).optim.lr  # doctest: +SKIP
        0.0001
    """
    data = read_toml(Path(path))
    sources: dict[tuple[str, ...], str] = {}
    for text in overrides:
        keys, value = parse_override(text)
        assign(data, keys, value, text)
        sources[keys] = text
    return parse_recipe(data, source=str(path), overrides=sources)


def parse_recipe(
    data: Mapping[str, Any], *, source: str = "recipe", overrides: Mapping[tuple[str, ...], str] | None = None
) -> Recipe:
    """Check a recipe that is already a nested mapping.

    Args:
        data: Sections and keys.
        source: Named in errors.
        overrides: Keys that came from an override, with its text; errors then name the override instead.

    Raises:
        ConfigError: all that is wrong, one line each.
    """
    return check_section(Recipe, data, source=source, overrides=overrides)
