"""`check_set_env`: the set-valued environment contract as a callable that users run on their own environments.

Example::

    report = srpo_envs.check_set_env(lambda: Debate(Arithmetic()))
    print(report)          # what holds, and what could not be checked
"""

from __future__ import annotations

from dataclasses import dataclass

from srpo_envs.conformance import RULES, Rule
from srpo_envs.core import SetEnvFactory
from srpo_envs.errors import ConformanceError
from srpo_envs.probing import Probe, TextPolicy, counting, default_policy


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What `check_set_env` found.

    Example:
        ``print(report)`` gives one line per rule: ``ok``, ``FAIL`` or ``not checked``.
    """

    name: str
    """Registered id or class of the environment."""
    passed: tuple[str, ...]
    """Rules that hold."""
    failures: tuple[str, ...]
    """One line per breach, with its remedy."""
    not_checked: tuple[str, ...]
    """What exploration did not reach, so that nothing is known about it."""

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.passed)} rules hold, {len(self.failures)} breaches"]
        lines += [f"  ok           {line}" for line in self.passed]
        lines += [f"  FAIL         {line}" for line in self.failures]
        lines += [f"  not checked  {line}" for line in self.not_checked]
        return "\n".join(lines)


def check_set_env(
    make_env: SetEnvFactory, *, num_episodes: int = 8, seed: int = 0, policy: TextPolicy | None = None
) -> ConformanceReport:
    """Check an environment against the contract of `SetEnv`.

    Args:
        make_env: Returns a fresh environment each time; ``functools.partial(srpo_envs.make, id)`` for a registered one.
            Where its budget limits tokens and it counts none itself, every text is taken for one.
        num_episodes: Episodes to explore.
        seed: Seed of the episodes and of the policy.
        policy: ``policy(member, rng) -> str`` for worlds whose formats the default mixture (boxed answers and verdicts,
            tags, subtasks, hostile and random text) cannot speak.

    Returns:
        A report of the rules that hold and of what could not be checked.

    Raises:
        ConformanceError: a rule is broken; the message is the whole report, every breach with its remedy.
        ValueError: `num_episodes` is below 1.
    """
    if num_episodes < 1:
        raise ValueError(f"num_episodes must be at least 1, got {num_episodes}")
    probe = Probe(lambda: counting(make_env()), num_episodes, seed, policy or default_policy)
    env = make_env()
    breaches = {_title(rule): _breaches(rule, probe) for rule in RULES}
    report = ConformanceReport(
        name=env.env_id or type(env).__name__,
        passed=tuple(title for title, found in breaches.items() if not found),
        failures=tuple(f"{title}: {line}" for title, found in breaches.items() for line in found),
        not_checked=tuple(dict.fromkeys(probe.notes)),
    )
    if report.failures:
        raise ConformanceError(str(report))
    return report


def _breaches(rule: Rule, probe: Probe) -> list[str]:
    """Run one rule; an exception is a breach too, so that the others still report."""
    try:
        return list(rule(probe))
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]


def _title(rule: Rule) -> str:
    return (rule.__doc__ or rule.__name__).splitlines()[0].rstrip(".")
