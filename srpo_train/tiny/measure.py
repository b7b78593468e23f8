"""Measured rates of a policy on held-out questions: what it earns, how often each role keeps to its format."""

from __future__ import annotations

import srpo_envs
from srpo_train.collect import Collector
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.evaluation import evaluate
from srpo_train.policies.policy import Policy
from srpo_train.tiny.curriculum import Curriculum, Measurement
from srpo_train.tiny.experts import HabitsT


def measure_policy(
    policy: Policy, curriculum: Curriculum[HabitsT], num_tasks: int, seed: int
) -> dict[str, dict[str, float]]:
    """Play held-out questions and return rates by measurement.

    Args:
        policy: Plays every role.
        curriculum: What is measured.
        num_tasks: Questions of each measurement, one episode each.
        seed: Decides the sampled tokens.

    Returns:
        For each name of the curriculum's measurements: ``reward`` (mean team reward), ``tokens`` (mean per episode),
        ``valid/<role>`` (share of responses that keep to the format) and the curriculum's own rates. A role that never
        acted, such as a solver no valid route ever chose, has no rates.
    """
    return {name: measure(policy, curriculum, name, num_tasks, seed) for name in curriculum.measurements}


def measure(policy: Policy, curriculum: Curriculum[HabitsT], name: str, num_tasks: int, seed: int) -> dict[str, float]:
    """Return the rates of one measurement, see `measure_policy`."""
    how = curriculum.measurements[name]
    engines = {policy.policy_id: TransformersEngine(policy)}
    collector = Collector(lambda: make_held_out(how, num_tasks), engines, {"*": policy.policy_id}, seed=seed)
    try:
        result = evaluate(
            collector,
            num_tasks=num_tasks,
            samples_per_task=1,
            sampling=Sampling(temperature=how.temperature),
            seed=seed,
        )
    finally:
        collector.close()
    rates = {
        "reward": result.metrics["eval/reward_mean"],
        "tokens": result.metrics["eval/num_tokens"] / result.metrics["eval/num_episodes"],
        **curriculum.rates(result.episodes),
    }
    prefix = "eval/valid_rate/"
    rates |= {f"valid/{key[len(prefix) :]}": value for key, value in result.metrics.items() if key.startswith(prefix)}
    return {key: round(value, 4) for key, value in rates.items()}


def make_held_out(how: Measurement, num_tasks: int) -> srpo_envs.SetEnv:
    """Return the environment of a measurement, over questions nobody trains on."""
    return srpo_envs.make(how.env_id, split="test", size=num_tasks, **how.kwargs)
