"""Every block of Python in the documentation runs, page by page, in a folder where what it reads is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pettingzoo
import pytest
from doc_pages import ROOT, blocks, pages_with
from factories import make_episode
from report_world import make_run

from srpo_envs import registry
from srpo_envs.records import write_episodes

NOT_RUN = {
    "docs/data.md": "downloads data sets",
    "docs/environments/code.md": "reads a file of HumanEval",
    "docs/integrations-training.md": "trains in TRL and verl; tests/integrations does so on a CPU",
    "docs/integrations.md": "needs the libraries it is about; tests/integrations runs them",
    "docs/retrieval.md": "needs a running server",
    "docs/sweeps.md": "trains for minutes; tests/train/sweep does so with a smaller sweep",
}
"""Pages whose Python is compiled only, and why."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of a reader: recipes are there, and what a page registers is forgotten afterwards."""
    for name in ("recipes", "sweeps"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = [
        (ids, dict(ids))
        for ids in (registry._specs, gymnasium.registry, pettingzoo.parallel_registry, pettingzoo.aec_registry)
    ]
    yield tmp_path
    for ids, before in kept:
        ids.clear()
        ids.update(before)


def three_runs(folder: Path) -> None:
    for name, change in (("srpo-0", "seed=0"), ("srpo-1", "seed=1"), ("grpo-0", "objective.preset=grpo")):
        make_run(folder / "runs" / name, change, evaluations={0: (0.2, 0.4), 2: (0.6, 0.8)}, steps=[{}, {}])


def one_run(folder: Path) -> None:
    make_run(folder / "runs/tiny-arithmetic", evaluations={0: (0.2, 0.4)})


def one_stored_run(folder: Path) -> None:
    write_episodes(folder / "runs/tiny-arithmetic/events/step-000080.jsonl", [make_episode()])


def own_workflow(folder: Path) -> None:
    (folder / "debate.py").write_text(blocks("docs/own-workflow.md", "python")[0])


PREPARED: dict[str, Callable[[Path], None]] = {
    "docs/reports.md": three_runs,
    "docs/metrics.md": one_run,
    "docs/viewer.md": one_stored_run,
    "docs/views.md": own_workflow,
}
"""What a page finds in the working directory."""


@pytest.mark.parametrize("page", [page for page in pages_with("python") if not page.startswith("docs/tutorials/")])
def test_the_python_of_a_page_runs(page: str, folder: Path) -> None:
    program = compile("\n".join(blocks(page, "python")), page, "exec")
    if page in NOT_RUN:
        pytest.skip(f"compiled only: {NOT_RUN[page]}")
    PREPARED.get(page, lambda folder: None)(folder)
    exec(program, {"__name__": "docs"})


def test_only_pages_with_python_are_listed() -> None:
    assert set(NOT_RUN) | set(PREPARED) <= set(pages_with("python"))
