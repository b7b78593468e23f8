"""Episodes of a world of ours, sampled by the model that TRL trains: TRL's ``rollout_func``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError, EngineError
from srpo_envs.records import Episode, MemberRecord
from srpo_train.collect import Collector, EpisodeJob, derive_seed
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

POLICY_ID = "policy"
"""TRL trains one model, so one policy plays every role."""

_SAMPLING: Mapping[str, object] = {"min_p": None, "repetition_penalty": 1.0, "use_vllm": False}
"""TRL's settings of sampling that our engine does not have, with the only value they can take."""


def team_return(team_return: list[float], **_: Any) -> list[float]:
    """TRL's reward function for `EnvRollouts`: the return of the episode, as its environment gave it."""
    return team_return


class EnvRollouts:
    """Plays episodes of a world with the model TRL trains, and is TRL's ``rollout_func``.

    Args:
        make_env: Makes one environment; called once per concurrent episode, the environments are then reused.
        num_tasks: The first so many tasks are trained on; None takes all.
        seed: Decides, with each episode's id, every sampled token.
        chat_template_kwargs: Variables given to the chat template.

    Example:
        ``GRPOTrainer(model, team_return, args, rollouts.dataset, rollout_func=rollouts)``
    """

    def __init__(
        self,
        make_env: Callable[[], SetEnv],
        *,
        num_tasks: int | None = None,
        seed: int = 0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._make_env = make_env
        self._seed = seed
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        self._task_of = _read_prompts(make_env(), num_tasks)
        self._policy: Policy | None = None
        self._collector: Collector | None = None

    @property
    def dataset(self) -> Dataset:
        """One row for each task; its ``prompt`` is the text the episode begins with."""
        from datasets import Dataset

        return Dataset.from_dict({"prompt": list(self._task_of)})

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return one sampled completion for each prompt, as TRL's ``rollout_func`` does.

        Raises:
            ConfigError: an episode has more than one event or an event more than one member.
            EngineError: an episode did not come through.
        """
        episodes = self.episodes(prompts, trainer)
        if len(episodes) < len(prompts):
            raise EngineError(
                f"{len(prompts) - len(episodes)} of {len(prompts)} episodes did not come through, and TRL needs a "
                "completion for every prompt; see the log for their reasons"
            )
        members = [_only_member(episode) for episode in episodes]
        return {
            "prompt_ids": [list(member.prompt_token_ids) for member in members],
            "completion_ids": [list(member.token_ids) for member in members],
            "logprobs": [list(member.behavior_logprobs) for member in members],
            "env_mask": [list(member.token_mask) for member in members],
            "team_return": [episode.events[0].team_return for episode in episodes],
        }

    def episodes(self, prompts: Sequence[str], trainer: GRPOTrainer) -> tuple[Episode, ...]:
        """Play one episode for each prompt, in order; equal prompts make one rollout group.

        Raises:
            ConfigError: TRL is to sample in a way our engine does not.
            NoEpisodeError: not one episode came through.
        """
        refuse(trainer.args, _SAMPLING)
        policy, collector = self._bind(trainer)
        policy.version = trainer.state.global_step
        first = trainer.accelerator.process_index * len(prompts)
        jobs = [self._job(prompt, policy.version, first + place) for place, prompt in enumerate(prompts)]
        sampling = Sampling(temperature=trainer.temperature, top_p=trainer.top_p, top_k=trainer.top_k or 0)
        return collector.collect(jobs, sampling).episodes

    def close(self) -> None:
        """Release environments and worker threads; safe to call more than once."""
        if self._collector is not None:
            self._collector.close()

    def _job(self, prompt: str, step: int, place: int) -> EpisodeJob:
        task_index = self._task_of[prompt]
        group_id = f"step{step}/task{task_index}"
        return EpisodeJob(
            episode_id=f"{group_id}/{place}",
            group_id=group_id,
            task_index=task_index,
            env_seed=derive_seed(self._seed, "env", group_id),
        )

    def _bind(self, trainer: GRPOTrainer) -> tuple[Policy, Collector]:
        """Return policy and collector over the trainer's own model, so that there are no weights to push."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._policy is None or self._collector is None or self._policy.model is not model:
            self.close()
            with _same_mode(model):
                self._policy = Policy(
                    policy_id=POLICY_ID,
                    model=model,
                    tokenizer=trainer.processing_class,
                    chat_template_kwargs=self._chat_template_kwargs,
                )
            engines = {POLICY_ID: TransformersEngine(self._policy)}
            self._collector = Collector(self._make_env, engines, {"*": POLICY_ID}, seed=self._seed)
        return self._policy, self._collector


def refuse(args: GRPOConfig, expected: Mapping[str, object]) -> None:
    """Check that settings which would have no effect are left alone.

    Args:
        args: TRL's configuration.
        expected: The only value of each.

    Raises:
        ConfigError: one is set to something else.
    """
    for name, value in expected.items():
        if getattr(args, name) != value:
            raise ConfigError(
                f"GRPOConfig.{name}: expected {value!r}, got {getattr(args, name)!r}; it would have no effect here"
            )


def _read_prompts(env: SetEnv, num_tasks: int | None) -> dict[str, int]:
    """Return the task index of each text an episode may begin with; of equal texts the first task's."""
    task_of: dict[str, int] = {}
    count = env.tasks.num_tasks if num_tasks is None else num_tasks
    for index in range(count):
        active = env.reset(seed=0, options={"task_index": index})
        task_of.setdefault(active.members[0].prompt, index)
    env.close()
    return task_of


def _only_member(episode: Episode) -> MemberRecord:
    if len(episode.events) != 1 or episode.events[0].cardinality != 1:
        cardinalities = [event.cardinality for event in episode.events]
        raise ConfigError(
            f"episode {episode.episode_id!r} has events of cardinality {cardinalities}; TRL's GRPOTrainer knows one "
            "completion for each prompt, so train it with SrpoTrainer"
        )
    return episode.events[0].members[0]


@contextmanager
def _same_mode(model: torch.nn.Module) -> Iterator[None]:
    """Give the model back in the mode it came in: TRL reads from it whether it trains."""
    was_training = model.training
    try:
        yield
    finally:
        model.train(was_training)
