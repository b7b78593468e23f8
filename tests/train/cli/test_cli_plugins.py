"""Commands that other packages bring."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import pytest
import typer
from typer.testing import CliRunner

from srpo_envs.errors import ConfigError
from srpo_train.cli._plugins import COMMAND_GROUP, add_plugins


def installed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Pretend that one package brings commands named ``extra``."""
    entry = importlib.metadata.EntryPoint(name="extra", value=value, group=COMMAND_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == COMMAND_GROUP else [])


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("extra_commands")
    module.app = typer.Typer()  # type: ignore[attr-defined]

    @module.app.command("count")  # type: ignore[attr-defined, untyped-decorator]
    def count(upto: int) -> None:
        if upto < 0:
            raise ConfigError("upto: expected 0 or more")
        typer.echo(" ".join(map(str, range(upto))))

    @module.app.command("other")  # type: ignore[attr-defined, untyped-decorator]
    def other() -> None:
        pass

    monkeypatch.setitem(sys.modules, "extra_commands", module)
    installed(monkeypatch, "extra_commands:app")


def test_an_installed_group_becomes_part_of_the_command_line(plugin: None) -> None:
    app = typer.Typer()
    add_plugins(app)
    result = CliRunner().invoke(app, ["extra", "count", "3"])
    assert (result.exit_code, result.stdout) == (0, "0 1 2\n")


def test_its_errors_end_like_our_own(plugin: None) -> None:
    app = typer.Typer()
    add_plugins(app)
    result = CliRunner().invoke(app, ["extra", "count", "--", "-1"])
    assert result.exit_code == 2
    assert result.stderr == "error: upto: expected 0 or more\n"


@pytest.mark.parametrize("value", ["no_such_module:app", "os:no_such_app"])
def test_one_that_cannot_be_loaded_warns_and_is_left_out(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    installed(monkeypatch, value)
    app = typer.Typer()
    with pytest.warns(UserWarning, match="commands 'extra' = .* are left out"):
        add_plugins(app)
    assert app.registered_groups == []


def test_the_retrieval_commands_are_there() -> None:
    from srpo_train.cli import app

    shown = CliRunner().invoke(app, ["retrieval", "--help"], env={"COLUMNS": "120"}).output
    assert all(command in shown for command in ("build", "search", "serve", "bench"))
