"""The training loop: rollout -> group -> advantage -> optimiser steps -> publish (algorithm 1 of the paper).

Everything random in a step is derived from the recipe's seed and the step's number, so the whole state of a run is its
weights, its optimisers and a step count. A run killed at any instant and resumed therefore repeats the steps after its
last checkpoint and arrives at the same numbers as one that was never interrupted, as long as episodes are collected in
rounds: asynchronous batches depend on timing, and floating-point numbers on batches. Where sampling runs ahead of the
update (`srpo_train.overlap`), what was sampled belongs to the state too, and is in the checkpoint.

Several processes run the same loop side by side (`srpo_train.distributed`): each collects some of the groups, all get
all episodes and build the same batch, and each computes the rows of its events. What is measured or decided on the main
rank is told to the others, so that all take the same steps.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from srpo_envs.grading.pool import num_lost_workers
from srpo_envs.records import Episode
from srpo_train.alarms import Alarm, Alarms
from srpo_train.batching import EventBatch
from srpo_train.checkpoint import Checkpoint, CheckpointStore
from srpo_train.collect import Rollout, derive_seed, join_rollouts
from srpo_train.config import Recipe
from srpo_train.diagnostics.tokens import RoleStyles
from srpo_train.distributed.ranks import Ranks, join_ranks
from srpo_train.distributed.setup import require_supported, shard_policies
from srpo_train.evaluation import require_tasks
from srpo_train.event_log import EventLog
from srpo_train.experience import Experience, build_experience
from srpo_train.learner import Learner, PolicySettings
from srpo_train.metrics import MutedMetrics, Values, read_metrics
from srpo_train.objective import Clip
from srpo_train.overlap.making import make_source
from srpo_train.places import Here, Places, env_factory
from srpo_train.policies.critic import Critic
from srpo_train.policies.shared_base import Bases
from srpo_train.policies.team import Team
from srpo_train.reporting.run_report import write_report
from srpo_train.run_dir import claimed_run_dir
from srpo_train.run_state import AHEAD_FOLDER, CRITIC_FOLDER, RunState
from srpo_train.samplers import Samplers
from srpo_train.step_metrics import StepClock, collection_metrics, policy_lags
from srpo_train.summary import summarize_rollout
from srpo_train.task_order import TaskOrder
from srpo_train.throughput.accounting import Devices, sampling_flops, throughput_metrics
from srpo_train.throughput.recorder import RECORDER
from srpo_train.throughput.tracing import StepTracer
from srpo_train.tracking import open_metrics
from srpo_train.value_learner import ValueLearner

logger = logging.getLogger(__name__)


def train(recipe: Recipe, *, resume: bool = False, places: Places | None = None) -> Path:
    """Train as the recipe says and return the run directory.

    Args:
        recipe: The run, completely described.
        resume: Go on from the newest checkpoint of the run directory, or begin when there is none.
        places: Where environments and engines are, and who watches; this process when omitted.

    Raises:
        ConfigError: the run directory holds another run, or the recipe does not fit the environment.
        CheckpointError: the newest checkpoint cannot be read.
        RankLostError: another of the run's processes died or hangs.
    """
    if recipe.train.num_threads:
        torch.set_num_threads(recipe.train.num_threads)
    places = places or Here(recipe)
    with join_ranks(recipe.distributed.timeout_s) as ranks, contextlib.ExitStack() as claim:
        require_supported(recipe, ranks, places)
        run_dir = ranks.from_main(lambda: claim.enter_context(claimed_run_dir(recipe, resume=resume)))
        with Trainer(recipe, run_dir, ranks, places) as trainer:
            trainer.run()
        ranks.from_main(lambda: write_report(run_dir))
    return run_dir


class Trainer:
    """One run, in one process or in each of several.

    Args:
        recipe: The run.
        run_dir: Where it leaves its files; an existing checkpoint there is continued.
        ranks: The run's processes, which all see `run_dir` under this path.
        places: Where environments and engines are, and who watches; this process when omitted.
    """

    def __init__(self, recipe: Recipe, run_dir: Path, ranks: Ranks | None = None, places: Places | None = None) -> None:
        self.recipe = recipe
        self._places = places = places or Here(recipe)
        self._ranks = ranks = ranks or Ranks()
        folder, keep_last = run_dir / "checkpoints", recipe.train.keep_last
        store = CheckpointStore(folder, keep_last=keep_last, is_read_only=not ranks.is_main)
        checkpoint = ranks.from_main(store.latest)
        self._step = checkpoint.step if checkpoint else 0
        past = ranks.from_main(lambda: read_metrics(run_dir))
        self._num_tokens = _sampled_tokens(past, self._step)
        env = env_factory(recipe.env)()
        if recipe.eval.every:  # what is wrong with it is said now, not at the first evaluation
            require_tasks(env_factory(recipe.eval_env)(), recipe.eval.num_tasks)
        roles = recipe.role_map(env.roles)
        self._objective = recipe.build_objective()
        bases = Bases()
        self._team = Team.load(recipe.policy_specs(checkpoint.path if checkpoint else None), roles, bases)
        shards = shard_policies(self._team, recipe, ranks)
        self._learner = Learner(
            self._team.policies,
            self._objective,
            recipe.optim,
            num_steps=recipe.train.num_steps,
            references=Team.load(recipe.reference_specs(), roles, bases).policies if self._objective.kl_coef else None,
            settings={policy_id: _settings_of(recipe, policy_id) for policy_id in recipe.policies},
            ranks=ranks,
        )
        self._critic = self._load_critic(checkpoint) if self._objective.advantage.needs_critic else None
        self._styles = RoleStyles()
        self._state = RunState(
            store,
            team=self._team,
            learner=self._learner,
            critic=self._critic,
            styles=self._styles,
            ranks=ranks,
            in_background=recipe.train.async_checkpoints,
        )
        if checkpoint:
            self._state.restore(checkpoint)
        self._samplers = Samplers(recipe, self._team, shards, ranks, places, checkpoint.path if checkpoint else None)
        self._source = make_source(
            recipe,
            self._samplers,
            TaskOrder(env.tasks.num_tasks, recipe.seed),
            ranks,
            step=self._step,
            stored=checkpoint.path / AHEAD_FOLDER if checkpoint else None,
        )
        self._metrics = (
            open_metrics(
                recipe, run_dir, resume_step=self._step if checkpoint else None, watcher=places.watcher(self._step)
            )
            if ranks.is_main
            else MutedMetrics()
        )
        self._events = EventLog(run_dir, recipe.log.save_events, done_steps=self._step) if ranks.is_main else None
        self._alarms = Alarms(
            recipe.alarms, [line for line in past if line["step"] <= self._step] if checkpoint else ()
        )
        self._devices = Devices.of(
            self._team,
            num_ranks=ranks.size,
            num_servers=places.num_engines,
            peak_tflops=recipe.log.peak_tflops,
        )
        self._tracer = StepTracer(run_dir, recipe.log, ranks)
        self._num_lost_before = num_lost_workers()  # by an earlier run of this process
        self._is_stopped = False

    def __enter__(self) -> Trainer:
        """Return the trainer; leaving the block releases everything."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what goes on beside the loop, and close engines and logs."""
        self._source.close()
        self._state.close()
        self._samplers.close()
        self._metrics.close()

    def run(self) -> None:
        """Train from the current step to the last one, or to the end of the budget."""
        evaluation = self.recipe.eval
        if self._step == 0 and evaluation.every and evaluation.at_start:
            self._log(self._evaluate())
        while not (self._is_over or self._is_stopped):
            with self._tracer.step(self._step + 1):
                metrics, episodes = self._train_step()
                if self._is_due(evaluation.every):
                    metrics |= self._evaluate()
                for alarm in self._log(metrics, episodes):
                    self._act(alarm)
                if self._is_due(self.recipe.train.checkpoint_every) or self._is_stopped:
                    self._save()
        self._state.settle()

    def _log(self, measured: Values, episodes: Sequence[Episode] = ()) -> list[Alarm]:
        """Write a step down and return the alarms that begin with it."""
        # Clocks and memory differ between ranks, and alarms may look at them.
        metrics = self._ranks.from_main(lambda: {**measured, **self._places.metrics()})
        alarms = self._alarms.check({"step": self._step, **metrics})
        self._metrics.log(self._step, {**metrics, **self._alarms.metrics()}, episodes)
        for alarm in alarms:
            self._metrics.warn(alarm.message)
        return alarms

    def _act(self, alarm: Alarm) -> None:
        """Do what the recipe wants done about an alarm."""
        if alarm.action == "stop":
            self._metrics.warn(f"{alarm.name}: the run stops at step {self._step}; --resume goes on from here")
            self._is_stopped = True
        elif alarm.action in ("lower_lr", "rollback"):
            self._lower_rates(alarm)
            if alarm.action == "rollback":
                self._roll_back(alarm)

    def _lower_rates(self, alarm: Alarm) -> None:
        factor = self.recipe.alarms.lr_factor
        self._learner.lower_rates(factor)
        self._metrics.warn(f"{alarm.name}: learning rates are {factor:g} times what they were")

    def _roll_back(self, alarm: Alarm) -> None:
        best = self._alarms.best_step
        good = self._state.roll_back(best)
        if good is None:
            self._metrics.warn(f"{alarm.name}: no checkpoint at or before the best evaluation (step {best}) to go to")
            return
        self._source.restart()
        self._metrics.warn(f"{alarm.name}: weights and optimisers are those of step {good.step} again")

    @property
    def _is_over(self) -> bool:
        settings = self.recipe.train
        return self._step >= settings.num_steps or 0 < settings.token_budget <= self._num_tokens

    def _is_due(self, every: int) -> bool:
        return bool(every) and (self._is_over or self._step % every == 0)

    def _train_step(self) -> tuple[dict[str, float], Sequence[Episode]]:
        """One iteration of algorithm 1, its metrics and episodes; afterwards `self._step` counts it."""
        clock, before = StepClock(self._source), RECORDER.take_work()
        rollouts: list[Rollout] = []
        experiences: list[Experience] = []
        update = self._update(self._experience(clock, rollouts, experiences), self._step)
        rollout = join_rollouts(rollouts)
        lags = policy_lags(rollout.episodes, self._team.trained) if self.recipe.rollout.max_lag else {}
        if update:
            for policy in self._team.trained:
                policy.version += 1
            update["train/policy_version"] = float(max(policy.version for policy in self._team.trained))
        self._source.step_done(is_updated=bool(update))
        clock.stop()
        self._step += 1
        self._num_tokens += sum(episode.num_tokens for episode in rollout.episodes)
        if self._events:
            self._events.add(self._step, rollout.episodes)
        metrics = {
            **summarize_rollout(rollout.episodes),
            **self._styles.measure(rollout.episodes),
            **collection_metrics(rollout, experiences),
            "rollout/num_lost_graders": float(sum(self._ranks.gather(num_lost_workers() - self._num_lost_before))),
            **self._source.metrics(),
            **update,
            **lags,
            **clock.metrics(rollout, update),
            **throughput_metrics(
                self._ranks.gather(RECORDER.take_work()),
                rollout,
                self._devices,
                before=before,
                generate_flops=sampling_flops(self._team.policies, rollout.episodes),
                step_s=clock.step_s,
                waited_s=clock.wait_s if self.recipe.rollout.max_lag else None,
            ),
        }
        return metrics, rollout.episodes

    def _experience(
        self, clock: StepClock, rollouts: list[Rollout], experiences: list[Experience]
    ) -> Iterator[Experience]:
        """Yield the parts of the step as the source has them, and keep what they are made of."""
        values = self._critic.values if self._critic else None
        for rollout in clock.waiting(self._source.take()):
            rollouts.append(rollout)
            if not self.recipe.rollout.max_lag:
                self._samplers.release_memory()
            experiences.append(
                build_experience(rollout.episodes, self._objective, self.recipe.optim.max_row_tokens, values)
            )
            yield experiences[-1]

    def _update(self, parts: Iterator[Experience], step: int) -> dict[str, float]:
        """Train on a step's experience; nothing is reported when there was no event to train on."""
        every = self.recipe.log.role_gradients_every
        with_role_gradients = bool(every) and step % every == 0
        batches = (part.batch for part in parts if part.batch.num_events)
        if self.recipe.rollout.early_start:
            metrics = self._learner.update_in_parts(batches, step=step, with_role_gradients=with_role_gradients)
        else:
            metrics = self._update_at_once(next(batches, None), step, with_role_gradients=with_role_gradients)
        if not metrics:
            logger.warning("step %d: no event to train on; the weights stay as they are", step + 1)
        return metrics

    def _update_at_once(self, batch: EventBatch | None, step: int, *, with_role_gradients: bool) -> dict[str, float]:
        if batch is None:
            return {}
        seed = derive_seed(self.recipe.seed, "deal", step)
        metrics = self._learner.update(batch, step=step, seed=seed, with_role_gradients=with_role_gradients)
        if self._critic:
            metrics |= self._critic.update(batch, step=step, seed=seed)
        return metrics

    def _evaluate(self) -> dict[str, float]:
        begun = time.monotonic()
        with self._source.at_newest():
            measured = self._samplers.evaluate()
        return measured | {"time/eval_s": time.monotonic() - begun}

    # --- files ----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        keeps_best = self.recipe.train.keep_best or self.recipe.alarms.needs_good_checkpoint
        self._state.save(self._step, self._alarms.best_step if keeps_best else None, self._source.save)

    def _load_critic(self, checkpoint: Checkpoint | None) -> ValueLearner:
        settings = self.recipe.critic_settings
        critic = Critic.load(
            checkpoint.path / CRITIC_FOLDER if checkpoint else str(settings.model),
            dtype=settings.dtype or "float32",
            device=settings.device or "auto",
            gradient_checkpointing=bool(settings.gradient_checkpointing),
        )
        critic.check_tokenizers(list(self._team))
        return ValueLearner(
            critic,
            self.recipe.critic_optim,
            value_clip=settings.value_clip,
            num_steps=self.recipe.train.num_steps,
            ranks=self._ranks,
        )


def _sampled_tokens(lines: Sequence[Values], step: int) -> int:
    """The training tokens that a run sampled up to a step."""
    return int(sum(line.get("rollout/num_tokens", 0) for line in lines if line["step"] <= step))


def _settings_of(recipe: Recipe, policy_id: str) -> PolicySettings:
    return PolicySettings(
        optim=recipe.optim_of(policy_id),
        temperature=recipe.sampling_of(policy_id).temperature,
        clip=Clip.of(recipe.objective_of(policy_id).build()),
    )
