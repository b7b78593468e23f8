"""How long a run goes on, on how many processes, and what it leaves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    model_validator,
)

from srpo_train.section import Section


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
    async_checkpoints: bool = False
    """Write optimisers and the parts of spread policies, and force everything to disk, while training goes on. Takes a
    copy of them in ordinary memory; a run that is killed meanwhile resumes from the checkpoint before."""
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
    """Write curves and episodes for TensorBoard to the run directory's `tensorboard/`."""
    wandb: bool = False
    """Send curves, episodes and alarms to Weights & Biases; needs the extra `wandb`."""
    wandb_project: str = "srpo"
    """Project there."""
    wandb_offline: bool = False
    """Keep what would be sent in the run directory's `wandb/`, for `wandb sync`; no account and no network are
    needed. Off, the environment variable `WANDB_MODE` decides."""
    trackio: bool = False
    """Give curves, episodes and alarms to trackio, a dashboard on this machine; needs the extra `trackio`."""
    trackio_project: str = "srpo"
    """Project there."""
    episodes_every: NonNegativeInt = 10
    """Steps between samples of episodes in TensorBoard and the other trackers; 0 shows none."""
    num_episodes: PositiveInt = 4
    """Episodes of such a sample: the best, the worst, the most malformed, the one with the largest K, then others by
    chance."""
    save_events: Literal["all", "last", "none"] = "all"
    """Training events kept as JSON Lines in `events/`: of every step, of the newest only, or of none."""
    trace_every: NonNegativeInt = 0
    """Steps between traces, which show in `trace/` what every rank, engine and environment worker did when; 0 is none.
    A traced step waits for the device more often."""
    trace_steps: Annotated[tuple[PositiveInt, ...], Strict(False)] = ()
    """Steps that are traced beside these."""
    profile_steps: Annotated[tuple[PositiveInt, ...], Strict(False)] = ()
    """Steps of which torch's profiler records every operation, into `trace/` too; slow, and large files."""
    peak_tflops: NonNegativeFloat = 0.0
    """Tera-operations a second of one device at most, which `perf/mfu` is measured against; 0 takes what its maker
    publishes, or a matrix product timed at the start where that is not known."""
    role_gradients_every: NonNegativeInt = 10
    """Steps between measurements of each role's share of the gradient, each an extra backward pass over one
    mini-batch; 0 measures never."""
