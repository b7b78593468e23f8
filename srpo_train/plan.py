"""What a recipe will do and how much memory it will take, found out without reading weights.

What is wrong with a recipe is said as training would say it. Counts of parameters, and of bytes that follow from them,
are exact. Activations are an estimate from the layers' widths, and limits of a step are bounds: no episode has more
events than ``max_events``, no event more members than the team has seats, no response more tokens than its role may
sample. What cannot be known here (a model that is not on this machine, the size of a GPU that is elsewhere) is None.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError, DatasetError
from srpo_train.config import ALL_LINEAR, EnvConfig, PolicyConfig, Recipe
from srpo_train.policies import lora
from srpo_train.policies.critic import CRITIC
from srpo_train.policies.loading import resolve_dtype, resolve_source
from srpo_train.policies.logprobs import tile_bytes
from srpo_train.policies.shapes import ModelShape, shape_of, stored_parameters

_DATA = ("dataset", "path", "split", "holdout", "config")
_GRADIENT, _MASTER, _MOMENTS = 4, 4, 8
"""Bytes of a trained parameter beside its own; see `srpo_train.optimizer`. A float32 one is its own master."""
_TILES = 3
"""Buffers as large as a tile of logits that are alive at once while it is scored: logits, softmax and gradient."""
_CPU_KV_CACHE_BYTES = 64 << 20

Phase = Literal["always", "update", "pass", "rollout"]


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """One policy of the recipe."""

    policy_id: str
    """Its id."""
    source: str
    """As the recipe names it."""
    base: str
    """Directory or hub id of the model, that below an adapter where the source is one."""
    num_parameters: int | None
    """Of the model, an adapter not counted; None when it is not known here."""
    num_trained: int | None
    """Those that get a gradient; None when not known."""
    training: str
    """``whole model``, ``LoRA, rank 64``, ``stored LoRA`` or ``frozen``."""
    dtype: torch.dtype
    """Number format of weights and activations."""
    device: str
    """Such as ``cuda:0``."""
    roles: tuple[str, ...]
    """Roles it plays, in the environment's order."""
    shape: ModelShape | None
    """Sizes of the model."""
    recomputes: bool
    """Whether activations are computed again in the backward pass."""

    @property
    def owns_model(self) -> bool:
        """Whether its model is its own; others stand on a frozen one, which is in memory once."""
        return self.training == "whole model"


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """One engine and the policies it samples from."""

    policy_ids: tuple[str, ...]
    """Policies it answers for."""
    kind: str
    """The recipe's ``engine.kind``."""
    places: tuple[str, ...]
    """Devices, or URLs of servers."""
    gpu_share: float | None = None
    """Share of each GPU's memory that it takes for itself; None where it takes what it needs."""


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One line of the estimate."""

    device: str
    """Where."""
    what: str
    """What takes it, and for whom."""
    num_bytes: int | None
    """How much; None when it is not known here."""
    phase: Phase
    """When; a ``pass`` is that of one policy within an update."""
    policy_id: str
    """Whose it is; those of a vLLM that several share, joined."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Upper bounds of one training step."""

    num_episodes: int
    """Questions times episodes of each, those of `rollout.oversample` included."""
    max_events: int
    """Events of all episodes."""
    max_responses: int
    """Responses of all events."""
    max_new_tokens: int
    """Sampled tokens of all responses."""
    longest_response: int
    """Tokens that the role with the highest limit may sample at once."""
    num_updates: int
    """Optimiser steps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recipe, resolved.

    Example:
        >>> plan = make_plan(load_recipe("recipes/tiny-arithmetic.toml"))
        >>> plan.policies[0].num_parameters
        132800
    """

    recipe: Recipe
    """What it is the plan of."""
    num_tasks: int | None
    """Questions to train on; None when their data set is not on this machine."""
    policies: tuple[PolicyPlan, ...]
    """By order of the recipe."""
    critic: PolicyPlan | None
    """The critic that is trained beside them, where the objective needs one; it plays no role."""
    engines: tuple[EnginePlan, ...]
    """Engines, those that share a vLLM as one."""
    memory: tuple[MemoryItem, ...]
    """The estimate."""
    step: StepPlan
    """Bounds of one training step."""
    notes: tuple[str, ...]
    """What to know before it is started."""

    @property
    def trainer(self) -> tuple[PolicyPlan, ...]:
        """What the trainer holds: the policies, and the critic where there is one."""
        return self.policies if self.critic is None else (*self.policies, self.critic)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices in use, sorted."""
        return tuple(sorted({item.device for item in self.memory}))

    @property
    def checkpoint_bytes(self) -> int | None:
        """Size of one checkpoint: trained weights in their own format, masters and moments; None when not known."""
        sizes = [
            None
            if policy.num_trained is None
            else policy.num_trained * (policy.dtype.itemsize + _MOMENTS + _master_bytes(policy.dtype))
            for policy in self.trainer
        ]
        return _total(sizes)

    def peak_bytes(self, device: str) -> int | None:
        """Return the estimate for a device in its fuller phase; None when a part is not known."""
        return _peak(self.memory, device)


def make_plan(recipe: Recipe) -> Plan:
    """Resolve a recipe without weights, downloads or servers.

    Raises:
        ConfigError: the recipe does not fit its environment, or has an unknown device, builtin model or LoRA target.
        UnknownIdError: there is no such environment or objective.
        PolicyLoadError: a policy's model is a directory that does not exist, or has no usable configuration.
        DatasetError: a file of questions cannot be read.
    """
    env, num_tasks = _open_env(recipe.env)
    _, num_eval_tasks = _open_env(recipe.eval_env) if recipe.eval.every else (env, None)
    if num_eval_tasks is not None and num_eval_tasks < recipe.eval.num_tasks:
        raise ConfigError(f"eval.num_tasks: {recipe.eval.num_tasks} tasks to evaluate, but there are {num_eval_tasks}")
    role_map = recipe.role_map(env.roles)
    objective = recipe.build_objective()
    policies = tuple(_plan_policy(recipe, policy_id, role_map) for policy_id in recipe.policies)
    critic = _plan_critic(recipe) if objective.advantage.needs_critic else None
    engines = tuple(_plan_engines(recipe, policies))
    memory = (
        *_trainer_memory(recipe, policies, needs_reference=bool(objective.kl_coef)),
        *(_critic_memory(recipe, critic) if critic else ()),
        *_engine_memory(recipe, policies, engines),
        *(_ahead_memory(recipe, policies) if recipe.rollout.max_lag else ()),
    )
    step = _plan_step(recipe, env)
    trainer = (*policies, *((critic,) if critic else ()))
    notes = tuple(_notes(recipe, env, num_tasks, trainer, memory))
    return Plan(
        recipe=recipe,
        num_tasks=num_tasks,
        policies=policies,
        critic=critic,
        engines=engines,
        memory=memory,
        step=step,
        notes=notes,
    )


# --- environment and policies -------------------------------------------------------------------------------------


def _open_env(config: EnvConfig) -> tuple[SetEnv, int | None]:
    """Make the environment; where its data set is on the hub only, with the shipped one: roles and limits are equal."""
    try:
        env = srpo_envs.make(config.id, **config.kwargs)
    except DatasetError:
        if "path" in config.kwargs:
            raise
        kwargs = {name: value for name, value in config.kwargs.items() if name not in _DATA}
        return srpo_envs.make(config.id, **kwargs), None
    return env, env.tasks.num_tasks


def _plan_policy(recipe: Recipe, policy_id: str, role_map: Mapping[str, str]) -> PolicyPlan:
    config = recipe.policies[policy_id]
    location = resolve_source(policy_id, config.model)
    is_stored = lora.is_adapter(location)
    base = resolve_source(policy_id, lora.base_of(policy_id, location)) if is_stored else location
    shape = shape_of(policy_id, base)
    return PolicyPlan(
        policy_id=policy_id,
        source=config.model,
        base=base,
        num_parameters=shape.num_parameters if shape else None,
        num_trained=_num_trained(policy_id, config, shape, location if is_stored else ""),
        training=_training(config, is_stored=is_stored),
        dtype=resolve_dtype(policy_id, config.dtype),
        device=_device(policy_id, config.device),
        roles=tuple(role for role, answering in role_map.items() if answering == policy_id),
        shape=shape,
        recomputes=config.gradient_checkpointing,
    )


def _plan_critic(recipe: Recipe) -> PolicyPlan:
    settings = recipe.critic_settings
    source = str(settings.model)
    location = resolve_source(CRITIC, source)
    base = resolve_source(CRITIC, lora.base_of(CRITIC, location)) if lora.is_adapter(location) else location
    shape = shape_of(CRITIC, base)
    num_parameters = shape.critic_parameters if shape else None
    return PolicyPlan(
        policy_id=CRITIC,
        source=source,
        base=base,
        num_parameters=num_parameters,
        num_trained=num_parameters,
        training="whole model",
        dtype=resolve_dtype(CRITIC, settings.dtype or "float32"),
        device=_device(CRITIC, settings.device or "auto"),
        roles=(),
        shape=shape,
        recomputes=bool(settings.gradient_checkpointing),
    )


def _training(config: PolicyConfig, *, is_stored: bool) -> str:
    if not config.trainable:
        return "frozen"
    if config.adapter:
        return f"LoRA, rank {config.adapter.rank}"
    return "stored LoRA" if is_stored else "whole model"


def _num_trained(policy_id: str, config: PolicyConfig, shape: ModelShape | None, stored: str) -> int | None:
    if not config.trainable:
        return 0
    if stored:
        return stored_parameters(stored)
    if shape is None or not config.adapter:
        return shape.num_parameters if shape else None
    settings = lora.new_config(policy_id, config.adapter, shape.linear)  # refuses unknown targets
    targets = None if config.adapter.targets == ALL_LINEAR else config.adapter.targets
    return shape.adapter_parameters(settings.r, targets)


def _device(policy_id: str, name: str) -> str:
    """Return a device by its full name; one that this machine lacks is planned for all the same."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        problem = f"policy {policy_id!r}: {name!r} is not a torch device"
        raise ConfigError(f"{problem}; use 'auto', 'cpu' or 'cuda:0'") from error
    return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)


def _plan_step(recipe: Recipe, env: SetEnv) -> StepPlan:
    rollout, optim = recipe.rollout, recipe.optim
    num_episodes = rollout.prompts_per_step * (rollout.group_size + rollout.oversample)
    max_events = num_episodes * env.max_events
    roles = env.roles.values()
    return StepPlan(
        num_episodes=num_episodes,
        max_events=max_events,
        max_responses=max_events * sum(role.seats for role in roles),
        max_new_tokens=max_events * sum(role.seats * role.max_new_tokens for role in roles),
        longest_response=max(role.max_new_tokens for role in roles),
        num_updates=optim.num_minibatches * optim.num_epochs,
    )


# --- engines ------------------------------------------------------------------------------------------------------


def _plan_engines(recipe: Recipe, policies: tuple[PolicyPlan, ...]) -> Iterator[EnginePlan]:
    kind = recipe.engine.kind
    if served := recipe.engine.served:
        served.check_neighbours({p.policy_id: None if p.owns_model else _base_key(p) for p in policies})
        for policy_id, urls in served.servers.items():
            yield EnginePlan(policy_ids=(policy_id,), kind=kind, places=urls)
        return
    if not recipe.engine.vllm:
        for policy in policies:
            yield EnginePlan(policy_ids=(policy.policy_id,), kind=kind, places=(policy.device,))
        return
    places = _vllm_devices(recipe, policies)
    groups: dict[object, list[str]] = {}
    for policy in policies:
        groups.setdefault(policy.policy_id if policy.owns_model else _base_key(policy), []).append(policy.policy_id)
    share = None if places == ("cpu",) else recipe.engine.vllm.gpu_memory_utilization
    if share is not None and recipe.engine.vllm.sleep and len(groups) > 1:
        raise ConfigError(
            f"engine.vllm.sleep: only one vLLM of a process can sleep, and these policies need {len(groups)}; set it "
            "to false and share the memory out, or make the policies adapters over one base"
        )
    for group in groups.values():
        yield EnginePlan(policy_ids=tuple(group), kind=kind, places=places, gpu_share=share)


def _vllm_devices(recipe: Recipe, policies: tuple[PolicyPlan, ...]) -> tuple[str, ...]:
    """The devices every vLLM of this process takes: the first GPUs, or the CPU where no policy is on a GPU."""
    if recipe.engine.vllm is None or not any(policy.device.startswith("cuda") for policy in policies):
        return ("cpu",)
    return tuple(f"cuda:{index}" for index in range(recipe.engine.vllm.tensor_parallel_size))


# --- memory -------------------------------------------------------------------------------------------------------


def _trainer_memory(recipe: Recipe, policies: tuple[PolicyPlan, ...], *, needs_reference: bool) -> Iterator[MemoryItem]:
    frozen: dict[tuple[str, torch.dtype, str], tuple[PolicyPlan, list[str]]] = {}
    for policy in policies:
        if policy.owns_model:
            yield _item(policy, "weights", _times(policy.num_parameters, policy.dtype.itemsize), "always")
        else:
            frozen.setdefault(_base_key(policy), (policy, []))[1].append(policy.policy_id)
            if policy.num_trained != 0:
                yield _item(policy, "adapter", _times(policy.num_trained, policy.dtype.itemsize), "always")
        if needs_reference:  # the reference is what `model` names, in memory once for all who share it
            frozen.setdefault(_base_key(policy), (policy, []))[1].append(f"reference of {policy.policy_id}")
    for policy, users in frozen.values():
        size = _times(policy.num_parameters, policy.dtype.itemsize)
        yield _item(policy, "frozen weights", size, "always", users)
    for policy in policies:
        if policy.num_trained != 0:
            yield from _training_memory(recipe, policy)
            yield _item(policy, "logits and head gradient", _loss_bytes(recipe, policy), "pass")


def _critic_memory(recipe: Recipe, critic: PolicyPlan) -> Iterator[MemoryItem]:
    yield _item(critic, "weights", _times(critic.num_parameters, critic.dtype.itemsize), "always")
    yield from _training_memory(recipe, critic)


def _training_memory(recipe: Recipe, policy: PolicyPlan) -> Iterator[MemoryItem]:
    if master := _master_bytes(policy.dtype):
        yield _item(policy, "float32 masters", _times(policy.num_trained, master), "always")
    yield _item(policy, "moments", _times(policy.num_trained, _MOMENTS), "always")
    yield _item(policy, "gradients", _times(policy.num_trained, _GRADIENT), "update")
    yield _item(policy, "activations of a micro-batch", _activation_bytes(recipe, policy), "pass")


def _pass_tokens(recipe: Recipe) -> int:
    """Most tokens of one forward pass: a row longer than a micro-batch is a pass of its own."""
    return max(recipe.optim.micro_batch_tokens, recipe.optim.max_row_tokens)


def _activation_bytes(recipe: Recipe, policy: PolicyPlan) -> int | None:
    shape, itemsize = policy.shape, policy.dtype.itemsize
    if shape is None or not shape.mlp_size:
        return None
    layer = shape.layer_activation_bytes(itemsize)
    if policy.recomputes:  # inputs of all layers, and one layer recomputed
        per_token = shape.num_layers * itemsize * shape.hidden_size + layer
    else:
        per_token = shape.num_layers * layer
    return _pass_tokens(recipe) * per_token


def _loss_bytes(recipe: Recipe, policy: PolicyPlan) -> int | None:
    """Tiles of logits, float32 sums of the hidden states' gradient and, where the head is trained, of the head's."""
    if policy.shape is None:
        return None
    num_tokens, shape = _pass_tokens(recipe), policy.shape
    tile = min(tile_bytes(policy.device.partition(":")[0]), 4 * num_tokens * shape.vocab_size)
    head = 4 * shape.vocab_size * shape.hidden_size if policy.owns_model else 0
    return _TILES * tile + 4 * num_tokens * shape.hidden_size + head


def _engine_memory(
    recipe: Recipe, policies: tuple[PolicyPlan, ...], engines: tuple[EnginePlan, ...]
) -> Iterator[MemoryItem]:
    by_id = {policy.policy_id: policy for policy in policies}
    for engine in engines:
        policy = by_id[engine.policy_ids[0]]
        if engine.kind == "transformers":
            kv_size = policy.shape.kv_size if policy.shape else None
            size = _times(kv_size, recipe.engine.max_batch_tokens * policy.dtype.itemsize)
            phase: Phase = "always" if recipe.rollout.max_lag else "rollout"
            yield _item(policy, "key-value cache at most", size, phase)
        elif engine.kind == "vllm":
            yield from _vllm_memory(recipe, engine, policy)


def _ahead_memory(recipe: Recipe, policies: tuple[PolicyPlan, ...]) -> Iterator[MemoryItem]:
    """What sampling during updates takes: models to sample from, and copies of the weights on their way to engines."""
    num_waiting = 1 if recipe.rollout.mode == "asynchronous" else recipe.rollout.max_lag + 1
    bases: dict[tuple[str, torch.dtype, str], tuple[PolicyPlan, list[str]]] = {}
    for policy in policies:
        trained = _times(policy.num_trained, policy.dtype.itemsize)
        if policy.num_trained != 0:
            yield _item(policy, "weights on their way", _times(trained, num_waiting), "always", device="cpu")
        if recipe.engine.kind != "transformers":
            continue
        if policy.owns_model:
            yield _item(policy, "copy that samples", trained, "always")
        else:
            bases.setdefault(_base_key(policy), (policy, []))[1].append(policy.policy_id)
            if policy.num_trained != 0:
                yield _item(policy, "copy of the adapter that samples", trained, "always")
    for policy, users in bases.values():
        size = _times(policy.num_parameters, policy.dtype.itemsize)
        yield _item(policy, "copy that samples", size, "always", users)


def _vllm_memory(recipe: Recipe, engine: EnginePlan, policy: PolicyPlan) -> Iterator[MemoryItem]:
    """Weights and cache of a vLLM on each of its devices; what it takes beside them on a GPU belongs to its share."""
    options = recipe.engine.vllm
    assert options is not None
    is_cpu = engine.places == ("cpu",)
    dtype = policy.dtype if options.dtype == "policy" else resolve_dtype(policy.policy_id, options.dtype)
    weights = _times(policy.num_parameters, dtype.itemsize)
    weights = None if weights is None else math.ceil(weights / len(engine.places))
    phase: Phase = "rollout" if options.sleep and not is_cpu else "always"
    for device in engine.places:
        cache = options.kv_cache_memory_bytes or (_CPU_KV_CACHE_BYTES if is_cpu else None)
        if cache is None and weights is not None and (memory := _device_memory(device)):
            cache = max(0, int(options.gpu_memory_utilization * memory) - weights)
        yield _item(policy, "vLLM weights", weights, phase, engine.policy_ids, device)
        yield _item(policy, "vLLM key-value cache", cache, phase, engine.policy_ids, device)


def _base_key(policy: PolicyPlan) -> tuple[str, torch.dtype, str]:
    return policy.base, policy.dtype, policy.device


def _item(
    policy: PolicyPlan,
    what: str,
    num_bytes: int | None,
    phase: Phase,
    users: Sequence[str] = (),
    device: str = "",
) -> MemoryItem:
    """Return an item of a policy on its device, unless others use it too or it lies elsewhere."""
    names = ", ".join(users or (policy.policy_id,))
    return MemoryItem(
        device=device or policy.device, what=f"{what}: {names}", num_bytes=num_bytes, phase=phase, policy_id=names
    )


def _peak(memory: Sequence[MemoryItem], device: str) -> int | None:
    """Bytes of a device in its fuller phase; in an update one policy after the other makes its passes."""
    here = [item for item in memory if item.device == device]
    passes = [_sum(here, "pass", policy_id) for policy_id in {item.policy_id for item in here}]
    always, update, rollout = (_sum(here, phase) for phase in ("always", "update", "rollout"))
    if always is None or update is None or rollout is None or None in passes:
        return None
    return always + max(update + max((size for size in passes if size is not None), default=0), rollout)


def _sum(items: Sequence[MemoryItem], phase: Phase, policy_id: str | None = None) -> int | None:
    return _total([i.num_bytes for i in items if i.phase == phase and policy_id in (None, i.policy_id)])


def _master_bytes(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.float32 else _MASTER


def _device_memory(device: str) -> int | None:
    """Memory of a GPU of this machine; None for any other device."""
    if not device.startswith("cuda:") or torch.device(device).index >= torch.cuda.device_count():
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _times(count: int | None, size: int) -> int | None:
    return None if count is None else count * size


def _total(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


# --- notes --------------------------------------------------------------------------------------------------------


def _notes(
    recipe: Recipe,
    env: SetEnv,
    num_tasks: int | None,
    models: tuple[PolicyPlan, ...],
    memory: tuple[MemoryItem, ...],
) -> Iterator[str]:
    if num_tasks is None:
        yield f"the questions of {recipe.env.id} are not on this machine; training downloads them"
    for source in dict.fromkeys(model.source for model in models if model.shape is None):
        yield f"{source!r} is not on this machine, so its size is unknown; training downloads it"
    if recipe.distributed.sharding != "none":
        yield "memory is that of one process; weights, gradients and moments of trained policies are divided among them"
    devices = sorted({item.device for item in memory})
    missing = [device for device in devices if _is_missing(device)]
    if missing:
        yield f"this machine has no {', '.join(missing)}; training would refuse to start here"
    for device in devices:
        needed, there = _peak(memory, device), _device_memory(device)
        if needed and there and needed > there:
            yield f"{device} has {there / 2**30:.1f} GiB and needs about {needed / 2**30:.1f}; see the table"
    if recipe.engine.vllm and not importlib.util.find_spec("vllm"):
        yield "vLLM is not installed here; training would refuse to start"
    advantage = recipe.build_objective().advantage
    is_compared = "group" in advantage.group_key and not advantage.needs_critic
    if recipe.rollout.group_size == 1 and is_compared and advantage.singleton == "zero":
        yield (
            "rollout.group_size = 1 leaves nothing to compare an episode with: the advantage of an event that has no "
            "like in its own episode is 0"
        )
    yield from _length_notes(recipe, env)


def _length_notes(recipe: Recipe, env: SetEnv) -> Iterator[str]:
    context = recipe.engine.vllm.max_model_len if recipe.engine.vllm else 0
    for role in env.roles.values():
        if context and role.max_new_tokens >= context:
            yield (
                f"role {role.name!r} may sample {role.max_new_tokens} tokens, and engine.vllm.max_model_len = "
                f"{context} holds them and the prompt"
            )
        if role.max_new_tokens >= recipe.optim.max_row_tokens:
            yield (
                f"role {role.name!r} may sample {role.max_new_tokens} tokens, and rows of more than "
                f"optim.max_row_tokens = {recipe.optim.max_row_tokens} with their prompt are not trained on"
            )


def _is_missing(device: str) -> bool:
    return device.startswith("cuda:") and torch.device(device).index >= torch.cuda.device_count()
