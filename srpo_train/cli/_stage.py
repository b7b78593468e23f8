"""An episode on the terminal: who is asked, what they answer, what was read, where the world went."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import typer
from rich.console import Console

from srpo_envs.audit import format_event_table
from srpo_envs.core import SetEnv
from srpo_envs.records import ActiveSet, Episode, Event, Member, MemberOutput
from srpo_train.cli._errors import FAILED
from srpo_train.cli._text import shown
from srpo_train.viewer.rendering import EventRendering, PromptRendering
from srpo_train.viewer.timeline import view_event, view_prompts

if TYPE_CHECKING:
    from srpo_train.engines.base import Engine


class Player(Protocol):
    """Someone who answers for a member."""

    def answer(self, active: ActiveSet, member: Member) -> MemberOutput:
        """Return the member's output."""
        ...


class Person:
    """Types answers: any number of lines, ended by an empty one. Works on a pipe as on a keyboard.

    Args:
        console: Where the person is asked.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def answer(self, active: ActiveSet, member: Member) -> MemberOutput:
        """Read one answer.

        Raises:
            Exit: the input has ended.
        """
        self._console.print(f"[bold cyan]{member.agent}[/] answers [dim](an empty line ends it)[/]")
        lines = []
        while (line := sys.stdin.readline()).strip("\r\n"):
            lines.append(line)
        if not line and not lines:
            Console(stderr=True).print("the input ended before the episode did")
            raise typer.Exit(FAILED)
        text = "".join(lines).rstrip("\r\n")
        return MemberOutput(event_id=active.event_id, member_index=member.index, text=text)


class PolicyPlayer:
    """Answers with a policy.

    Args:
        console: Where it says that it answered.
        policy_id: Policy that answers.
        engine: Its engine.
        seed: Decides every sampled token.
        temperature: 0 takes the most likely token.
    """

    def __init__(self, console: Console, policy_id: str, engine: Engine, seed: int, temperature: float) -> None:
        self._console = console
        self._policy_id = policy_id
        self._engine = engine
        self._seed = seed
        self._temperature = temperature

    def answer(self, active: ActiveSet, member: Member) -> MemberOutput:
        """Sample one answer.

        Raises:
            EngineError: the engine failed.
        """
        from srpo_train.collect import derive_seed
        from srpo_train.engines.base import GenerationRequest, Sampling

        request = GenerationRequest(
            request_id=f"{active.event_id}/{member.index}",
            prompt=member.prompt,
            max_new_tokens=member.max_new_tokens,
            seed=derive_seed(self._seed, active.event_id, member.index),
            stop=member.stop,
            member=member,
        )
        (generation,) = self._engine.generate([request], Sampling(temperature=self._temperature))
        self._console.print(f"[bold cyan]{member.agent}[/] [dim]({generation.num_tokens} tokens)[/]")
        return MemberOutput(
            event_id=active.event_id,
            member_index=member.index,
            text=generation.text,
            policy_id=self._policy_id,
            finish_reason=generation.finish_reason,
        )


def perform(console: Console, env: SetEnv, players: Callable[[str], Player]) -> Episode:
    """Play the pending episode to its end and show every event.

    Args:
        console: Where to show it.
        env: An environment that waits for an active set.
        players: Role to whoever answers for it.
    """
    while (active := env.pending) is not None:
        announce(console, active)
        result = env.step([players(member.role).answer(active, member) for member in active.members])
        show_reading(console, result.event)
    show_end(console, env.episode)
    return env.episode


def announce(console: Console, active: ActiveSet) -> None:
    """Show an active set: the event, and each different prompt once."""
    head = shown(active.event_id, "bold") + shown(f"  {active.event_type}  K = {active.cardinality}  ")
    console.rule(head + shown(active.state_label, "dim"), align="left")
    for prompt in view_prompts((member.agent, member.prompt) for member in active.members):
        console.print(PromptRendering(prompt))


def show_event(console: Console, event: Event) -> None:
    """Show a recorded event: prompts, answers and readings side by side, tools, reward."""
    console.print(EventRendering(view_event(event)))


def show_reading(console: Console, event: Event) -> None:
    """Show what came of an announced event: answers and readings side by side, tools, reward."""
    console.print(EventRendering(view_event(event), is_announced=True))


def show_end(console: Console, episode: Episode) -> None:
    """Show the outcome and the event audit of a finished episode."""
    ending = "truncated" if episode.truncated else "terminated"
    console.rule(f"[bold]{ending}, team reward {episode.reward:g}, penalties {episode.penalty:g}", align="left")
    for name, value in {"gold answer": episode.task.get("gold"), **episode.info}.items():
        console.print(shown(f"{name}: {value}"))
    console.print()
    console.print(format_event_table(episode), markup=False, highlight=False, soft_wrap=True)
