"""``srpo play``: play an environment by hand, or watch policies play it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from srpo_envs.errors import ConfigError, near_miss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from srpo_envs.core import SetEnv
    from srpo_train.cli._stage import Player


def play(
    env_id: Annotated[str, typer.Argument(metavar="ENV", help="Environment id; `srpo envs` lists them.")],
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Short for --arg split=...")] = "",
    task: Annotated[int, typer.Option(help="Index of the task; drawn by the seed when omitted.")] = -1,
    seed: Annotated[int, typer.Option(help="Decides task, environment and sampled tokens.")] = 0,
    policy: Annotated[str, typer.Option(metavar="RUN_OR_MODEL", help="Let policies play: a run or a model.")] = "",
    by_hand: Annotated[
        list[str] | None,
        typer.Option("--as", metavar="ROLE", help="Play this role yourself beside --policy; repeatable."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of the policies; 0 takes the most likely token.")] = 1.0,
    engine: Annotated[
        str, typer.Option(help="What samples from models: transformers, vllm, or what the recipe says.")
    ] = "recipe",
) -> None:
    """Play one episode by hand, event by event, or watch policies play it.

    Each member's prompt is shown and its answer read up to an empty line; then what the parser made of it, and where
    the world went. Answers may come from a pipe.
    """
    import srpo_envs
    from srpo_train.cli._stage import perform
    from srpo_train.cli._worlds import parse_arguments

    console = Console()
    env = srpo_envs.make(env_id, **parse_arguments(arguments or [], split))
    env.reset(seed=seed, options={"task_index": task} if task >= 0 else None)
    with choose_players(console, env, policy, by_hand or [], seed, temperature, engine) as players:
        perform(console, env, players)


@contextlib.contextmanager
def choose_players(
    console: Console,
    env: SetEnv,
    policy: str,
    by_hand: Sequence[str],
    seed: int,
    temperature: float,
    engine: str = "recipe",
) -> Iterator[Callable[[str], Player]]:
    """Say who answers for each role in the body: a person, or the policies of a run or model.

    Raises:
        ConfigError: a role that is played by hand does not exist, or nobody answers for one.
    """
    from srpo_train.cli._stage import Person, PolicyPlayer
    from srpo_train.cli._worlds import find_policies, open_engines, read_engine_kind

    for role in by_hand:
        if role not in env.roles:
            raise ConfigError(f"--as {role}: the environment has no such role{near_miss(role, env.roles)}")
    person = Person(console)
    if not policy:
        yield lambda role: person
        return
    source = find_policies(policy)
    for role in env.roles:
        if role not in source.roles and "*" not in source.roles and role not in by_hand:
            raise ConfigError(f"{policy}: no policy for role {role!r}; play it yourself with --as {role}")
    with open_engines(source, read_engine_kind(engine)) as engines:
        machines = {name: PolicyPlayer(console, name, engine, seed, temperature) for name, engine in engines.items()}
        yield lambda role: person if role in by_hand else machines[source.roles.get(role) or source.roles["*"]]
