"""``srpo report`` and ``srpo dynamics``: what they write, print and refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from report_world import make_evaluation, make_run
from typer.testing import CliRunner, Result

from srpo_train.cli import app


def srpo(*arguments: object, folder: Path) -> Result:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    finally:
        os.chdir(before)


def refused(*arguments: object, folder: Path) -> str:
    result = srpo(*arguments, folder=folder)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("command", ["report", "dynamics"])
def test_help_ends_with_examples(command: str, tmp_path: Path) -> None:
    result = srpo(command, "--help", folder=tmp_path)
    assert f"srpo {command} runs/" in result.stdout.split("Examples:")[1]


def test_one_run_has_its_own_report_and_a_comparison_where_one_is_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    result = srpo("report", "a", folder=tmp_path)
    assert result.stdout == "a/report.md\n"
    assert (tmp_path / "a/curves.png").is_file()
    result = srpo("report", "a", "--md", folder=tmp_path)
    assert result.stdout == "reports/comparison.md\n"


def test_the_page_of_one_run_lies_in_it_and_that_of_several_in_reports(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path / name, f"seed={ord(name)}", evaluations={1: (0.5, 0.6)})
    assert srpo("report", "a", "--html", folder=tmp_path).stdout == "a/report.html\n"
    result = srpo("report", "a", "b", "--html", "--latex", "--x", "tokens", "--label", "a=<b>", folder=tmp_path)
    assert result.stdout == "reports/report.html\nreports/comparison.tex\n"
    text = (tmp_path / "reports/report.html").read_text()
    assert "&lt;b&gt;" in text
    assert "Against tokens sampled in training." in text
    assert srpo("report", "a", "b", "--html", "--out", "there", folder=tmp_path).stdout == "there/report.html\n"


def test_the_name_of_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    told = refused("report", "a", "--html", "--out", "mine.html", folder=tmp_path)
    assert "--out mine.html: expected a folder, got the name of a file; the page of --html is report.html in it" in told
    assert not (tmp_path / "mine.html").exists()


def test_several_are_compared_under_the_names_given(tmp_path: Path) -> None:
    make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    make_evaluation(tmp_path / "e", {"nq": {0: [4, 2]}})
    labels = ("--label", "a=My team", "--label", "e=Another | one")
    result = srpo("report", "a", "e", *labels, "--out", "tables", "--md", "--latex", folder=tmp_path)
    assert result.stdout == "tables/comparison.md\ntables/comparison.tex\n"
    text = (tmp_path / "tables/comparison.md").read_text()
    assert "| My team | 50.0 | 60.0 | 50.0 | 60.0 |" in text
    assert "| Another \\| one | 75.0 | 100.0 |" in text
    assert "What the paper reports" in text
    srpo("report", "a", "e", "--no-paper", folder=tmp_path)
    assert "paper reports" not in (tmp_path / "reports/comparison.md").read_text()


def test_dynamics_prints_statistics_and_writes_its_files(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=({}, {"train/grad_norm": 3.0}))
    result = srpo("dynamics", "a", "--x", "tokens", "--label", "a=[red]mine[/red]", folder=tmp_path)
    assert result.exit_code == 0, result.output
    assert "[red]mine[/red], seed 0" in result.stdout
    assert "[1.000, 3.000]" in result.stdout
    assert result.stdout.endswith(
        "reports/dynamics.png\nreports/dynamics.csv\nreports/dynamics-statistics.csv\nreports/dynamics.md\n"
    )


def test_misuse_is_one_clear_line(tmp_path: Path) -> None:
    make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    assert refused("report", "b", folder=tmp_path) == "error: b: no such directory; known: 'a'"
    assert "--x" in refused("report", "a", "--html", "--x", "hours", folder=tmp_path)
    assert "--label a: expected PATH=NAME" in refused("report", "a", "--label", "a", folder=tmp_path)
    assert "--label c=...: not among what is given" in refused("dynamics", "a", "--label", "c=C", folder=tmp_path)
    assert "both are seed 0 of Setwise SRPO" in refused("dynamics", "a", "a", folder=tmp_path)
