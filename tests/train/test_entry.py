"""The command's entry point: it says which extra is missing, and hides no other failure."""

from __future__ import annotations

import sys

import pytest

from srpo_train.entry import main


def forget_command_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("srpo_train.cli")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch):
    forget_command_line(monkeypatch)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"'typer' is not installed: run pip install 'srpo\[train\]'"):
        main()


def test_a_fault_of_our_own_is_not_hidden(monkeypatch):
    forget_command_line(monkeypatch)
    monkeypatch.setitem(sys.modules, "srpo_train.cli.play", None)
    with pytest.raises(ModuleNotFoundError, match=r"srpo_train\.cli\.play"):
        main()


def test_the_command_line_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["srpo", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "train" in capsys.readouterr().out
