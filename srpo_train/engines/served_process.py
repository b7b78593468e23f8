"""A vLLM server as a process of its own, started with what `ServedEngine` needs of it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from srpo_envs.errors import ConfigError, EngineError, MissingExtraError
from srpo_train.engines.adapters import kernel_rank
from srpo_train.engines.kept import MOST_KEPT
from srpo_train.engines.vllm_transfer import SERVED_BACKEND

_WORKER = "srpo_train.engines.served_worker.PolicyWorker"
_TRANSFER = json.dumps({"backend": SERVED_BACKEND})
"""What the worker's module registers."""
# A prompt in pieces makes vLLM rewind the request's generator, which a CPU's cannot: the server would end.
_CPU_ARGUMENTS = ("--enforce-eager", "--block-size", "32", "--no-enable-chunked-prefill")
_CPU_KV_CACHE = "64M"
_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
_CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
_LOOK_S = 0.2

_TIE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
_TIED = (sys.executable, "-c", _TIE) if sys.platform == "linux" else ()
"""Becomes the command behind it, which the system tells to end (SIGTERM) when this process dies, however it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """How a server is started."""

    host: str = "127.0.0.1"
    """Address to listen on; nobody is asked who they are."""
    port: int = 8000
    """Port; 0 takes a free one."""
    dtype: str = "auto"
    """Number format of the weights; `auto` is the checkpoint's on a GPU and float32 on a CPU."""
    max_model_len: int = 0
    """Most tokens of prompt and response together; 0 takes the model's."""
    kv_cache: str = ""
    """Size of the cache, such as `8G`; vLLM's choice when empty, 64M on a CPU."""
    max_num_seqs: int = 256
    """Responses that are decoded together."""
    num_adapters: int = 0
    """Policies that are LoRA adapters over the model; 0 serves the model alone."""
    lora_rank: int = 16
    """Highest rank among them."""
    is_cpu: bool = False
    """Do without compiling, and with few threads."""
    is_quiet: bool = True
    """Show vLLM's warnings only."""
    extra: Sequence[str] = ()
    """Further options of vLLM, as on its command line."""


def server_command(model: str, options: ServerOptions) -> list[str]:
    """Return the command that serves a model, which is a directory or a hub id."""
    dtype = "float32" if options.is_cpu and options.dtype == "auto" else options.dtype
    kv_cache = options.kv_cache or (_CPU_KV_CACHE if options.is_cpu else "")
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", model, "--host", options.host, "--port", str(options.port)),
        *("--dtype", dtype, "--max-num-seqs", str(options.max_num_seqs)),
        "--enable-scale-out",  # tokens in, tokens out, with the name of the weights on every response
        *("--worker-extension-cls", _WORKER, "--weight-transfer-config", _TRANSFER),
        *("--logprobs-mode", "processed_logprobs"),  # after temperature, top-k and top-p
        *("--max-logprobs", str(MOST_KEPT)),
        *("--generation-config", "vllm"),  # requests say how to sample; a checkpoint's own settings would be added
        *(("--max-model-len", str(options.max_model_len)) if options.max_model_len else ()),
        *(("--kv-cache-memory-bytes", kv_cache) if kv_cache else ()),
        *(_adapter_arguments(options) if options.num_adapters else ()),
        *(_CPU_ARGUMENTS if options.is_cpu else ()),
        *("--disable-uvicorn-access-log",),
        *options.extra,
    ]


def _adapter_arguments(options: ServerOptions) -> tuple[str, ...]:
    # One place more than adapters: a new version is loaded before the one before goes.
    num_places = str(options.num_adapters + 1)
    return "--enable-lora", "--max-loras", num_places, "--max-lora-rank", str(kernel_rank(options.lora_rank))


class ServerProcess:
    """A server that ends with this object.

    It has a session of its own, so that Ctrl-C reaches this process alone, which then ends the server in order. On
    Linux it also ends when this process, or the thread that made this object, dies in any other way.

    Args:
        model: A directory in transformers format or a hub id.
        options: How it is started.

    Raises:
        MissingExtraError: vLLM is not installed.
        ConfigError: the port cannot be listened on.
    """

    def __init__(self, model: str, options: ServerOptions) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm")
        port = _free_port(options.host, options.port)
        command = server_command(model, dataclasses.replace(options, port=port))
        environment = _ENVIRONMENT | (_CPU_ENVIRONMENT if options.is_cpu else {})
        if options.num_adapters:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if options.is_quiet:
            environment["VLLM_LOGGING_LEVEL"] = "WARNING"
        # What is set already wins, but for the endpoints without which the server is of no use.
        self._process = subprocess.Popen(
            [*_TIED, *command],
            env={**environment, **os.environ, "VLLM_SERVER_DEV_MODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if _has_descriptor(sys.stderr) else None,
            start_new_session=True,
        )
        host = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
        self.url = f"http://{host}:{port}"

    def wait_until_ready(self, timeout_s: float = 1800.0) -> float:
        """Return the seconds it took until the server answered.

        Raises:
            EngineError: it ended before, or took too long.
        """
        begun = time.monotonic()
        while not self.is_healthy():
            if self._process.poll() is not None:
                raise EngineError(
                    f"vLLM ended with status {self._process.returncode} before it was ready; its messages stand above"
                )
            if time.monotonic() - begun > timeout_s:
                raise EngineError(f"vLLM is not ready after {timeout_s:g} s")
            time.sleep(_LOOK_S)
        return time.monotonic() - begun

    def is_healthy(self) -> bool:
        """Whether it answers and says that it is well."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5.0) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def wait(self) -> int:
        """Wait until the server ends by itself and return its exit status."""
        return self._process.wait()

    def stop(self, grace_s: float = 15.0) -> None:
        """End the server: asked first, by force when the grace is over; safe to call more than once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):  # whatever is left of its session
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _free_port(host: str, port: int) -> int:
    """Return a port that can be listened on: this one, or any when it is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error


def _has_descriptor(stream: object) -> bool:
    try:
        return isinstance(stream.fileno(), int)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
