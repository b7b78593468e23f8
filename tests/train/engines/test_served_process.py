"""The command that starts a server, and its life from start to end. Real servers stand in test_vllm_served.py."""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import subprocess
import sys
import time

import pytest

from srpo_envs.errors import ConfigError, EngineError, MissingExtraError
from srpo_train.engines.served_process import ServerOptions, ServerProcess, server_command
from srpo_train.engines.vllm_transfer import SERVED_BACKEND

HAS_VLLM = importlib.util.find_spec("vllm") is not None


def options_of(command: list[str]) -> dict[str, str]:
    pairs = zip(command, [*command[1:], ""], strict=True)
    return {name: "" if value.startswith("--") else value for name, value in pairs if name.startswith("--")}


def test_a_server_gets_what_the_engine_needs_of_it():
    command = server_command("model-dir", ServerOptions(port=8123))
    options = options_of(command)
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert (options["--model"], options["--host"], options["--port"]) == ("model-dir", "127.0.0.1", "8123")
    assert "--enable-scale-out" in options
    assert options["--worker-extension-cls"] == "srpo_train.engines.served_worker.PolicyWorker"
    assert json.loads(options["--weight-transfer-config"]) == {"backend": SERVED_BACKEND}
    assert (options["--logprobs-mode"], options["--max-logprobs"]) == ("processed_logprobs", "1024")
    assert options["--generation-config"] == "vllm"
    assert options["--dtype"] == "auto"
    assert not {"--enforce-eager", "--kv-cache-memory-bytes", "--max-model-len"} & options.keys()


def test_on_a_cpu_it_is_small_and_exact():
    options = options_of(server_command("m", ServerOptions(is_cpu=True)))
    assert (options["--dtype"], options["--kv-cache-memory-bytes"], options["--block-size"]) == ("float32", "64M", "32")
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= options.keys()
    assert options_of(server_command("m", ServerOptions(is_cpu=True, dtype="bfloat16")))["--dtype"] == "bfloat16"


def test_sizes_and_further_options_are_passed_on():
    command = server_command(
        "m", ServerOptions(max_model_len=4096, kv_cache="8G", max_num_seqs=32, extra=("--tensor-parallel-size", "2"))
    )
    options = options_of(command)
    assert (options["--max-model-len"], options["--kv-cache-memory-bytes"]) == ("4096", "8G")
    assert options["--max-num-seqs"] == "32"
    assert command[-2:] == ["--tensor-parallel-size", "2"]


def test_a_server_of_adapters_has_room_for_one_more_version():
    options = options_of(server_command("m", ServerOptions(num_adapters=2, lora_rank=12)))
    assert "--enable-lora" in options
    assert (options["--max-loras"], options["--max-lora-rank"]) == ("3", "16")
    assert "--enable-lora" not in options_of(server_command("m", ServerOptions()))


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"srpo\[vllm\]"):
        ServerProcess("m", ServerOptions())


def test_a_port_in_use_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            ServerProcess("m", ServerOptions(port=port))


def stand_in(monkeypatch, code: str) -> None:
    """Let a few lines of Python take the place of vLLM."""
    import srpo_train.engines.served_process as module

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        module, "server_command", lambda model, options: [sys.executable, "-c", code, str(options.port)]
    )


SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def test_a_server_is_waited_for_and_ends_with_its_object(monkeypatch):
    stand_in(monkeypatch, SERVER)
    with ServerProcess("m", ServerOptions(port=0)) as server:
        assert server.wait_until_ready(30.0) < 30.0
        assert server.is_healthy()
    assert not server.is_healthy()
    server.stop()


def test_a_server_that_ends_before_it_is_ready_is_told(monkeypatch):
    stand_in(monkeypatch, "raise SystemExit(3)")
    with (
        ServerProcess("m", ServerOptions(port=0)) as server,
        pytest.raises(EngineError, match="status 3 before it was"),
    ):
        server.wait_until_ready(30.0)


def test_a_server_that_ignores_the_end_is_ended_by_force(monkeypatch):
    stand_in(monkeypatch, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER)
    server = ServerProcess("m", ServerOptions(port=0))
    server.wait_until_ready(30.0)
    server.stop(grace_s=0.2)
    assert server.wait() == -9


def test_a_server_that_never_gets_ready_is_told(monkeypatch):
    stand_in(monkeypatch, "import time; time.sleep(60)")
    with (
        ServerProcess("m", ServerOptions(port=0)) as server,
        pytest.raises(EngineError, match=r"not ready after 0\.3 s"),
    ):
        server.wait_until_ready(0.3)


def test_the_worker_s_class_is_where_the_command_says():
    module, _, name = options_of(server_command("model-dir", ServerOptions()))["--worker-extension-cls"].rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


HOLDER = """
import importlib.util, sys, time
import srpo_train.engines.served_process as module
importlib.util.find_spec = lambda name: object()
module.server_command = lambda model, options: [sys.executable, "-c", sys.argv[1], str(options.port)]
server = module.ServerProcess("m", module.ServerOptions(port=0))
server.wait_until_ready(60.0)
print(server.url, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent has died")
def test_a_server_does_not_outlive_a_holder_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", HOLDER, SERVER], stdout=subprocess.PIPE, text=True) as holder:
        url = holder.stdout.readline().strip()
        port = int(url.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        holder.kill()
    end = time.monotonic() + 30.0
    with pytest.raises(OSError, match=r"refused|reset"):
        while time.monotonic() < end:
            socket.create_connection(("127.0.0.1", port)).close()
            time.sleep(0.05)
