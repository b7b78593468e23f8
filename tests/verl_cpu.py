"""verl's own training worker on a CPU: a platform made of its plug-in base class, and one process that is all ranks.

Nothing of verl's batches, losses, micro-batches or FSDP engine is replaced; what is replaced asks a GPU for its memory.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl import DataProto
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA


class _Device(types.ModuleType):
    """What verl reads of ``torch.cuda``."""

    mem_get_info = staticmethod(lambda *_: (1, 1))
    get_device_name = staticmethod(lambda *_: "cpu")
    max_memory_allocated = max_memory_reserved = staticmethod(lambda *_: 0)
    memory_allocated = memory_reserved = max_memory_allocated

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


class _Cpu(PlatformCUDA):
    device_name = vendor_name = "cpu"
    device_module = _Device("cpu")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def empty_cache(self) -> None: ...


class Actor:
    """verl's `TrainingWorker` with its FSDP2 engine, as the actor of its trainers has it.

    Args:
        model: directory in transformers format.
        loss_mode: name of the policy loss.
        rows_per_pass: rows of a micro-batch.
    """

    def __init__(self, model: str, loss_mode: str, rows_per_pass: int) -> None:
        from verl.trainer.config import CheckpointConfig
        from verl.workers.config import (
            FSDPActorConfig,
            FSDPEngineConfig,
            FSDPOptimizerConfig,
            HFModelConfig,
            PolicyLossConfig,
        )
        from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
        from verl.workers.utils.losses import ppo_loss

        self.gradients: list[torch.Tensor] = []
        self._worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=HFModelConfig(
                    path=model,
                    use_remove_padding=False,
                    enable_gradient_checkpointing=False,
                    override_config={"attn_implementation": "sdpa"},
                ),
                engine_config=FSDPEngineConfig(
                    strategy="fsdp2",
                    use_torch_compile=False,
                    use_dynamic_bsz=False,
                    micro_batch_size_per_gpu=rows_per_pass,
                    infer_micro_batch_size_per_gpu=rows_per_pass,
                    model_dtype="fp32",
                    dtype="float32",
                    mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
                ),
                optimizer_config=FSDPOptimizerConfig(lr=2e-3, clip_grad=1e9, total_training_steps=10),
                checkpoint_config=CheckpointConfig(),
            )
        )
        self._worker.reset()
        config = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=rows_per_pass,
            policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        )
        self._worker.set_loss_fn(functools.partial(ppo_loss, config=config))
        self._keep_gradients()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's parameters by name."""
        parameters = self._worker.engine.module.named_parameters()
        return {name: parameter.full_tensor().detach().clone() for name, parameter in parameters}

    def log_probs(self, data: DataProto) -> torch.Tensor:
        """Return [N, T], as `RayPPOTrainer._compute_old_log_prob` computes them."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

        rows = left_right_2_no_padding(data.to_tensordict())
        tu.assign_non_tensor(rows, calculate_entropy=False, compute_loss=False, temperature=1.0)
        return no_padding_2_padding(tu.get(self._worker.infer_batch(rows), "log_probs"), rows).float()

    def update(self, data: DataProto) -> dict[str, Any]:
        """Make one optimiser step on all rows, as `RayPPOTrainer._update_actor` does; ``gradients`` are those of it."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import left_right_2_no_padding

        rows, number = left_right_2_no_padding(data.to_tensordict()), len(data)
        tu.assign_non_tensor(
            rows,
            calculate_entropy=False,
            compute_loss=True,
            temperature=1.0,
            global_batch_size=number,
            mini_batch_size=number,
            epochs=1,
            seed=0,
            dataloader_kwargs={"shuffle": False},
        )
        return tu.get(self._worker.train_mini_batch(rows), "metrics")

    def _keep_gradients(self) -> None:
        engine = self._worker.engine
        step = engine.optimizer_step

        def keep_and_step() -> Any:
            self.gradients = [parameter.grad.full_tensor().clone() for parameter in engine.module.parameters()]
            return step()

        engine.optimizer_step = keep_and_step


@contextlib.contextmanager
def verl_on_cpu(monkeypatch: Any, rendezvous: str) -> Iterator[None]:
    """Let verl take this process's CPU for its only device.

    Args:
        monkeypatch: pytest's.
        rendezvous: a file for the process group of one.
    """
    from verl.models.transformers import monkey_patch
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    set_platform(_Cpu())
    # verl patches a value head that TRL no longer has, if it finds any TRL at all.
    monkeypatch.setattr(monkey_patch, "is_trl_available", lambda: False)
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
        EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{rendezvous}")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
