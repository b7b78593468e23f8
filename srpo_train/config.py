"""Every knob of a run: frozen models read from a TOML recipe plus dotted overrides.

A recipe is checked without torch, so it can be written and tested anywhere::

    recipe = load_recipe("recipes/tiny-arithmetic.toml", ["optim.lr=1e-4", "env.kwargs.level=1"])
    recipe.optim.lr                  # 0.0001
    recipe.policy_of("verifier")     # "team"
    recipe.to_toml()                 # the resolved recipe, saved with the run

An unknown key fails with the nearest known one, a wrong value with what was expected, and both name the file (or the
override) and the key. The sentence under each field is also its line in ``docs/recipes.md``.
"""

from __future__ import annotations

import math
import tomllib
import typing
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.alarms.settings import AlarmsConfig
from srpo_train.roles import ANY_ROLE, policy_id_of
from srpo_train.section import Section

if TYPE_CHECKING:
    from srpo_train.objective.spec import Objective

S = TypeVar("S", bound="Section")

BUILTIN_TEAM = "builtin:tiny-team"
"""Name of the embedded tiny policy in ``policies.<id>.model``."""

ALL_LINEAR = "all-linear"
"""Value of ``policies.<id>.adapter.targets`` for every linear layer below the output head."""

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Url = Annotated[str, StringConstraints(pattern=r"^https?://[^/?#\s]+[^?#\s]*$")]
_Probability = Annotated[float, Field(gt=0, le=1)]
_Beta = Annotated[float, Field(ge=0, lt=1)]


class EnvConfig(Section):
    """The world that is trained on."""

    id: str
    """Registered environment id, as `srpo envs` lists them."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that environment, as `srpo envs ID` lists them."""


class EvalConfig(Section):
    """Held-out evaluation during training."""

    every: NonNegativeInt = 0
    """Steps between evaluations; 0 never evaluates. The last step is evaluated too when this is not 0."""
    at_start: bool = True
    """Evaluate before the first step as well, when `every` is not 0."""
    num_tasks: PositiveInt = 64
    """Tasks per evaluation, the first ones of the held-out split."""
    samples_per_task: PositiveInt = 1
    """Episodes per task; k of Avg@k and Pass@k."""
    kwargs: dict[str, Any] = Field(default_factory=lambda: {"split": "test"})
    """Arguments that replace those of `env.kwargs` in the evaluation environment."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of evaluation; 0 takes the most likely token."""
    top_p: _Probability = 1.0
    """Nucleus of evaluation sampling; 1 keeps everything."""
    top_k: NonNegativeInt = 0
    """Tokens kept in evaluation sampling; 0 keeps everything."""


class AdapterConfig(Section):
    """A LoRA adapter over the policy's model, which stays frozen. Policies over one model have it in memory once."""

    rank: PositiveInt = 64
    """Rank of each update."""
    alpha: PositiveFloat = 32.0
    """The update is scaled by alpha / rank."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(rank) instead, which keeps the size of updates when the rank grows."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Strict(False), Field(min_length=1)] = "all-linear"
    """Linear layers that get one: all below the output head, or a list of names such as `["q_proj", "v_proj"]`."""
    init: Literal["kaiming", "gaussian"] = "kaiming"
    """First weights of the inner factor; the outer one is 0, so that a policy starts as its model."""
    dropout: float = 0.0
    """Must be 0: the ratio compares two forward passes over the same tokens, which must not differ by chance."""

    @model_validator(mode="after")
    def _has_no_dropout(self) -> AdapterConfig:
        if self.dropout:
            raise ValueError(
                f"dropout: must be 0, got {self.dropout}; random masks would move the set ratio away from 1 before any "
                "update, and make gradients of an event's members disagree about it"
            )
        return self


class PolicyOptimConfig(Section):
    """What differs from `[optim]` for this policy, or for the critic. How a batch is cut is the same for all."""

    lr: PositiveFloat | None = None
    """Peak learning rate."""
    betas: Annotated[tuple[_Beta, _Beta], Strict(False)] | None = None
    """Decay of the running mean and of the running square of the gradient."""
    eps: PositiveFloat | None = None
    """Added to the root of the running square."""
    weight_decay: NonNegativeFloat | None = None
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat | None = None
    """The policy's gradient is scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] | None = None
    """Course of the learning rate after the warm-up."""
    warmup_steps: NonNegativeInt | None = None
    """Training steps over which the learning rate rises linearly from 0."""


class PolicyObjectiveConfig(Section):
    """What differs from `[objective]` for this policy: its clip, where its events hold no member with another clip."""

    clip_low: PositiveFloat | None = None
    """The ratio is held above 1 - clip_low where the advantage is negative."""
    clip_high: PositiveFloat | None = None
    """The ratio is held below 1 + clip_high where the advantage is positive."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Upper bound of the ratio where the advantage is negative; `inf` for none."""


class PolicySamplingConfig(Section):
    """What differs from `[sampling]` for this policy; evaluation keeps its own settings."""

    temperature: PositiveFloat | None = None
    """Divides the logits, in sampling and in the log-probabilities that are trained."""
    top_p: _Probability | None = None
    """Nucleus."""
    top_k: NonNegativeInt | None = None
    """Tokens kept."""


class PolicyConfig(Section):
    """One set of parameters; roles that share it share its weights and its optimiser."""

    model: str
    """Directory or hub id of a transformers causal model, or directory of a LoRA adapter; `builtin:tiny-team`,
    `builtin:tiny-searchers`, `builtin:tiny-workflows` and `builtin:tiny-coders` ship with the package."""
    trainable: bool = True
    """`false` for a policy that plays and is never updated; its events still count in the objective."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of weights and activations. Behind half-precision weights the optimiser keeps float32 ones."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto` for a GPU where there is one."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the tokenizer's chat template, such as `enable_thinking = false`."""
    adapter: AdapterConfig | None = None
    """A LoRA adapter over the model; without this table the model itself is trained."""
    optim: PolicyOptimConfig = PolicyOptimConfig()
    """What differs from `[optim]`."""
    objective: PolicyObjectiveConfig = PolicyObjectiveConfig()
    """What differs from `[objective]`."""
    sampling: PolicySamplingConfig = PolicySamplingConfig()
    """What differs from `[sampling]`."""

    @model_validator(mode="after")
    def _trains_what_it_sets_up(self) -> PolicyConfig:
        if not self.trainable and self.adapter:
            raise ValueError("adapter: a new adapter that is not trained changes nothing; leave it out, or train it")
        if not self.trainable and self.optim != PolicyOptimConfig():
            raise ValueError("optim: a policy with trainable = false has no optimiser; leave it out, or train it")
        return self


class VllmConfig(Section):
    """How vLLM is set up; each policy, or each base of adapters, has a vLLM of its own."""

    dtype: Literal["policy", "float32", "bfloat16", "float16"] = "policy"
    """Number format there; `policy` takes that of the policy."""
    gpu_memory_utilization: _Probability = 0.4
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

    servers: dict[_Name, Annotated[tuple[_Url, ...], Strict(False), Field(min_length=1)]]
    """URLs of the servers of each policy, by policy id. Adapters over one model may have the same ones."""
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


class SamplingConfig(Section):
    """How training rollouts draw tokens."""

    temperature: PositiveFloat = 1.0
    """Divides the logits, in sampling and in the log-probabilities that are trained."""
    top_p: _Probability = 1.0
    """Nucleus; below 1 the samples no longer come from the policy whose log-probabilities enter the ratio."""
    top_k: NonNegativeInt = 0
    """Tokens kept; above 0 the same mismatch as with `top_p` below 1."""
    allow_truncated_sampling: bool = False
    """Accept that mismatch, which `objective.correction` does not mend; without it `top_p` below 1 or `top_k` above 0
    is refused."""

    @model_validator(mode="after")
    def _samples_from_the_policy(self) -> SamplingConfig:
        if (self.top_p < 1 or self.top_k > 0) and not self.allow_truncated_sampling:
            raise ValueError(
                f"top_p = {self.top_p}, top_k = {self.top_k} would train on samples that do not come from the policy "
                f"(old log-probs would not match, and objective.correction, which compares them before truncation, "
                f"would be biased); use top_p = 1 and top_k = 0, or set allow_truncated_sampling = true"
            )
        return self


class RolloutConfig(Section):
    """How episodes are collected."""

    prompts_per_step: PositiveInt = 16
    """Questions per training step."""
    group_size: PositiveInt = 8
    """G, episodes per question; advantages compare within these."""
    mode: Literal["rounds", "asynchronous"] = "rounds"
    """`rounds` samples all pending events as one batch, the same in every run; `asynchronous` has no barrier between
    episodes."""
    oversample: NonNegativeInt = 0
    """Episodes begun per question beyond `group_size`; the first `group_size` to finish are kept, which favours short
    ones. `asynchronous` only."""
    step_retries: NonNegativeInt = 2
    """Times an environment step is tried again after its surroundings failed, before its episode is dropped."""
    lost_step_retries: NonNegativeInt = 8
    """Times a step is collected again when not one of its episodes came through; the pauses grow from 1 to 60 s."""
    straggler_grace_s: PositiveFloat = 10.0
    """Seconds a round waits for slow environments before it goes on without them; `rounds` only."""
    step_timeout_s: PositiveFloat = 60.0
    """Seconds after which an environment step counts as hung and its episode is dropped."""
    request_timeout_s: PositiveFloat = 600.0
    """Seconds after which a response, its wait in the engine's queue included, is cancelled and its episode dropped;
    `inf` waits for ever. `asynchronous` only."""
    episode_timeout_s: PositiveFloat = 3600.0
    """Seconds after which an episode is dropped; `inf` waits for ever. `asynchronous` only."""
    num_workers: PositiveInt = 8
    """Threads that run environment steps."""
    max_concurrent: PositiveInt = 512
    """Episodes that run at once; the rest wait."""

    @model_validator(mode="after")
    def _rounds_keep_every_episode(self) -> RolloutConfig:
        if self.oversample and self.mode == "rounds":
            raise ValueError(
                f"oversample = {self.oversample} keeps the episodes that finish first, and rounds finish together; "
                'use mode = "asynchronous", or oversample = 0'
            )
        return self


class ObjectiveConfig(Section):
    """The objective: a preset, and the choices that differ from it. A key left out keeps the preset's value."""

    preset: str = "srpo"
    """Named objective, as `srpo presets` lists them; `ppo` trains a critic beside the policies."""
    estimator: str | None = None
    """Advantage estimator."""
    group_key: Annotated[tuple[str, ...], Strict(False)] | None = None
    """Columns whose equality makes two samples comparable, such as `["group", "event_type"]`."""
    ddof: int | None = None
    """Degrees of freedom taken off the standard deviation: 1 is the sample, 0 the population."""
    std_floor: float | None = None
    """The epsilon added to the standard deviation (eq. 6)."""
    singleton: str | None = None
    """A comparison group of one: `zero` advantage or `raw` return."""
    non_finite: str | None = None
    """A return that is not finite: `raise`, or `exclude` it from its group."""
    weighting: str | None = None
    """What counts once in a group's mean and deviation (`row_relative` only): a `row`, or a `trajectory`."""
    gamma: float | None = None
    """Discount per event (`gae`, and the steps of `gigpo`)."""
    gae_lambda: float | None = None
    """Trace decay per event (`gae` only)."""
    step_weight: float | None = None
    """Weight of the comparison at equal states beside that of whole episodes (`gigpo` only)."""
    whiten: bool | None = None
    """Shift and scale the advantages of a batch to mean 0 and standard deviation 1."""
    unit: str | None = None
    """What carries one ratio and one clip: `set`, `sequence` or `token`."""
    scaling: str | None = None
    """Normalisation of the set log-ratio (eq. 4): `sqrt`, `none` or `mean`."""
    length_normalized: bool | None = None
    """Divide each member log-ratio by its number of sampled tokens."""
    form: str | None = None
    """`clipped` (eq. 7) or `linear`, the score-function gradient without a ratio."""
    clip_low: float | None = None
    """The ratio is held above 1 - clip_low where the advantage is negative."""
    clip_high: float | None = None
    """The ratio is held below 1 + clip_high where the advantage is positive."""
    dual_clip: float | None = None
    """Upper bound of the ratio where the advantage is negative; `inf` turns off a preset's bound."""
    reduction: str | None = None
    """What counts once in the mean: `event` (eq. 7), `row` or `token`."""
    drop_uniform: bool | None = None
    """Leave out the events of a question whose advantages are all 0, so that they do not count in the mean."""
    kl_coef: float | None = None
    """Weight of the penalty on the divergence from the reference policy."""
    kl_estimator: str | None = None
    """Per-token estimator of that divergence: `k1`, `k2` or `k3`."""
    entropy_coef: float | None = None
    """Weight of the token-entropy bonus."""
    correction: str | None = None
    """Weigh each token by trainer over engine probability, of the `token`, `member` or `event`; `none` is off."""
    correction_cap: float | None = None
    """Largest weight of the correction, at least 1; `inf` truncates nothing."""
    role_weights: str | None = None
    """Weights on the gradient of each role: `none`, `multiplicity` (one over its members in the event) or `balanced`
    (every role of a policy has the same mass)."""

    def overrides(self) -> dict[str, Any]:
        """Return the fields that differ from the preset."""
        chosen = self.model_dump(exclude_none=True, exclude={"preset"})
        if chosen.get("dual_clip") == math.inf:
            chosen["dual_clip"] = None
        return chosen

    def build(self) -> Objective:
        """Return the objective; names are checked here, where torch may be imported.

        Raises:
            UnknownIdError: no preset of that name.
            ConfigError: a field has a value it cannot have.
        """
        from srpo_train.objective.presets import preset

        return preset(self.preset, **self.overrides())


class OptimConfig(Section):
    """The optimiser (AdamW), its schedule and how a batch is cut."""

    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    betas: Annotated[tuple[_Beta, _Beta], Strict(False)] = (0.9, 0.999)
    """Decay of the running mean and of the running square of the gradient."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the running square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """The gradient is scaled down to this norm; the norm before it is logged."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up, down to 0 at the last step."""
    warmup_steps: NonNegativeInt = 0
    """Training steps over which the learning rate rises linearly from 0."""
    num_minibatches: PositiveInt = 1
    """Optimiser steps per pass over a step's events; an event is never split."""
    num_epochs: PositiveInt = 1
    """Passes over a step's events."""
    micro_batch_tokens: PositiveInt = 16384
    """Most tokens (rows times longest row) of one forward pass; changes memory and time, not the gradient."""
    max_row_tokens: PositiveInt = 8192
    """A member row with more prompt and response tokens is dropped with its whole event, and counted."""
    max_nonfinite_steps: NonNegativeInt = 5
    """Consecutive optimiser steps with a loss or gradient that is not finite that are skipped before the run fails."""


class CriticConfig(Section):
    """The critic of presets that need one (`ppo`), which values the state before each event for the whole team."""

    model: str | None = None
    """Directory or hub id of a transformers causal model with the policies' tokenizer; a head that gives one number, at
    first 0, takes the place of its own. All of it is trained."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of weights and activations."""
    device: str | None = None
    """Where it is."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass."""
    value_clip: PositiveFloat = 0.2
    """A value that has moved by this much towards its target moves no further in a step; `inf` for no such clip."""
    optim: PolicyOptimConfig = PolicyOptimConfig()
    """What differs from `[optim]`."""


class TrainConfig(Section):
    """Length of the run and its checkpoints."""

    num_steps: PositiveInt = 100
    """Training steps."""
    token_budget: NonNegativeInt = 0
    """Sampled training tokens with which the run ends earlier, at the end of the step that reaches them; 0 for no such
    end. For runs that are compared at equal tokens; it needs a constant learning rate."""
    checkpoint_every: PositiveInt = 10
    """Steps between checkpoints; the last step is always saved."""
    keep_last: PositiveInt = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = False
    """Also keep the checkpoint at or before the best evaluation; always so where an alarm may roll back to it."""
    num_threads: NonNegativeInt = 0
    """Threads torch may use; 0 leaves its own choice. Tiny models are fastest, and exactly repeatable, with 1."""


class DistributedConfig(Section):
    """How the processes that `torchrun` starts share the work; one process alone reads nothing of it but `sharding`."""

    sharding: Literal["none", "fsdp"] = "none"
    """`none`: every process holds the policies whole and trains its share of the events. `fsdp`: trained policies are
    spread over the processes (FSDP2), master weights and moments in float32; needs `torchrun`."""
    reshard_after_forward: bool = True
    """Take the blocks of a sharded policy apart again between forward and backward pass: less memory, more traffic."""
    cpu_offload: bool = False
    """Keep what is sharded, and its optimiser, in ordinary memory, and bring it to the GPU block by block."""
    timeout_s: PositiveFloat = 1800.0
    """Seconds a process waits for the others, the slowest one's rollouts included, before the run ends."""

    @model_validator(mode="after")
    def _shards_what_it_sets_up(self) -> DistributedConfig:
        if self.sharding == "none" and (self.cpu_offload or not self.reshard_after_forward):
            raise ValueError('cpu_offload and reshard_after_forward are read with sharding = "fsdp" only')
        return self


class LogConfig(Section):
    """Where metrics and events go; `metrics.jsonl` is always written."""

    tensorboard: bool = True
    """Write TensorBoard scalars to the run directory's `tensorboard/`."""
    wandb: bool = False
    """Send scalars to Weights & Biases; needs the extra `wandb`."""
    wandb_project: str = "srpo"
    """Project there."""
    save_events: Literal["all", "last", "none"] = "all"
    """Training events kept as JSON Lines in `events/`: of every step, of the newest only, or of none."""
    role_gradients_every: NonNegativeInt = 10
    """Steps between measurements of each role's share of the gradient, each an extra backward pass over one
    mini-batch; 0 measures never."""


class Recipe(Section):
    """One run, completely described."""

    name: _Name
    """Name of the run, and of its directory under `output_dir`."""
    seed: NonNegativeInt = 0
    """Decides tasks, sampling and mini-batches."""
    output_dir: str = "runs"
    """Where run directories are made."""
    env: EnvConfig
    eval: EvalConfig = EvalConfig()
    policies: Annotated[dict[_Name, PolicyConfig], Field(min_length=1)]
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
        _assign(data, keys, value, text)
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


def check_section(
    kind: type[S],
    data: Mapping[str, Any],
    *,
    source: str,
    overrides: Mapping[tuple[str, ...], str] | None = None,
) -> S:
    """Check a nested mapping against a section; the arguments are those of `parse_recipe`.

    Raises:
        ConfigError: all that is wrong, one line each.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [_explain(kind, item, source, overrides or {}) for item in error.errors()]
    raise ConfigError("\n".join(lines))


def parse_override(
    text: str, expected: str = "--set section.key=value, such as --set optim.lr=1e-6"
) -> tuple[tuple[str, ...], Any]:
    """Split ``dotted.key=value`` into its keys and its TOML value.

    Args:
        text: As given on the command line.
        expected: The form, for the error message.

    Raises:
        ConfigError: there is no ``=`` or no key.

    Example:
        >>> parse_override("env.kwargs.variant=routed")
        (('env', 'kwargs', 'variant'), 'routed')
    """
    dotted, equals, written = text.partition("=")
    keys = tuple(part.strip().strip("\"'") for part in dotted.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"{text!r}: expected {expected}")
    try:
        document = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return keys, written.strip()
    return keys, document["value"] if len(document) == 1 else written.strip()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a recipe or another TOML file.

    Raises:
        ConfigError: it is not there, cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe; the ones shipped are in recipes/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML ({error}); texts need quotes") from error


def _assign(data: dict[str, Any], keys: tuple[str, ...], value: Any, text: str) -> None:
    table = data
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text}: {'.'.join(keys[:depth])} is {table!r}, not a section")
    table[keys[-1]] = value


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item})
    return flat


# --- errors people can act on -------------------------------------------------------------------------------------


def _explain(kind: type[Section], error: Any, source: str, overrides: Mapping[tuple[str, ...], str]) -> str:
    """One line for one pydantic error: where, which key, what is wrong, and the way out."""
    location = tuple(str(part) for part in error["loc"])
    where = next((f"--set {text}" for keys, text in overrides.items() if _concerns(keys, location, error)), source)
    key = f"{'.'.join(location)}: " if location else ""
    return f"{where}: {key}{_reason(kind, error, location)}"


def _concerns(keys: tuple[str, ...], location: tuple[str, ...], error: Any) -> bool:
    """Whether the override of `keys` caused the error: it set the value, or made the unknown section."""
    depth = len(location) if error["type"] == "extra_forbidden" else len(keys)
    return keys[:depth] == location[: len(keys)]


def _reason(kind: type[Section], error: Any, location: tuple[str, ...]) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key{near_miss(location[-1], _known_keys(kind, location[:-1]))}"
    if error["type"] == "missing":
        return "is required and missing"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{error['msg'].replace('Input should', 'should')}, got {error['input']!r}"


def _known_keys(kind: Any, location: tuple[str, ...]) -> list[str]:
    """The keys of the section at a location, walking from the outermost one through fields, mappings and lists."""
    for part in location:
        if _is_section(kind):
            kind = _optional_section(kind.model_fields[part].annotation)
        else:
            kind = next(filter(_is_section, typing.get_args(kind)))
    return list(kind.model_fields)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _optional_section(annotation: Any) -> Any:
    """The section of a key that may be left out; any other annotation as it is."""
    kinds = typing.get_args(annotation)
    return next(filter(_is_section, kinds), annotation) if type(None) in kinds else annotation
