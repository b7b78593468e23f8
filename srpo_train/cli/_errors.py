"""How a command ends: 0 done, 1 something failed, 2 misuse, 130 interrupted; errors without a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from srpo_envs.errors import (
    ConfigError,
    EnvMisuseError,
    MemberMismatchError,
    MissingExtraError,
    SrpoError,
    UnknownIdError,
)
from srpo_train.cli._text import shown

P = ParamSpec("P")
R = TypeVar("R")

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

_MISUSE = (ConfigError, EnvMisuseError, MemberMismatchError, MissingExtraError, UnknownIdError)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the project's own errors, those of the system and Ctrl-C into an exit code and one clear line."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SrpoError as error:
            _say(str(error))
            raise typer.Exit(MISUSED if isinstance(error, _MISUSE) else FAILED) from None
        except BrokenPipeError:  # the reader of a pipe, such as head, had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except OSError as error:  # a full disk, a folder that may not be written, a file where a folder should be
            _say(str(error))
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    return run


def _say(message: str) -> None:
    Console(stderr=True).print(Text("error: ", style="bold red") + shown(message), soft_wrap=True)
