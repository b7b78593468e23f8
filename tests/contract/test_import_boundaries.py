"""The arrows between packages, read from the source and seen in a fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENTS = ("srpo_envs.workflows", "srpo_envs.tasks")
"""Where particular worlds live; everything else of `srpo_envs` is about any world."""

BOUNDARIES = {
    "srpo_envs": ("torch", "transformers", "vllm", "peft", "ray", "srpo_train", "retrieval"),
    "srpo_train": ("retrieval",),
    "retrieval": ("srpo_train",),
}
"""Folder or file, and what nothing below it may import."""

TIED_TO_A_WORLD = ("srpo_train/tiny",)
"""The embedded policy is warm-started on transcripts of the arithmetic world, so it alone may name that world."""

GUESTS = {"srpo_envs/integrations/torchrl.py": "torch", "srpo_envs/integrations/rllib.py": "ray"}
"""The module of an integration may import what its library is made of; nothing else imports the module."""

ONLY = {
    "srpo_train/objective": ("torch", "srpo_train.objective", "srpo_envs.errors"),
}
"""Folder, and the only modules outside the standard library that anything below it may import."""


def imported(path: Path) -> set[str]:
    """Every module a file names in an import, at any depth: ``from a.b import c`` names ``a.b`` and ``a.b.c``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).parent.parts
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def belongs(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def sources(where: str) -> list[Path]:
    path = ROOT / where
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("where", BOUNDARIES)
def test_no_source_crosses_a_boundary(where):
    crossings = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(where)
        for name in sorted(imported(path))
        if any(belongs(name, banned) for banned in BOUNDARIES[where])
        and not belongs(name, GUESTS.get(path.relative_to(ROOT).as_posix(), name + "."))
    ]
    assert crossings == []


def test_the_learner_knows_no_particular_world():
    crossings = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("srpo_train")
        if not any(path.is_relative_to(ROOT / where) for where in TIED_TO_A_WORLD)
        for name in sorted(imported(path))
        if any(belongs(name, world) for world in ENVIRONMENTS)
    ]
    assert crossings == []


def test_the_environments_do_without_their_integrations():
    strangers = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("srpo_envs")
        if not path.is_relative_to(ROOT / "srpo_envs" / "integrations")
        for name in sorted(imported(path))
        if belongs(name, "srpo_envs.integrations")
    ]
    assert strangers == []


@pytest.mark.parametrize("where", ONLY)
def test_some_folders_import_next_to_nothing(where):
    allowed = (*ONLY[where], *sys.stdlib_module_names)
    strangers = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(where)
        for name in sorted(imported(path))
        if not any(belongs(name, module) for module in allowed)
    ]
    assert strangers == []


def test_the_scan_sees_late_relative_and_aliased_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    package = tmp_path / "pack" / "inner"
    package.mkdir(parents=True)
    path = package / "module.py"
    path.write_text(
        "def f():\n    import torch.nn as n\n    from .. import side\n    from .near import x\n    from a import b\n"
    )
    assert imported(path) == {"torch.nn", "pack", "pack.side", "pack.inner.near", "pack.inner.near.x", "a", "a.b"}


def in_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_environments_pulls_in_no_learner():
    code = (
        "import sys, srpo_envs; "
        "print(sorted({'torch', 'transformers', 'vllm', 'srpo_train', 'retrieval', 'sympy', 'math_verify', 'datasets'}"
        " & set(sys.modules)))"
    )
    assert in_fresh_process(code) == "[]"


def test_importing_search_engines_pulls_in_none_of_what_they_run_on():
    code = (
        "import sys, retrieval; retrieval.DenseRetriever, retrieval.LuceneRetriever; "
        "print(sorted({'torch', 'transformers', 'faiss', 'jnius', 'fastapi', 'srpo_train'} & set(sys.modules)))"
    )
    assert in_fresh_process(code) == "[]"


def test_importing_environments_pulls_in_no_particular_world():
    code = "import sys, srpo_envs; print([m for m in sys.modules if m.startswith('srpo_envs.grading')])"
    assert in_fresh_process(code) == "[]"


def test_importing_environments_takes_under_half_a_second():
    # Processor time, the least of three: other work on the machine must not decide.
    code = "import time; start = time.process_time(); import srpo_envs; print(time.process_time() - start)"
    assert min(float(in_fresh_process(code)) for _ in range(3)) < 0.5


def test_the_ruff_rule_guards_the_same_arrow():
    banned = (ROOT / "srpo_envs" / "ruff.toml").read_text(encoding="utf-8")
    for module in ("torch", "transformers", "vllm", "srpo_train", "retrieval"):
        assert f"{module}.msg" in banned
