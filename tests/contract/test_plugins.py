"""A package that is installed beside this one adds environments, without being imported before they are made."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
from srpo_envs import Outcome, Parsed, Role, SetEnv
from srpo_envs.tasks.arithmetic import Arithmetic

class Echo(SetEnv):
    def __init__(self, words=1, **limits):
        super().__init__(Arithmetic(), [Role("speaker", prompt="Say something.", parse=Parsed)], **limits)
        self.words = words

    def schedule(self, task):
        yield self.ask("speaker")
        return Outcome(1.0)
"""

USE = """
import sys, srpo_envs, gymnasium, pettingzoo
assert "acme_worlds" not in sys.modules
assert "acme/Echo-v3" in srpo_envs.list_envs()
env = srpo_envs.make("acme/Echo-v3", words=2, max_events=5)
assert (env.env_id, env.words, env.max_events) == ("acme/Echo-v3", 2, 5)
assert gymnasium.make("acme/Echo-v3").unwrapped.set_env.words == 1
assert pettingzoo.make("parallel", "acme/Echo-v3").possible_agents == ["speaker_0"]
print(srpo_envs.check_set_env(lambda: srpo_envs.make("acme/Echo-v3"), num_episodes=2))
"""


def build_wheel(folder: Path, entry_points: str) -> Path:
    """Write a wheel by hand: an archive of the module and its metadata, so that no build tool is needed."""
    info = "acme_worlds-1.0.dist-info"
    files = {
        "acme_worlds.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-worlds\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[srpo_envs.environments]\n{entry_points}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    path = folder / "acme_worlds-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def run(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=path, timeout=120
    )


def install(tmp_path: Path, entry_points: str) -> Path:
    pytest.importorskip("pip", reason="installing the plug-in needs pip in this environment")
    target = tmp_path / "site"
    wheel = build_wheel(tmp_path, entry_points)
    options = ("--no-index", "--no-deps", "--no-cache-dir", "--quiet", "--disable-pip-version-check")
    done = run("-m", "pip", "install", *options, "--target", str(target), str(wheel), path=tmp_path)
    assert done.returncode == 0, done.stderr
    return target


def test_an_installed_plug_in_is_found_by_a_fresh_process(tmp_path):
    site = install(tmp_path, "acme/Echo-v3 = acme_worlds:Echo")
    done = run("-W", "error", "-c", USE, path=site)
    assert done.returncode == 0, done.stderr
    assert "acme/Echo-v3: " in done.stdout


def test_a_broken_plug_in_warns_and_leaves_the_rest_working(tmp_path):
    site = install(tmp_path, "NoVersion = acme_worlds:Echo\nacme/Gone-v0 = acme_worlds:Gone")
    done = run("-c", "import srpo_envs; srpo_envs.make('ArithmeticSingleAgent-v0'); print('works')", path=site)
    assert done.stdout == "works\n", done.stderr
    assert "entry point 'NoVersion' = 'acme_worlds:Echo' is left out: malformed id" in done.stderr
