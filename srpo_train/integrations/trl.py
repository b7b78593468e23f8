"""TRL: its `GRPOTrainer` on a world of ours, and SRPO as a subclass of it.

`EnvRollouts` is a ``rollout_func``: TRL's loop and TRL's loss, the episodes ours. TRL knows one completion for each
prompt, so this way is for worlds whose episode is one event of one member.

`SrpoTrainer` is for teams. TRL keeps model, optimiser, accelerate, checkpoints and logs; a generation batch becomes the
member rows of whole events. An event's members may lie in different micro-batches, so the trainer goes in two passes:
before the first micro-batch of an optimiser step every row is scored without gradient and the objective is
differentiated by the log-probabilities (`srpo_train.set_gradient`); each micro-batch then back-propagates coefficients
times log-probabilities, which adds up to the gradient of the whole objective.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from srpo_envs.errors import ConfigError, MissingPackageError
from srpo_envs.records import Episode
from srpo_train.batching import EventBatch, MemberRow, event_minibatches
from srpo_train.collect import derive_seed
from srpo_train.distributed.dealing import Work
from srpo_train.experience import Experience, build_experience
from srpo_train.integrations.trl_rollouts import POLICY_ID, EnvRollouts, refuse, team_return
from srpo_train.objective import Objective, diagnose, preset
from srpo_train.policies.logprobs import TokenLogprobs
from srpo_train.role_weights import weigh_roles
from srpo_train.set_gradient import Coefficients, loss_coefficients, loss_tensors, score_rows, with_logprobs

try:
    from accelerate.utils import gather_object
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise MissingPackageError(
        f"srpo_train.integrations.trl needs TRL, and {error.name or 'a part of it'!r} is not installed: "
        "run pip install 'trl==1.16.0'"
    ) from error

_UNUSED: Mapping[str, object] = {
    "top_p": 1.0,
    "top_k": 0,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "mask_truncated_completions": False,
    "use_adaptive_entropy": False,
    "reward_weights": None,
    "router_aux_loss_coef": None,
}
"""Settings that SRPO does not know here, with the only value they can take. Under top-p and top-k a token is drawn from
what is left of the vocabulary, while TRL's forward pass scores it among all."""


class SrpoTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` for teams: whole events, one ratio, one advantage and one clip for each.

    One of TRL's prompts is one episode, and ``num_generations`` of them a rollout group. The events of a generation
    batch are dealt to its ``steps_per_generation / gradient_accumulation_steps`` optimiser steps, never split; the rows
    of a step to its micro-batches and processes, whatever event they belong to.

    Args:
        model: As `GRPOTrainer` has it.
        rollouts: Plays the episodes and names the tasks.
        args: TRL's configuration. Its batch sizes, sampling and optimiser are read; its ``loss_type``,
            ``scale_rewards`` and ``importance_sampling_level`` are not.
        objective: What is maximised. None takes SRPO with ``epsilon``, ``epsilon_high``, ``delta``, ``beta`` and
            ``entropy_coef`` of the configuration.
        grpo: Further arguments of `GRPOTrainer`, such as ``processing_class``, ``peft_config`` or ``callbacks``.

    Raises:
        ConfigError: the configuration asks for what this trainer does not do.
    """

    def __init__(
        self,
        model: Any,
        rollouts: EnvRollouts,
        args: GRPOConfig,
        *,
        objective: Objective | None = None,
        **grpo: Any,
    ) -> None:
        super().__init__(model, team_return, args, rollouts.dataset, **grpo)
        self._objective = objective_of(args) if objective is None else objective
        self._rollouts = rollouts
        self._updates: list[EventBatch] = []
        self._passes: list[dict[str, Tensor]] = []
        self._check()

    # --- TRL's hooks ----------------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the rows of the next micro-batch; collect at the first one of a generation batch."""
        position = self._step % (self.args.steps_per_generation * self.num_iterations)
        update, micro = divmod(position % self.args.steps_per_generation, self.args.gradient_accumulation_steps)
        if position == 0:
            self._updates = self._collect([row["prompt"] for row in generation_batch])
        if micro == 0:
            self._passes = self._weigh(self._updates[update], is_first=position == 0)
        inputs: dict[str, Tensor] = self._passes[micro]
        return inputs

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The micro-batch's part of ``-J``; over all micro-batches of a step value and gradient are those of ``-J``."""
        scored = self._forward(model, inputs)
        value = inputs["value"] + (inputs["coefficients"] * _gradient_only(scored.logprobs_MT)).sum()
        if "entropy_coefficients" in inputs:
            assert scored.entropy_MT is not None
            value = value + (inputs["entropy_coefficients"] * _gradient_only(scored.entropy_MT)).sum()
        return -value

    # --- a generation batch ---------------------------------------------------------------------------------------

    def _collect(self, prompts: Sequence[str]) -> list[EventBatch]:
        """Play the prompts' episodes and deal their events to the optimiser steps of the generation batch."""
        episodes = gather_object(list(self._rollouts.episodes(prompts, self)))
        experience = build_experience(episodes, self._objective, sys.maxsize)
        batch, num_updates = experience.batch, self._num_updates
        if batch.num_events < num_updates:
            raise ConfigError(f"a generation batch has {batch.num_events} events for {num_updates} optimiser steps")
        objective = self._objective
        if num_updates * self.num_iterations > 1 or objective.kl_coef or objective.correction != "none":
            batch = self._with_logprobs(batch)
        self._note(episodes, experience)
        return list(event_minibatches(batch, num_updates, derive_seed(self.args.seed, "deal", self.state.global_step)))

    def _with_logprobs(self, batch: EventBatch) -> EventBatch:
        """Score with the trainer, and with TRL's reference model where it is needed; the engine's scores are kept."""
        rows = [replace(row, engine_logprobs=row.old_logprobs) for row in batch.rows]
        work = self._work(rows)._asdict()
        scored = with_logprobs(replace(batch, rows=rows), {POLICY_ID: self._score}, max_tokens=sys.maxsize, **work)
        if self._objective.kl_coef:
            reference = {POLICY_ID: self._score_reference}
            scored = with_logprobs(scored, reference, max_tokens=sys.maxsize, name="reference_logprobs", **work)
        return scored

    # --- an optimiser step ----------------------------------------------------------------------------------------

    def _weigh(self, batch: EventBatch, *, is_first: bool) -> list[dict[str, Tensor]]:
        """Pass one over the events of an optimiser step: what each of this process's micro-batches is to add up.

        Until the first step on a generation batch every ratio is exactly 1, and nothing needs to be scored.
        """
        work = self._work(batch.rows)
        scores = None if is_first else score_rows(batch.rows, {POLICY_ID: self._score}, **work._asdict())
        tensors = loss_tensors(self._objective, batch, scores)
        value, coefficients = loss_coefficients(self._objective, tensors)
        coefficients = weigh_roles(self._objective.role_weights, batch.rows, coefficients)
        for name, measured in diagnose(self._objective, tensors).items():
            self._metrics["train"][f"srpo/{name}"].append(measured)
        share = value / len(work.partition)
        return [self._micro_batch(batch, part, coefficients, share) for part in work.partition]

    def _work(self, rows: Sequence[MemberRow]) -> Work:
        """Deal rows of like length to the micro-batches of all processes; a process with none takes row 0 along."""
        accelerator, num_micro = self.accelerator, self.args.gradient_accumulation_steps
        order = torch.tensor(sorted(range(len(rows)), key=lambda index: (-rows[index].num_tokens, index)))
        parts = [part.tolist() for part in torch.tensor_split(order, num_micro * accelerator.num_processes)]
        own = parts[accelerator.process_index :: accelerator.num_processes]
        return Work(own, [0] * num_micro, self._share if accelerator.num_processes > 1 else None)

    def _share(self, matrix_MT: Tensor) -> Tensor:
        """Sum a matrix over processes."""
        total: Tensor = self.accelerator.reduce(matrix_MT.to(self.accelerator.device), reduction="sum").cpu()
        return total

    def _micro_batch(
        self, batch: EventBatch, part: Sequence[int], coefficients: Coefficients, value: float
    ) -> dict[str, Tensor]:
        """TRL's tensors of some rows, with the event of each and what its log-probabilities are multiplied by.

        Accelerate averages gradients over processes, and every process holds the whole value.
        """
        device, indices = self.accelerator.device, list(part) or [0]
        inputs = self._pack([batch.rows[index] for index in indices])
        width, scale = inputs["completion_ids"].shape[1], self.accelerator.num_processes if part else 0
        inputs["event_index"] = batch.event_of_row_M[indices].to(device)
        inputs["value"] = torch.tensor(value, device=device)
        inputs["coefficients"] = scale * coefficients.logprobs_MT[indices, :width].to(device, torch.float32)
        if coefficients.entropy_MT is not None:
            inputs["entropy_coefficients"] = scale * coefficients.entropy_MT[indices, :width].to(device, torch.float32)
        return inputs

    def _pack(self, rows: Sequence[MemberRow]) -> dict[str, Tensor]:
        """Rows as TRL pads them: prompts on the left, completions on the right."""
        pad_id, device = self._tokenizer.pad_token_id, self.accelerator.device
        columns = {}
        for name, sequences, side in (
            ("prompt", [row.prompt_ids for row in rows], "left"),
            ("completion", [row.token_ids for row in rows], "right"),
        ):
            ids = [torch.tensor(list(sequence), dtype=torch.int64) for sequence in sequences]
            masks = [torch.ones_like(row_ids) for row_ids in ids]
            columns[f"{name}_ids"] = pad_sequence(ids, True, pad_id, side).to(device)
            columns[f"{name}_mask"] = pad_sequence(masks, True, 0, side).to(device)
        return columns

    # --- models as scorers ----------------------------------------------------------------------------------------

    def _score(self, rows: Sequence[MemberRow]) -> TokenLogprobs:
        return self._forward(self.model, self._pack(rows), chunked=True)

    def _score_reference(self, rows: Sequence[MemberRow]) -> TokenLogprobs:
        return self._forward(self.ref_model, self._pack(rows), chunked=True, with_entropy=False)

    def _forward(
        self, model: Any, inputs: Mapping[str, Tensor], *, chunked: bool = False, with_entropy: bool = True
    ) -> TokenLogprobs:
        """TRL's own forward pass: [M, T] log-probabilities and entropies of the completions."""
        logprobs_MT, entropy_MT, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size if chunked else None,
            compute_entropy=with_entropy,
        )
        return TokenLogprobs(logprobs_MT, entropy_MT)

    # --- configuration and logs -----------------------------------------------------------------------------------

    @property
    def _num_updates(self) -> int:
        """Optimiser steps over a generation batch, once."""
        return int(self.args.steps_per_generation // self.args.gradient_accumulation_steps)

    def _check(self) -> None:
        args, objective = self.args, self._objective
        refuse(args, _UNUSED)
        if args.steps_per_generation % args.gradient_accumulation_steps:
            raise ConfigError(
                f"steps_per_generation = {args.steps_per_generation} is no multiple of gradient_accumulation_steps = "
                f"{args.gradient_accumulation_steps}: an optimiser step would mix two generation batches"
            )
        if self.eval_dataset is not None:
            raise ConfigError("SrpoTrainer does not evaluate; leave eval_dataset out and use srpo_train.evaluation")
        if objective.kl_coef and self.ref_model is None:
            raise ConfigError(
                f"the objective has kl_coef = {objective.kl_coef}, and TRL made no reference model: set beta in "
                "GRPOConfig, and train a whole model, not an adapter"
            )

    def _note(self, episodes: Sequence[Episode], experience: Experience) -> None:
        """Write down what TRL shows of a generation batch: rewards, lengths and, if asked for, the texts."""
        batch, metrics = experience.batch, self._metrics["train"]
        reward_N = torch.tensor([episode.reward for episode in episodes])
        length_M = torch.tensor([float(len(row.token_ids)) for row in batch.rows])
        self.state.num_input_tokens_seen += sum(row.num_tokens for row in batch.rows)
        metrics["num_tokens"] = [float(self.state.num_input_tokens_seen)]
        measured: dict[str, Any] = {
            "reward": reward_N.mean(),
            "reward_std": reward_N.std(unbiased=False),
            "completions/mean_length": length_M.mean(),
            "completions/max_length": length_M.max(),
            **{f"srpo/num_{reason}_events": number for reason, number in experience.dropped.items()},
        }
        for name, value in measured.items():
            metrics[name].append(float(value))
        if self.log_completions:
            assert batch.advantage_M is not None
            self._logs["prompt"].extend(self._tokenizer.decode(row.prompt_ids) for row in batch.rows)
            self._logs["completion"].extend(self._tokenizer.decode(row.token_ids) for row in batch.rows)
            self._logs["advantages"].extend(batch.advantage_M.tolist())


def objective_of(args: GRPOConfig) -> Objective:
    """Return SRPO with the constants of TRL's configuration."""
    return preset(
        "srpo",
        clip_low=args.epsilon,
        clip_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        dual_clip=args.delta,
        kl_coef=args.beta,
        entropy_coef=args.entropy_coef,
    )


def _gradient_only(value: Tensor) -> Tensor:
    """Zero, with the gradient of the value."""
    return value - value.detach()
