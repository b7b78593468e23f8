"""`srpo serve-policy`: what it starts, what it says, and how it ends."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from srpo_train.cli import app
from srpo_train.engines import served_process

ROOT = Path(__file__).parents[3]


def srpo(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


class StandIn:
    """Takes the place of a server's process: healthy at once, and ends by itself."""

    started: ClassVar[list[tuple[str, served_process.ServerOptions]]] = []

    def __init__(self, model: str, options: served_process.ServerOptions) -> None:
        self.started.append((model, options))
        self.url = f"http://{options.host}:{options.port}"

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait_until_ready(self) -> float:
        return 12.0

    def wait(self) -> int:
        return 7


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, served_process.ServerOptions]]:
    monkeypatch.setattr(served_process, "ServerProcess", StandIn)
    monkeypatch.setattr(StandIn, "started", [])
    return StandIn.started


def test_options_reach_the_server_and_its_health_is_told(started: list, tiny_checkpoint: Path) -> None:
    result = srpo(
        "serve-policy", tiny_checkpoint, "--port", 8123, "--max-model-len", 64, "--kv-cache", "1G", "--device", "cpu",
        "--dtype", "bfloat16", "--max-num-seqs", 9, "--adapters", 2, "--lora-rank", 64,
        "--", "--tensor-parallel-size", "2",
    )  # fmt: skip
    ((model, options),) = started
    assert model == str(tiny_checkpoint)
    assert options == served_process.ServerOptions(
        port=8123, max_model_len=64, kv_cache="1G", is_cpu=True, dtype="bfloat16", max_num_seqs=9,
        num_adapters=2, lora_rank=64, extra=("--tensor-parallel-size", "2"),
    )  # fmt: skip
    assert "healthy after 12 s: http://127.0.0.1:8123" in result.stdout
    assert result.exit_code == 1
    assert "vLLM ended by itself with status 7" in result.stderr


def test_the_embedded_policy_is_served_by_name(started: list) -> None:
    srpo("serve-policy", "builtin:tiny-team", "--device", "cpu")
    assert (Path(started[0][0]) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["builtin:tiny-tem"], "did you mean 'tiny-team'"),
        (["builtin:tiny-team", "--policy", "polcy"], "did you mean 'policy'"),
        (["builtin:tiny-team", "--device", "tpu"], "expected auto, cuda or cpu"),
        (["builtin:tiny-team", "--step", "3"], "so it has no checkpoints"),
        (["http://127.0.0.1:8000/v1"], "has 0 policies of its own"),
    ],
)
def test_misuse_ends_in_one_line(started: list, arguments: list[str], message: str) -> None:
    result = srpo("serve-policy", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert started == []


def test_an_adapter_is_not_a_model(started: list, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    result = srpo("serve-policy", tmp_path, "--device", "cpu")
    assert result.exit_code == 2
    assert "holds an adapter, not a model" in result.stderr


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named(tiny_checkpoint: Path) -> None:
    result = srpo("serve-policy", tiny_checkpoint)
    assert result.exit_code == 2
    assert "'vllm' is not installed: run pip install 'srpo[vllm]'" in result.stderr


SERVED = """
import importlib.util, sys
from srpo_train.engines import served_process
server = '''
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
'''
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: object() if name == "vllm" else found(name, *rest)
served_process.server_command = lambda model, options: [sys.executable, "-c", server, str(options.port)]
from srpo_train.cli import app
app(["serve-policy", sys.argv[1], "--port", "0", "--device", "cpu"])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_server_without_a_complaint(how: signal.Signals, tiny_checkpoint: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVED, str(tiny_checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        # Whoever runs the tests in the background has interrupts ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    url = next(line.split()[-1] for line in process.stdout if "healthy" in line)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    import socket

    host, port = url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
