"""`check_set_env` finds each kind of breach, and says what it could not see."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time

import pytest

from srpo_envs.checks import check_set_env
from srpo_envs.core import SetEnv
from srpo_envs.errors import BudgetExhaustedError, ConformanceError
from srpo_envs.parsing import Malformed, Parsed, parse_boxed_answer
from srpo_envs.records import MemberOutput
from srpo_envs.schedule import Role
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.tasks.base import Task


class Debate(SetEnv):
    """A world without a fault: two debaters, one judge. The faulty ones below differ from it in one thing."""

    def __init__(self, parse=parse_boxed_answer, tasks=None, **limits):
        roles = (
            Role("debater", prompt="$question\n$hint", parse=parse_boxed_answer, seats=2),
            Role("judge", prompt="$question$drafts", parse=parse),
        )
        super().__init__(tasks or Arithmetic(), roles, **limits)

    def schedule(self, task):
        drafts = yield self.ask("debater", count=2, hint=self.hint())
        (final,) = yield self.ask("judge", drafts=drafts)
        return self.outcome(final)

    def hint(self):
        return f"Round {self.rng.integers(100)}."


class GlobalRandom(Debate):
    def hint(self):
        return f"Round {random.random()}."


class SharedCounter(Debate):
    rounds = itertools.count()

    def hint(self):
        return f"Round {next(self.rounds)}."


class Clock(Debate):
    def hint(self):
        return f"Round {time.perf_counter_ns()}."


class AlwaysTheSame(Debate):
    def reset(self, seed=None, options=None):
        return super().reset(0, options)


class ArrivalOrder(Debate):
    def step(self, outputs):
        return super().step([dataclasses.replace(out, member_index=index) for index, out in enumerate(outputs)])


class FillsGaps(Debate):
    def step(self, outputs):
        given = {out.member_index: out for out in outputs}
        active = self.pending
        return super().step(
            [
                given.get(index) or MemberOutput(event_id=active.event_id, member_index=index, text="")
                for index in range(active.cardinality if active else 0)
            ]
        )


class Repairs(Debate):
    def step(self, outputs):
        return super().step([dataclasses.replace(out, text=out.text or "\\boxed{0}") for out in outputs])


class Forgives(Debate):
    def step(self, outputs):
        result = super().step(outputs)
        return dataclasses.replace(result, event=dataclasses.replace(result.event, penalty=0.0))


class OddNames(Debate):
    @property
    def possible_agents(self):
        return ["Debater", *super().possible_agents]


class TooManyReturns(Debate):
    @property
    def episode(self):
        record = super().episode
        doubled = [dataclasses.replace(item, team_return=(item.team_return or 0.0) + 1) for item in record.events]
        return dataclasses.replace(record, events=tuple(doubled))


class WrongGolds(Arithmetic):
    def task(self, index):
        task = super().task(index)
        return Task(task.task_id, task.question, task.gold, task.info)

    def grade(self, task, answer):
        return 0.0


def stumbles(text):
    return Parsed(int(text)) if text else Malformed("empty")  # raises on anything that is no number


class Stumbles(Debate):
    def schedule(self, task):
        drafts = yield self.ask("debater", count=2, hint=self.hint())
        try:
            (final,) = yield self.ask("judge", drafts=drafts)
        except BudgetExhaustedError as error:
            raise RuntimeError("never thought of that") from error
        return self.outcome(final)


BREACHES = {
    "global random state": (GlobalRandom, "The same seed gives the same episodes"),
    "global state moved": (GlobalRandom, "Global random state is left as it was"),
    "shared state": (SharedCounter, "Two environments stepped in turn do not disturb each other"),
    "time": (Clock, "A fresh environment replays every episode"),
    "same episode": (AlwaysTheSame, "A reset without a seed starts another episode"),
    "arrival order": (ArrivalOrder, "The order in which outputs arrive changes nothing"),
    "missing members": (FillsGaps, "Misuse raises and leaves the pending event as it was"),
    "repaired text": (Repairs, "Any text is taken, recorded unchanged"),
    "no penalty": (Forgives, "penalised where it is malformed"),
    "agent names": (OddNames, "Agent names are role_number"),
    "returns": (TooManyReturns, "team returns are the sums of later rewards"),
    "golds": (lambda: Debate(tasks=WrongGolds()), "Every gold answer grades as 1.0"),
    "budget": (Stumbles, "With a budget of one less than it used"),
    "parser": (lambda: Debate(parse=stumbles), "Any text is taken"),
}


def test_a_sound_world_passes():
    report = check_set_env(Debate)
    assert report.name == "Debate"
    assert report.failures == ()
    assert len(report.passed) == 18


@pytest.mark.parametrize("breach", BREACHES)
def test_each_kind_of_breach_is_found(breach):
    make_env, title = BREACHES[breach]
    with pytest.raises(ConformanceError) as caught:
        check_set_env(make_env)
    failures = [line for line in str(caught.value).splitlines() if "FAIL" in line]
    assert any(title in line for line in failures), str(caught.value)


def test_every_breach_is_reported_at_once():
    with pytest.raises(ConformanceError) as caught:
        check_set_env(lambda: OddNames(tasks=WrongGolds()))
    assert "Agent names" in str(caught.value)
    assert "gold answer" in str(caught.value)


def test_what_was_not_reached_is_said():
    report = check_set_env(lambda: Debate(parse=lambda text: Malformed("never")))
    assert any("role 'judge': no text was valid" in line for line in report.not_checked)
    assert any("truncation" in line for line in report.not_checked)


def test_a_parser_that_takes_everything_is_said():
    report = check_set_env(lambda: Debate(parse=Parsed))
    assert any("role 'judge': its parser accepted every hostile text" in line for line in report.not_checked)


def test_a_policy_reaches_what_the_default_cannot():
    def parse(text):
        return Parsed(text) if text.startswith("verdict:") else Malformed("no verdict")

    def speak(member, rng):
        return f"verdict: {rng.integers(10)}" if member.role == "judge" else "\\boxed{1}"

    blind = check_set_env(lambda: Debate(parse=parse))
    told = check_set_env(lambda: Debate(parse=parse), policy=speak)
    assert any("role 'judge': no text was valid" in line for line in blind.not_checked)
    assert not any("role 'judge': no text was valid" in line for line in told.not_checked)


def test_the_checks_leave_global_random_state_alone():
    before = random.getstate()
    check_set_env(Debate, num_episodes=2)
    assert random.getstate() == before


def test_the_report_prints_one_line_per_rule():
    lines = str(check_set_env(Debate, num_episodes=2)).splitlines()
    assert lines[0] == "Debate: 18 rules hold, 0 breaches"
    assert sum(line.startswith("  ok ") for line in lines) == 18


def test_at_least_one_episode_is_needed():
    with pytest.raises(ValueError, match="num_episodes"):
        check_set_env(Debate, num_episodes=0)
