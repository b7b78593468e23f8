"""A model whose parameters are spread over the ranks: FSDP2 of torch, set up for sums over whole events.

Each rank holds a part of every parameter, in float32, and of its optimiser's moments. A block of layers is put together
just before it computes, in the policy's own number format, and taken apart after it. All ranks make each forward and
backward pass together, each with rows of its own; gradients come back summed over ranks, not averaged, since the
coefficients of `srpo_train.set_gradient` already divide by the counts of the whole mini-batch.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from srpo_envs.errors import CheckpointError, ConfigError
from srpo_train.config import DistributedConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.engines.weight_stream import TensorSpec, WeightStream
from srpo_train.policies.logprobs import TokenLogprobs, head_form, token_logprobs
from srpo_train.policies.packing import packs
from srpo_train.throughput.flops import flops_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from srpo_train.batching import PackedRows, PaddedRows


_dcp: Any = checkpoint  # its functions are not among the names it says it exports


class ShardedModel:
    """Spreads a model over the ranks, in place; every method is called by all of them.

    Args:
        policy_id: Named in errors.
        model: A transformers causal model, whole on every rank; its parameters become float32.
        dtype: Number format it computes in, and is written and published in.
        device: Where it computes.
        ranks: The processes.
        settings: The recipe's.

    Raises:
        ConfigError: the model does not name its blocks, or its parameters are to be moved from the CPU to the CPU.
    """

    def __init__(
        self,
        policy_id: str,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks,
        settings: DistributedConfig,
    ) -> None:
        self.model = cast(Any, model)
        self.dtype = dtype
        self.device = device
        self._ranks = ranks
        self._reshard = settings.reshard_after_forward
        self._whole: dict[str, Tensor] | None = None
        self._stream: WeightStream | None = None
        for find in (head_form, flops_of, packs):  # by forward passes, which need the whole model; all remember it
            find(model)
        model.float()
        _shard(policy_id, model, dtype=dtype, device=device, ranks=ranks, settings=settings)
        # A method that counts as a forward pass: log-probabilities go past the model's own, whose logits they avoid.
        self.model.srpo_token_logprobs = types.MethodType(token_logprobs, model)
        register_fsdp_forward_method(model, "srpo_token_logprobs")

    def score(self, model: nn.Module, rows: PaddedRows | PackedRows, **options: Any) -> TokenLogprobs:
        """Do what `token_logprobs` does, all ranks together."""
        scored: TokenLogprobs = cast(Any, model).srpo_token_logprobs(rows, **options)
        return scored

    @contextlib.contextmanager
    def assembled(self) -> Iterator[None]:
        """Hold the whole model on every rank in the body, where each may then compute as often as it likes."""
        parts = self._parts
        for part in parts:
            part.unshard()
        self.model.set_reshard_after_forward(False)
        try:
            yield
        finally:
            self.model.set_reshard_after_forward(self._reshard)
            for part in parts:
                part.reshard()

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Hold a copy of the whole model in the main rank's ordinary memory in the body; see `state_dict`."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        whole = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()
        }
        self._whole = self._tied_again(whole)
        try:
            yield
        finally:
            self._whole = None

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return every tensor by name while the model is `collected`; on other ranks than the main one there are none.

        Raises:
            LookupError: it is not.
        """
        if self._whole is None:
            raise LookupError("a sharded model has whole tensors only while it is collected")
        return self._whole

    @contextlib.contextmanager
    def streamed(self) -> Iterator[None]:
        """Let the main rank take the model tensor by tensor in the body; see `stream`.

        The others have nothing to do there. Leaving it they put together whatever the main rank takes, and the main
        rank what it has not taken, so that all stay together whatever happens on one of them.
        """
        state: dict[str, Any] = get_model_state_dict(self.model)
        formats = {name: self.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in state.items()}
        specs = {name: TensorSpec(tuple(tensor.shape), formats[name]) for name, tensor in state.items()}
        # What travels between ranks has the smaller format already.
        stream = WeightStream(
            specs, lambda name: self._ranks.whole(state[name].detach().to(device=self.device, dtype=formats[name]))
        )
        self._stream = stream
        try:
            yield
        finally:
            self._stream = None
            stream.exhaust()

    @property
    def stream(self) -> WeightStream:
        """Every tensor in the format it is published in, one at a time, while the model is `streamed`.

        Raises:
            LookupError: it is not.
        """
        if self._stream is None:
            raise LookupError("a sharded model has tensors to publish only while it is streamed")
        return self._stream

    def save(self, directory: Path) -> None:
        """Write the model in transformers format, as if it had never been sharded; the main rank does."""
        with self.collected():
            if self._ranks.is_main:
                config = self.model.config
                # The files tell the number format of what was in memory, which is that of the optimiser.
                self.model.save_pretrained(directory, state_dict=dict(self.state_dict()))
                config.dtype = self.dtype
                config.save_pretrained(directory)

    def parts(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return parameters and moments, of which each rank has its part, for `save_parts`."""
        model, moments = get_state_dict(self.model, optimizer)
        return {"model": model, "optimizer": moments}

    def load_shards(self, folder: Path, optimizer: torch.optim.Optimizer) -> None:
        """Read what `save_parts` wrote, on however many ranks that was.

        Raises:
            CheckpointError: it is not there, or not of this model.
        """
        parts = self.parts(optimizer)
        try:
            _dcp.load(parts, checkpoint_id=folder)
        except (CheckpointException, OSError, RuntimeError) as error:
            raise CheckpointError(f"{folder}: cannot be read ({error})") from error
        set_state_dict(self.model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])

    def _tied_again(self, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give the names of one parameter one tensor, so that it is written once."""
        first: dict[int, str] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            known = first.setdefault(id(parameter), name)
            if name in whole and known in whole:
                whole[name] = whole[known]
        return whole

    @property
    def _parts(self) -> list[FSDPModule]:
        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]


def save_parts(parts: Mapping[str, Any], folder: Path, ranks: Ranks) -> None:
    """Write what `ShardedModel.parts` returned with ``torch.distributed.checkpoint``, each rank its own part.

    Raises:
        CheckpointError: a part could not be written, on whichever rank.
    """
    try:
        _dcp.save(dict(parts), checkpoint_id=folder, process_group=ranks.group)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: could not be written ({error})") from error


def _shard(
    policy_id: str,
    model: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
    settings: DistributedConfig,
) -> None:
    """Make each block a unit that is put together on its own, and what is around the blocks another one."""
    if settings.cpu_offload and device.type == "cpu":
        raise ConfigError("distributed.cpu_offload: the parameters are on the CPU already; leave it out")
    blocks = _blocks(policy_id, model)
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (ranks.size,)),
        "reshard_after_forward": settings.reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy() if settings.cpu_offload else OffloadPolicy(),
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other


def _blocks(policy_id: str, model: PreTrainedModel) -> list[nn.Module]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigError(
            f"policy {policy_id!r}: {type(model).__name__} does not say which of its modules are blocks "
            '(_no_split_modules), so it cannot be sharded; use distributed.sharding = "none"'
        )
    return blocks
