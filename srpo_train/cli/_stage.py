"""An episode on the terminal: who is asked, what they answer, what was read, where the world went."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import typer
from rich.console import Console
from rich.panel import Panel

from srpo_envs.audit import format_event_table
from srpo_envs.core import SetEnv
from srpo_envs.records import ActiveSet, Episode, Event, Member, MemberOutput, ToolCall
from srpo_train.cli._errors import FAILED
from srpo_train.cli._text import shown

if TYPE_CHECKING:
    from srpo_train.engines.base import Engine

_ITEM_WIDTH = 150


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
        if not sys.stdin.isatty():
            _print_text(self._console, text)
        return MemberOutput(event_id=active.event_id, member_index=member.index, text=text)


class PolicyPlayer:
    """Answers with a policy.

    Args:
        console: Where the answer is shown.
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
        _print_text(self._console, generation.text)
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
    _print_head(console, active.event_id, active.event_type, active.cardinality, active.state_label)
    _print_prompts(console, {member.agent: member.prompt for member in active.members})


def show_event(console: Console, event: Event) -> None:
    """Show a recorded event: prompts, answers, readings."""
    _print_head(console, event.event_id, event.event_type, event.cardinality, event.state_label)
    _print_prompts(console, {member.agent: member.prompt for member in event.members})
    for member in event.members:
        spent = shown(f" ({sum(member.token_mask)} tokens, {member.policy_id})", "dim")
        console.print(shown(member.agent, "bold cyan") + spent)
        _print_text(console, member.text)
    show_reading(console, event)


def show_reading(console: Console, event: Event) -> None:
    """Show what the parsers read, the tools that ran, and the reward."""
    for member in event.members:
        reading = shown(f"  {member.agent}: ", "dim")
        if member.is_valid:
            reading += shown(f"read {member.parsed!r}", "green")
        else:
            reading += shown(f"malformed, {member.malformed_reason}", "red")
        console.print(reading)
    for call in event.tool_calls:
        if call.kind == "tool":
            _show_call(console, call)
    penalty = f" (penalty {event.penalty:g})" if event.penalty else ""
    console.print(f"  reward {event.reward:g}{penalty}\n")


def _show_call(console: Console, call: ToolCall) -> None:
    """Show one tool call with a line for each item of its result."""
    given = call.arguments.items() if isinstance(call.arguments, Mapping) else [("", call.arguments)]
    arguments = ", ".join(f"{name}={value!r}" if name else repr(value) for name, value in given)
    console.print(shown(f"  tool {call.name}({arguments})", "dim"), soft_wrap=True)
    items = call.result if isinstance(call.result, (list, tuple)) else (call.result,)
    for item in items or ("nothing",):
        fields = item.items() if isinstance(item, Mapping) else [("", item)]
        line = ", ".join(f"{name}={value}" if name else str(value) for name, value in fields)
        console.print(shown("    " + textwrap.shorten(line, _ITEM_WIDTH, placeholder=" ..."), "dim"))


def show_end(console: Console, episode: Episode) -> None:
    """Show the outcome and the event audit of a finished episode."""
    ending = "truncated" if episode.truncated else "terminated"
    console.rule(f"[bold]{ending}, team reward {episode.reward:g}, penalties {episode.penalty:g}", align="left")
    for name, value in {"gold answer": episode.task.get("gold"), **episode.info}.items():
        console.print(shown(f"{name}: {value}"))
    console.print()
    console.print(format_event_table(episode), markup=False, highlight=False, soft_wrap=True)


def _print_head(console: Console, event_id: str, event_type: str, cardinality: int, state: str) -> None:
    head = shown(event_id, "bold") + shown(f"  {event_type}  K = {cardinality}  ") + shown(state, "dim")
    console.rule(head, align="left")


def _print_prompts(console: Console, prompts: Mapping[str, str]) -> None:
    for prompt in dict.fromkeys(prompts.values()):
        readers = ", ".join(agent for agent, given in prompts.items() if given == prompt)
        console.print(Panel(shown(prompt), title=shown(f"to {readers}"), title_align="left", border_style="dim"))


def _print_text(console: Console, text: str) -> None:
    console.print(shown("\n".join("  " + line for line in text.split("\n"))), soft_wrap=True)
