"""The training loop: rollout -> group -> advantage -> optimiser steps -> publish (algorithm 1 of the paper).

Everything random in a step is derived from the recipe's seed and the step's number, so the whole state of a run is its
weights, its optimisers and a step count. A run killed at any instant and resumed therefore repeats the steps after its
last checkpoint and arrives at the same numbers as one that was never interrupted, as long as episodes are collected in
rounds: asynchronous batches depend on timing, and floating-point numbers on batches.

Several processes run the same loop side by side (`srpo_train.distributed`): each collects some of the groups, all get
all episodes and build the same batch, and each computes the rows of its events. What is measured or decided on the main
rank is told to the others, so that all take the same steps.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import srpo_envs
from srpo_envs.errors import CheckpointError, NoEpisodeError
from srpo_envs.records import Episode, write_episodes
from srpo_train.alarms import Alarm, Alarms
from srpo_train.checkpoint import Checkpoint, CheckpointStore
from srpo_train.collect import Collector, EpisodeJob, Rollout, derive_seed
from srpo_train.collect.environments import World
from srpo_train.config import Recipe
from srpo_train.diagnostics.tokens import RoleStyles
from srpo_train.distributed.collecting import RankCollector
from srpo_train.distributed.ranks import Ranks, join_ranks
from srpo_train.distributed.setup import require_supported, shard_policies
from srpo_train.engines.background import as_streaming
from srpo_train.engines.base import Engine, Sampling
from srpo_train.engines.publishing import PublishingEngine, weights_of
from srpo_train.evaluation import evaluate, require_tasks
from srpo_train.experience import Experience, build_experience
from srpo_train.learner import Learner, PolicySettings
from srpo_train.metrics import MutedMetrics, Values, read_metrics
from srpo_train.objective import Clip
from srpo_train.places import Here, Places
from srpo_train.policies import Policy
from srpo_train.policies.critic import Critic
from srpo_train.policies.shared_base import Bases
from srpo_train.policies.team import Team
from srpo_train.reporting.run_report import write_report
from srpo_train.run_dir import claimed_run_dir
from srpo_train.sinks import open_metrics
from srpo_train.summary import summarize_rollout
from srpo_train.task_order import TaskOrder, step_jobs
from srpo_train.value_learner import ValueLearner

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_CRITIC_FOLDER = "_critic"  # no policy can be called so: ids begin with a letter or a digit
_SHARDS_FOLDER = "_shards"


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
    with join_ranks(recipe.distributed.timeout_s) as ranks, contextlib.ExitStack() as claim:
        require_supported(recipe, ranks)
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
        self._run_dir = run_dir
        self._places = places = places or Here(recipe)
        self._ranks = ranks = ranks or Ranks()
        folder, keep_last = run_dir / "checkpoints", recipe.train.keep_last
        self._store = CheckpointStore(folder, keep_last=keep_last, is_read_only=not ranks.is_main)
        checkpoint = ranks.from_main(self._store.latest)
        self._step = checkpoint.step if checkpoint else 0
        past = ranks.from_main(lambda: read_metrics(run_dir))
        self._num_tokens = _sampled_tokens(past, self._step)
        env = srpo_envs.make(recipe.env.id, **recipe.env.kwargs)
        eval_env = recipe.eval_env
        if recipe.eval.every:  # what is wrong with it is said now, not at the first evaluation
            require_tasks(srpo_envs.make(eval_env.id, **eval_env.kwargs), recipe.eval.num_tasks)
        self._order = TaskOrder(env.tasks.num_tasks, recipe.seed)
        roles = recipe.role_map(env.roles)
        self._objective = recipe.build_objective()
        bases = Bases()
        self._team = Team.load(recipe.policy_specs(checkpoint.path if checkpoint else None), roles, bases)
        self._shards = shard_policies(self._team, recipe, ranks)
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
        if checkpoint:
            self._restore(checkpoint)
        self._is_served = places.is_sampling_elsewhere
        self._engines: dict[str, Engine] = {}
        with self._published_policies():
            if ranks.is_main or not self._is_served:
                self._engines = places.engines(self._team)
        if recipe.rollout.mode == "asynchronous":
            self._engines = {policy_id: as_streaming(engine) for policy_id, engine in self._engines.items()}
        self._metrics = (
            open_metrics(
                recipe, run_dir, resume_step=self._step if checkpoint else None, watcher=places.watcher(self._step)
            )
            if ranks.is_main
            else MutedMetrics()
        )
        self._alarms = Alarms(
            recipe.alarms, [line for line in past if line["step"] <= self._step] if checkpoint else ()
        )
        self._is_stopped = False
        self._collector = self._make_collector(places.worlds(recipe.env))
        self._eval_collector = self._make_collector(places.worlds(eval_env))

    def __enter__(self) -> Trainer:
        """Return the trainer; leaving the block releases everything."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close collectors, engines and logs."""
        self._collector.close()
        self._eval_collector.close()
        for engine in self._engines.values():
            engine.close()
        self._metrics.close()

    def run(self) -> None:
        """Train from the current step to the last one, or to the end of the budget."""
        evaluation = self.recipe.eval
        if self._step == 0 and evaluation.every and evaluation.at_start:
            self._log(self._evaluate())
        while not (self._is_over or self._is_stopped):
            metrics = self._train_step()
            if self._is_due(evaluation.every):
                metrics |= self._evaluate()
            for alarm in self._log(metrics):
                self._act(alarm)
            if self._is_due(self.recipe.train.checkpoint_every) or self._is_stopped:
                self._save()

    def _log(self, measured: Values) -> list[Alarm]:
        """Write a step down and return the alarms that begin with it."""
        metrics = self._ranks.from_main(lambda: measured)  # clocks and memory differ, and alarms may look at them
        alarms = self._alarms.check({"step": self._step, **metrics})
        self._metrics.log(self._step, {**metrics, **self._alarms.metrics()})
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
        """Take back weights and optimisers of the best checkpoint; steps, rates and a critic go on as they are."""
        best = self._alarms.best_step
        good = None if best is None else self._ranks.from_main(lambda: self._store.not_after(best))
        if good is None:
            self._metrics.warn(f"{alarm.name}: no checkpoint at or before the best evaluation (step {best}) to go to")
            return
        for policy in self._trained:
            if not policy.shards:
                policy.restore(good.path / policy.policy_id)
            policy.version += 1
        self._learner.load_optimizers(self._store.load_state(good)["learner"])
        self._learner.load_shards(good.path / _SHARDS_FOLDER)
        self._publish()
        self._metrics.warn(f"{alarm.name}: weights and optimisers are those of step {good.step} again")

    @property
    def _trained(self) -> list[Policy]:
        return [policy for policy in self._team if policy.is_trainable]

    @property
    def _is_over(self) -> bool:
        settings = self.recipe.train
        return self._step >= settings.num_steps or 0 < settings.token_budget <= self._num_tokens

    def _is_due(self, every: int) -> bool:
        return bool(every) and (self._is_over or self._step % every == 0)

    def _train_step(self) -> dict[str, float]:
        """One iteration of algorithm 1; afterwards `self._step` counts it."""
        recipe, step, begun = self.recipe, self._step, time.monotonic()
        jobs = step_jobs(
            self._order,
            step=step + 1,
            prompts_per_step=recipe.rollout.prompts_per_step,
            group_size=recipe.rollout.group_size + recipe.rollout.oversample,
            seed=recipe.seed,
        )
        rollout = self._collect(jobs)
        for engine in self._publishing.values():
            engine.release_memory()
        update_begun = time.monotonic()
        values = self._critic.values if self._critic else None
        experience = build_experience(rollout.episodes, self._objective, recipe.optim.max_row_tokens, values)
        update = self._update(experience, step)
        now = time.monotonic()
        self._step = step + 1
        self._num_tokens += sum(episode.num_tokens for episode in rollout.episodes)
        self._save_events(rollout.episodes)
        return {
            **summarize_rollout(rollout.episodes),
            **self._styles.measure(rollout.episodes),
            **_collection_metrics(rollout, experience),
            **self._places.metrics(),
            **update,
            **_clock_metrics(rollout, update, step_s=now - begun, update_s=now - update_begun),
        }

    def _collect(self, jobs: Sequence[EpisodeJob]) -> Rollout:
        """Collect a step, again and again while nothing comes through: a search server may be on its way back.

        Raises:
            NoEpisodeError: it never was.
        """
        settings = self.recipe.rollout
        samplings = {policy_id: _sampling(self.recipe.sampling_of(policy_id)) for policy_id in self.recipe.policies}
        keep = settings.group_size if settings.oversample else None
        collect = functools.partial(self._collector.collect, jobs, samplings, keep_per_group=keep)
        pause_s = _FIRST_PAUSE_S
        with self._sampling_policies():
            for _ in range(settings.lost_step_retries):
                try:
                    return collect()
                except NoEpisodeError as error:
                    logger.warning("step %d is lost and tried again in %.0f s: %s", self._step + 1, pause_s, error)
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return collect()

    def _update(self, experience: Experience, step: int) -> dict[str, float]:
        if not experience.batch.num_events:
            logger.warning("step %d: no event to train on; the weights stay as they are", step + 1)
            return {}
        seed = derive_seed(self.recipe.seed, "deal", step)
        every = self.recipe.log.role_gradients_every
        metrics = self._learner.update(
            experience.batch, step=step, seed=seed, with_role_gradients=bool(every) and step % every == 0
        )
        if self._critic:
            metrics |= self._critic.update(experience.batch, step=step, seed=seed)
        for policy in self._trained:
            policy.version += 1
        self._publish()
        return metrics | {"train/policy_version": float(max(policy.version for policy in self._trained))}

    @property
    def _publishing(self) -> dict[str, PublishingEngine]:
        return {name: engine for name, engine in self._engines.items() if isinstance(engine, PublishingEngine)}

    def _publish(self) -> None:
        """Bring engines with a copy of the weights up to date, before anything is sampled again."""
        engines = self._publishing
        with self._published_policies():
            for policy in self._trained:
                if policy.policy_id in engines:
                    engines[policy.policy_id].publish(policy.version, weights_of(policy))

    @contextlib.contextmanager
    def _sampling_policies(self) -> Iterator[None]:
        """Let engines that sample from the trainer's own models do so in the body, whoever holds the parts of them."""
        with contextlib.ExitStack() as stack:
            for shards in () if self._is_served else self._shards:
                stack.enter_context(shards.assembled())
            yield

    @contextlib.contextmanager
    def _published_policies(self) -> Iterator[None]:
        """Let engines that hold a copy of the weights be given them in the body, whoever holds the parts of them."""
        with contextlib.ExitStack() as stack:
            for shards in self._shards if self._is_served else ():
                stack.enter_context(shards.collected())
            yield

    def _evaluate(self) -> dict[str, float]:
        begun = time.monotonic()
        settings = self.recipe.eval
        with self._sampling_policies():
            result = evaluate(
                self._eval_collector,
                num_tasks=settings.num_tasks,
                samples_per_task=settings.samples_per_task,
                sampling=_sampling(settings),
                seed=self.recipe.seed,
            )
        return result.metrics | {"time/eval_s": time.monotonic() - begun}

    # --- state ----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        state: dict[str, Any] = {
            "step": self._step,
            "learner": self._learner.state_dict(),
            "styles": self._styles.state_dict(),
            "versions": {policy.policy_id: policy.version for policy in self._team},
        }
        if self._critic:
            state["critic"] = self._critic.state_dict()
        keeps_best = self.recipe.train.keep_best or self.recipe.alarms.needs_good_checkpoint
        best = self._alarms.best_step if keeps_best else None
        if self._ranks.is_main:
            self._store.save(self._step, self._write_policies, state, best=best)
        else:
            self._write_policies(None)
        self._ranks.from_main(lambda: None)  # a rank that ends now must not take the main one with it

    def _write_policies(self, begun: Path | None) -> None:
        """Write what a checkpoint holds beside the state; the main rank says where, the others add their parts."""
        folder = self._ranks.from_main(lambda: begun)
        assert folder is not None
        for policy in self._trained:  # the others are what the recipe names
            if policy.shards or self._ranks.is_main:
                policy.save(folder / policy.policy_id)
        self._learner.save_shards(folder / _SHARDS_FOLDER)
        if self._critic and self._ranks.is_main:
            self._critic.critic.save(folder / _CRITIC_FOLDER)

    def _load_critic(self, checkpoint: Checkpoint | None) -> ValueLearner:
        settings = self.recipe.critic_settings
        critic = Critic.load(
            checkpoint.path / _CRITIC_FOLDER if checkpoint else str(settings.model),
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

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = self._store.load_state(checkpoint)
        if set(state["versions"]) != set(self._team.policies):
            raise CheckpointError(
                f"{self._run_dir}: the checkpoint holds policies {sorted(state['versions'])}, the recipe "
                f"{sorted(self._team.policies)}; start a new run with another name"
            )
        self._learner.load_state_dict(state["learner"])
        self._learner.load_shards(checkpoint.path / _SHARDS_FOLDER)
        self._styles.load_state_dict(state["styles"])
        if self._critic:
            self._critic.load_state_dict(state["critic"])
        for policy_id, version in state["versions"].items():
            self._team[policy_id].version = version

    def _save_events(self, episodes: tuple[Episode, ...]) -> None:
        kept = self.recipe.log.save_events
        if kept == "none" or not self._ranks.is_main:
            return
        folder = self._run_dir / "events"
        path = folder / f"step-{self._step:06d}.jsonl"
        write_episodes(path, episodes)
        if kept == "last":
            for other in folder.glob("step-*.jsonl"):
                if other != path:
                    other.unlink()

    def _make_collector(self, make_env: Callable[[], World]) -> RankCollector:
        """A collector on every rank that has engines."""
        settings, ranks = self.recipe.rollout, self._ranks
        num_collecting = 1 if self._is_served else ranks.size
        if not self._engines:
            return RankCollector(None, ranks, num_collecting=num_collecting)
        collector = Collector(
            make_env,
            self._engines,
            self._team.roles,
            seed=self.recipe.seed,
            mode=settings.mode,
            max_concurrent=settings.max_concurrent,
            num_workers=settings.num_workers,
            step_retries=settings.step_retries,
            step_timeout_s=settings.step_timeout_s,
            straggler_grace_s=settings.straggler_grace_s,
            request_timeout_s=settings.request_timeout_s,
            episode_timeout_s=settings.episode_timeout_s,
        )
        return RankCollector(collector, ranks, num_collecting=num_collecting)


def _sampled_tokens(lines: Sequence[Values], step: int) -> int:
    """The training tokens that a run sampled up to a step."""
    return int(sum(line.get("rollout/num_tokens", 0) for line in lines if line["step"] <= step))


def _settings_of(recipe: Recipe, policy_id: str) -> PolicySettings:
    return PolicySettings(
        optim=recipe.optim_of(policy_id),
        temperature=recipe.sampling_of(policy_id).temperature,
        clip=Clip.of(recipe.objective_of(policy_id).build()),
    )


def _sampling(settings: Any) -> Sampling:
    return Sampling(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)


def _collection_metrics(rollout: Rollout, experience: Experience) -> dict[str, float]:
    return {
        "rollout/num_failed_episodes": float(len(rollout.failed)),
        "rollout/num_expired_episodes": float(sum(failed.is_expired for failed in rollout.failed)),
        "rollout/num_surplus_episodes": float(rollout.num_surplus),
        "rollout/num_stragglers": float(rollout.num_stragglers),
        "rollout/num_incomplete_events": float(experience.dropped["incomplete"]),
        "train/num_overlong_events": float(experience.dropped["overlong"]),
        "train/num_uniform_events": float(experience.dropped["uniform"]),
    }


def _clock_metrics(rollout: Rollout, update: Values, *, step_s: float, update_s: float) -> dict[str, float]:
    num_tokens = sum(episode.num_tokens for episode in rollout.episodes)
    return {
        "time/generate_s": rollout.generate_s,
        "time/env_s": rollout.env_s,
        "time/update_s": update_s,
        "time/step_s": step_s,
        "perf/tokens_per_s": num_tokens / max(rollout.generate_s, 1e-9),
        "perf/train_tokens_per_s": update.get("train/num_tokens", 0.0) / max(update_s, 1e-9),
        "perf/episodes_per_s": len(rollout.episodes) / step_s,
        **({"perf/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {}),
    }
