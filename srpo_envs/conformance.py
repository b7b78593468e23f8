"""The rules of the set-valued environment contract, one function each.

A rule takes a `Probe` and yields one line per breach: what was expected, what came, and the remedy. The first line of
its docstring is the line a report shows when the rule holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from srpo_envs.budget import LIMITS, Budget, Usage
from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError, EnvMisuseError, MemberMismatchError, StaleEventError
from srpo_envs.probing import HOSTILE_TEXTS, Probe, Trace, counting
from srpo_envs.records import ActiveSet, Episode, Event, read_episodes, write_episodes

Rule = Callable[[Probe], Iterator[str]]

_AGENT_NAME = re.compile(r"[a-z]+_[0-9]+\Z")


# --- what is announced --------------------------------------------------------------------------------------------


def agents_are_named(probe: Probe) -> Iterator[str]:
    """Agent names are role_number, distinct, and cover every member."""
    agents = probe.make_env().possible_agents
    for agent in agents:
        if not _AGENT_NAME.match(agent):
            yield f"agent {agent!r}: expected lower-case letters, an underscore and a number; rename the role"
    if len(set(agents)) != len(agents):
        yield f"possible_agents {agents} holds a name twice; give each seat its own"
    for trace in probe.traces:
        for active in trace.sets:
            if stranger := sorted({member.agent for member in active.members} - set(agents)):
                yield f"event {active.event_id!r}: asks {stranger}, not in possible_agents; raise Role.seats"


def sets_are_well_formed(probe: Probe) -> Iterator[str]:
    """Member indices are 0..K-1, agents of a set distinct, ids unique within the episode."""
    for trace in probe.traces:
        for active in trace.sets:
            indices = [member.index for member in active.members]
            if indices != list(range(active.cardinality)) or not indices:
                yield f"event {active.event_id!r}: member indices {indices}; expected 0..K-1 with K >= 1"
            if len({member.agent for member in active.members}) != active.cardinality:
                yield f"event {active.event_id!r}: an agent is asked twice in one set; ask another seat"
        for name in ("event_id", "state_id"):
            ids = [getattr(active, name) for active in trace.sets]
            if len(set(ids)) != len(ids):
                yield f"episode {trace.episode.episode_id!r}: {name} repeats; it must name one event"


def events_match_their_sets(probe: Probe) -> Iterator[str]:
    """Every event records exactly the set that was announced."""
    for trace in probe.traces:
        for active, result in zip(trace.sets, trace.results, strict=True):
            event = result.event
            for name in ("event_id", "state_id", "event_type", "turn", "cardinality", "task_id"):
                if getattr(event, name) != getattr(active, name):
                    yield (
                        f"event {event.event_id!r}: {name} was announced as {getattr(active, name)!r}, recorded as "
                        f"{getattr(event, name)!r}"
                    )
            asked = [(member.index, member.agent, member.role, member.prompt) for member in active.members]
            recorded = [(member.member_index, member.agent, member.role, member.prompt) for member in event.members]
            if asked != recorded:
                yield f"event {event.event_id!r}: records other seats or prompts than were announced"


# --- determinism --------------------------------------------------------------------------------------------------


def seeds_decide(probe: Probe) -> Iterator[str]:
    """The same seed gives the same episodes, whatever the global random state."""
    for trace in probe.traces[:1]:
        with _scrambled_globals(probe.seed + 1):
            again = probe.play(probe.make_env(), probe.seed, 0)
        if difference := _first_difference(trace, again):
            yield f"reset(seed={probe.seed}) twice: {difference}; draw from self.rng, never from random or numpy.random"


def global_state_is_untouched(probe: Probe) -> Iterator[str]:
    """Global random state is left as it was."""
    before = (random.getstate(), repr(np.random.get_state()))
    probe.play(probe.make_env(), probe.seed, 0)
    if (random.getstate(), repr(np.random.get_state())) != before:
        yield "playing an episode moved the state of random or numpy.random; draw from self.rng"


def resets_go_on(probe: Probe) -> Iterator[str]:
    """A reset without a seed starts another episode."""
    ids = [trace.episode.episode_id for trace in probe.traces]
    if repeated := [name for name, count in Counter(ids).items() if count > 1]:
        yield f"episode {repeated[0]!r} came again after reset() without a seed; do not re-seed in reset"


def environments_are_independent(probe: Probe) -> Iterator[str]:
    """Two environments stepped in turn do not disturb each other."""
    walks = [probe.walk(probe.make_env(), probe.seed, 0), probe.walk(probe.make_env(), probe.seed + 1, 1)]
    last: list[Trace | None] = [None, None]
    for traces in itertools.zip_longest(*walks):
        last = [new or old for new, old in zip(traces, last, strict=True)]
    if last[0] and (difference := _first_difference(probe.traces[0], last[0])):
        yield f"interleaved with another environment: {difference}; keep no state on the class or module"


def member_order_is_free(probe: Probe) -> Iterator[str]:
    """The order in which outputs arrive changes nothing."""
    trace = next((trace for trace in probe.traces if any(active.cardinality > 1 for active in trace.sets)), None)
    if trace is None:
        probe.notes.append("member order: no set with K > 1 was reached")
        return
    env = probe.make_env()
    env.reset(seed=probe.seed)
    for event in _resumed(env, trace.episode):
        active = _pending(env)
        env.step(reversed(active.outputs([member.text for member in event.members])))
    if _without_timings(env.episode) != _without_timings(trace.episode):
        yield f"episode {trace.episode.episode_id!r}: outputs in reverse order gave another episode; order by index"


# --- misuse -------------------------------------------------------------------------------------------------------


def misuse_raises(probe: Probe) -> Iterator[str]:
    """Misuse raises and leaves the pending event as it was."""
    env = probe.make_env()
    yield from _refuses(lambda: env.step([]), EnvMisuseError, "step before reset")
    active = env.reset(seed=probe.seed)
    good = active.outputs(["x"] * active.cardinality)
    stranger = dataclasses.replace(good[0], member_index=active.cardinality)
    stale = dataclasses.replace(good[0], event_id=active.event_id + "-stale")
    yield from _refuses(lambda: env.step(good[1:]), MemberMismatchError, "a missing member")
    yield from _refuses(lambda: env.step([*good, stranger]), MemberMismatchError, "an unknown member")
    yield from _refuses(lambda: env.step([*good, good[0]]), MemberMismatchError, "a member answered twice")
    yield from _refuses(lambda: env.step([stale, *good[1:]]), StaleEventError, "a stale event id")
    yield from _refuses(lambda: env.reset(options={"no_such_option": 1}), EnvMisuseError, "an unknown reset option")
    if env.pending != active:
        yield "the pending event changed although every step was refused; check outputs before consuming them"
    else:
        env.step(good)


def steps_after_the_end_raise(probe: Probe) -> Iterator[str]:
    """A step after the end raises, and closing twice is safe."""
    env = probe.make_env()
    trace = probe.play(env, probe.seed, 0)
    last = trace.sets[-1]
    outputs = last.outputs(["x"] * last.cardinality)
    yield from _refuses(lambda: env.step(outputs), EnvMisuseError, "a step after the end")
    env.close()
    env.close()


# --- text is data -------------------------------------------------------------------------------------------------


def hostile_text_is_data(probe: Probe) -> Iterator[str]:
    """Any text is taken, recorded unchanged, and penalised where it is malformed."""
    for role, (episode, index) in probe.first_events_by_role().items():
        env = probe.make_env()
        num_malformed = 0
        for text in HOSTILE_TEXTS:
            active = env.resume(episode, index)
            event = env.step(active.outputs([text] * active.cardinality)).event if active else None
            if event is None:
                yield f"role {role!r}: event {index} of {episode.episode_id!r} cannot be reached again"
                break
            num_malformed += sum(not member.is_valid for member in event.members)
            yield from _breaches_of_text(env, event, text)
        if not num_malformed:
            probe.notes.append(f"malformed text of role {role!r}: its parser accepted every hostile text")


def roles_are_reached(probe: Probe) -> Iterator[str]:
    """Exploration reached every role with valid and with malformed text."""
    seen = Counter(
        (record.role, record.is_valid)
        for trace in probe.traces
        for result in trace.results
        for record in result.event.members
    )
    for role in probe.make_env().roles:
        if not (seen[role, True] or seen[role, False]):
            probe.notes.append(f"role {role!r}: never reached; raise num_episodes or give a policy that gets there")
        elif not seen[role, True]:
            probe.notes.append(
                f"role {role!r}: no text was valid, so what follows a valid reply was not seen; give a policy"
            )
    yield from ()


# --- the record ---------------------------------------------------------------------------------------------------


def episodes_round_trip(probe: Probe) -> Iterator[str]:
    """Episodes survive JSON Lines unchanged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        write_episodes(path, [trace.episode for trace in probe.traces])
        for trace, back in zip(probe.traces, read_episodes(path), strict=True):
            if back != trace.episode:
                yield f"episode {back.episode_id!r} changed in a JSON round trip; parse and call tools to JSON values"


def episodes_replay(probe: Probe) -> Iterator[str]:
    """A fresh environment replays every episode, and every event can be branched from."""
    for trace in probe.traces:
        env = probe.make_env()
        env.resume(trace.episode)
        if env.episode != trace.episode:
            yield f"episode {trace.episode.episode_id!r} replays differently; use self.rng and self.call_tool only"
    for index, active in enumerate(probe.traces[0].sets):
        if env.resume(probe.traces[0].episode, index) != active:
            yield f"event {active.event_id!r}: a branch from here announces another set"


def returns_are_sums(probe: Probe) -> Iterator[str]:
    """Rewards are finite and team returns are the sums of later rewards."""
    for trace in probe.traces:
        episode = trace.episode
        rewards = [event.reward for event in episode.events]
        if not all(math.isfinite(reward) for reward in rewards):
            yield f"episode {episode.episode_id!r}: rewards {rewards}; expected finite numbers"
            continue
        if trace.is_over and not math.isclose(sum(rewards), episode.reward - episode.penalty, abs_tol=1e-9):
            yield (
                f"episode {episode.episode_id!r}: rewards sum to {sum(rewards)}, team reward less penalties is "
                f"{episode.reward - episode.penalty}"
            )
        for index, event in enumerate(episode.events if trace.is_over else ()):
            later = sum(rewards[index:])
            if event.team_return is None or not math.isclose(event.team_return, later, abs_tol=1e-9):
                yield f"event {event.event_id!r}: team_return {event.team_return}, later rewards sum to {later}"


def episodes_end(probe: Probe) -> Iterator[str]:
    """Every episode ends within max_events, terminated or truncated but not both, at its last event."""
    for trace in probe.traces:
        where = f"episode {trace.episode.episode_id!r}"
        if not trace.is_over:
            yield f"{where}: not over after max_events events"
            continue
        endings = [(result.terminated, result.truncated) for result in trace.results]
        if any(terminated or truncated for terminated, truncated in endings[:-1]):
            yield f"{where}: an event before the last says the episode is over"
        if endings[-1][0] == endings[-1][1]:
            yield f"{where}: terminated={endings[-1][0]} and truncated={endings[-1][1]}; exactly one must hold"
        if endings[-1][1] and trace.episode.info.get("correct"):
            yield f"{where}: truncated, yet reported as correct; return self.truncate()"
    if not any(trace.episode.truncated for trace in probe.traces):
        probe.notes.append("truncation: no explored episode was truncated")


def budgets_are_kept(probe: Probe) -> Iterator[str]:
    """With a budget of one less than it used, an episode ends within that, and replays."""
    used = Usage.of(probe.traces[0].episode)
    used = dataclasses.replace(used, team_tokens=used.calls)  # every text counts as one token here
    unseen: list[str] = []
    for name in LIMITS:
        env = counting(probe.make_env())
        try:
            env.budget = Budget.of({name: max(getattr(used, name) - 1, 0)})
            trace = probe.play(env, probe.seed, 0)
        except ConfigError:  # no room for the first set
            unseen.append(name)
            continue
        spent = Usage.of(trace.episode)
        if env.budget.exceeded_by(spent) or not trace.is_over:
            yield f"episode {trace.episode.episode_id!r}: spent {spent} of {env.budget}, over: {trace.is_over}"
        env.resume(trace.episode)
        if env.episode != trace.episode:
            yield f"episode {trace.episode.episode_id!r}: replays differently under {env.budget}"
    if unseen:
        probe.notes.append(f"budgets of {', '.join(unseen)}: the explored episode spends too little to try one")


def gold_answers_score_one(probe: Probe) -> Iterator[str]:
    """Every gold answer grades as 1.0."""
    tasks = probe.make_env().tasks
    for index in range(min(tasks.num_tasks, probe.num_episodes)):
        task = tasks.task(index)
        golds = task.gold if isinstance(task.gold, tuple) else (task.gold,)
        if not all(isinstance(gold, str) for gold in golds):
            probe.notes.append(f"gold answers: a gold such as {task.gold!r:.80} cannot be given as an answer")
            return
        for gold in golds:
            if (score := tasks.grade(task, gold)) != 1.0:
                yield f"task {task.task_id!r}: its gold answer {gold!r} grades as {score}; mend the task or the grader"


RULES: tuple[Rule, ...] = (
    agents_are_named,
    sets_are_well_formed,
    events_match_their_sets,
    seeds_decide,
    global_state_is_untouched,
    resets_go_on,
    environments_are_independent,
    member_order_is_free,
    misuse_raises,
    steps_after_the_end_raise,
    roles_are_reached,
    hostile_text_is_data,
    episodes_round_trip,
    episodes_replay,
    returns_are_sums,
    episodes_end,
    budgets_are_kept,
    gold_answers_score_one,
)
"""Every rule, in the order a report shows them."""


# --- helpers ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _scrambled_globals(seed: int) -> Iterator[None]:
    """Put the global generators into another state, and back afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _first_difference(expected: Trace, got: Trace) -> str:
    """Say where two traces part, or return an empty string."""
    for index, (one, other) in enumerate(zip(expected.sets, got.sets, strict=False)):
        for item in dataclasses.fields(ActiveSet):
            if getattr(one, item.name) != getattr(other, item.name):
                return f"event {index} has another {item.name}"
    if len(expected.sets) != len(got.sets):
        return f"{len(expected.sets)} events became {len(got.sets)}"
    same = _without_timings(expected.episode) == _without_timings(got.episode)
    return "" if same else "the same sets ended in another record"


def _without_timings(episode: Episode) -> Episode:
    """Tool calls take another time in every run; everything else is part of the contract."""

    def clean(calls: Any) -> Any:
        return tuple(dataclasses.replace(call, duration_s=0.0) for call in calls)

    events = tuple(dataclasses.replace(event, tool_calls=clean(event.tool_calls)) for event in episode.events)
    return dataclasses.replace(episode, events=events, setup_tool_calls=clean(episode.setup_tool_calls))


def _resumed(env: SetEnv, episode: Episode) -> tuple[Event, ...]:
    """Bring `env` to the first event of an episode and return the recorded events."""
    env.resume(episode, 0)
    return episode.events


def _pending(env: SetEnv) -> ActiveSet:
    if env.pending is None:
        raise EnvMisuseError("the episode ended earlier than when it was recorded")
    return env.pending


def _refuses(call: Callable[[], Any], error: type[Exception], what: str) -> Iterator[str]:
    try:
        call()
    except error:
        return
    except Exception as other:
        yield f"{what}: expected {error.__name__}, got {type(other).__name__}: {other}"
    else:
        yield f"{what}: expected {error.__name__}, but it was accepted"


def _breaches_of_text(env: SetEnv, event: Event, text: str) -> Iterator[str]:
    charged = sum(env.roles[member.role].invalid_penalty for member in event.members if not member.is_valid)
    if not math.isclose(event.penalty, charged, abs_tol=1e-9):
        yield f"event {event.event_id!r} on {text!r:.40}: penalty {event.penalty}, its malformed members cost {charged}"
    for member in event.members:
        if member.text != text:
            yield f"event {event.event_id!r}: the text of {member.agent!r} was changed; record it as it came"
        if not member.is_valid and member.parsed is not None:
            yield f"event {event.event_id!r}: {member.agent!r} is malformed, yet parsed as {member.parsed!r}"
