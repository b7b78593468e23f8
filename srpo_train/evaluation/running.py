"""Evaluation in memory: k samples of every task of one environment, scored at once."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode
from srpo_train.collect import Collector, Collects, EpisodeJob, Rollout, derive_seed
from srpo_train.costs import Cost, clocks, episode_cost, summarize_costs, token_utility
from srpo_train.engines.agent import Agent, AgentEngine
from srpo_train.engines.base import Engine, Sampling
from srpo_train.roles import ANY_ROLE
from srpo_train.summary import is_correct, summarize


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of one evaluation and the episodes behind them."""

    metrics: dict[str, float]
    """``eval/...`` values for logs and reports."""
    episodes: tuple[Episode, ...]
    """Every finished episode, task by task."""
    rollout: Rollout
    """What was collected, failures included."""


def evaluate(
    collector: Collects,
    *,
    num_tasks: int,
    samples_per_task: int,
    sampling: Sampling,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Sample every task k times and score the answers.

    The same tasks, samples and seeds are used at every call, so that two evaluations of one run differ by the weights
    alone. An episode lost to broken surroundings says nothing about the policy: it is left out and counted. One that
    the team itself brought beyond the model's context is wrong: leaving it out would reward long-windedness.

    Args:
        collector: Drives the evaluation environment.
        num_tasks: The first so many tasks of the environment.
        samples_per_task: k.
        sampling: How tokens are drawn.
        seed: Another seed draws other samples.
        on_progress: Called with (episodes done, episodes in all).
    """
    jobs = [
        EpisodeJob(
            episode_id=f"eval-{seed}/t{task}/k{sample}",
            group_id=f"eval-{seed}/t{task}",
            task_index=task,
            env_seed=derive_seed("eval", seed, task),
        )
        for task in range(num_tasks)
        for sample in range(samples_per_task)
    ]
    rollout = collector.collect(jobs, sampling, on_progress)
    unanswered = [failed.job.group_id for failed in rollout.failed if failed.is_unanswerable]
    scores = summarize(rollout.episodes, "eval") | score_samples(rollout.episodes, unanswered)
    scores |= {f"time/eval_{name}": value for name, value in clocks(summarize_costs(rollout.episodes)).items()}
    scores["eval/num_failed_episodes"] = float(len(rollout.failed))
    return Evaluation(metrics=scores, episodes=rollout.episodes, rollout=rollout)


def evaluate_agent(
    agent: Agent | Engine | Mapping[str, Agent | Engine],
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    num_tasks: int = 64,
    samples_per_task: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
    max_concurrent: int = 8,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Let anyone's agent play an environment and score it as policies are scored.

    Args:
        agent: A function from a `Member` to its answer (a text, or an `AgentReply` that also counts tokens), an engine,
            or one of these for each role, with ``"*"`` for all others.
        env_id: Id of the environment.
        env_kwargs: Its arguments, such as ``{"split": "test"}``.
        num_tasks: The first so many tasks of the environment.
        samples_per_task: k.
        sampling: How engines draw tokens; from the policy itself when left out. Functions do as they like.
        seed: Another seed draws other samples.
        max_concurrent: Calls of a function that may run at once; 1 for one that is not thread-safe.
        on_progress: Called with (episodes done, episodes in all).

    Raises:
        ConfigError: the environment has fewer tasks, an argument is wrong, or a role has no agent.
        NoEpisodeError: not one episode came through; carries the first reason.

    Example:
        ``evaluate_agent(lambda member: my_graph.invoke(member.prompt), "ArithmeticSolverVerifier-v0").metrics``
    """
    make_env = functools.partial(srpo_envs.make, env_id, **(env_kwargs or {}))
    require_tasks(make_env(), num_tasks)
    engines, roles = _cast(agent if isinstance(agent, Mapping) else {ANY_ROLE: agent}, max_concurrent)
    collector = Collector(make_env, engines, roles, seed=seed)
    try:
        return evaluate(
            collector,
            num_tasks=num_tasks,
            samples_per_task=samples_per_task,
            sampling=sampling or Sampling(),
            seed=seed,
            on_progress=on_progress,
        )
    finally:
        collector.close()


def _cast(agents: Mapping[str, Agent | Engine], max_concurrent: int) -> tuple[dict[str, Engine], dict[str, str]]:
    """Return engine by policy id and policy id by role; a function is named after its role."""
    engines: dict[str, Engine] = {}
    roles: dict[str, str] = {}
    for role, agent in agents.items():
        if hasattr(agent, "generate"):
            engine = cast(Engine, agent)
        else:
            name = "agent" if role == ANY_ROLE else role
            engine = AgentEngine(name, agent, max_concurrent=max_concurrent)
        if engines.setdefault(engine.policy_id, engine) is not engine:
            raise ConfigError(f"role {role!r}: another agent is called {engine.policy_id!r} too; rename one of them")
        roles[role] = engine.policy_id
    return engines, roles


def require_tasks(env: SetEnv, num_tasks: int) -> None:
    """Check that an environment has as many tasks as are to be evaluated.

    Raises:
        ConfigError: it has fewer.
    """
    if num_tasks > env.tasks.num_tasks:
        raise ConfigError(
            f"{num_tasks} tasks to evaluate, but {env.tasks.name!r} has {env.tasks.num_tasks}; ask for at most that"
        )


def score_samples(episodes: Sequence[Episode], unanswered: Sequence[str] = ()) -> dict[str, float]:
    """Return accuracy, Avg@k, Pass@k and the token-normalised utility (eq. 9) of episodes grouped by task.

    Avg@k is the mean over tasks of the share of correct samples, Pass@k the share of tasks with at least one. Where
    not all tokens are counted there is no utility.

    Args:
        episodes: Finished samples.
        unanswered: Group of each further sample in which no answer could be given; wrong.
    """
    by_task: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.group_id].append(is_correct(episode))
    for group_id in unanswered:
        by_task[group_id].append(False)
    if not by_task:
        return {}
    shares = {task: sum(samples) / len(samples) for task, samples in by_task.items()}
    correct, num_samples = sum(map(sum, by_task.values())), sum(map(len, by_task.values()))
    costs: dict[str, list[Cost]] = {task: [] for task in by_task}
    for episode in episodes:
        costs[episode.group_id].append(episode_cost(episode))
    utility = token_utility(shares, costs)
    return {
        "eval/accuracy": correct / num_samples,
        "eval/avg_at_k": sum(shares.values()) / len(shares),
        "eval/pass_at_k": sum(share > 0 for share in shares.values()) / len(shares),
        **({} if utility is None else {"eval/utility": utility}),
    }
