"""``srpo serve-policy``: a vLLM server with a policy's weights, ready to be asked and to be given new ones."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from srpo_envs.errors import ConfigError, EngineError, near_miss


def serve_policy(
    source: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run, a model directory, a hub id or builtin:tiny-team.")
    ],
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- VLLM_OPTIONS]", help="Options of vLLM's own server, after two dashes."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Which policy of a run; not needed when it has one.")] = "",
    step: Annotated[int, typer.Option(help="Checkpoint of a run; the newest when omitted.")] = -1,
    host: Annotated[str, typer.Option(help="Address to listen on; nobody is asked who they are.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16; auto is the checkpoint's.")] = "auto",
    max_model_len: Annotated[
        int, typer.Option(min=0, help="Most tokens of prompt and response; 0 takes the model's.")
    ] = 0,
    kv_cache: Annotated[
        str, typer.Option(help="Size of the key-value cache, such as 8G; vLLM's choice if empty.")
    ] = "",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Responses that are decoded together.")] = 256,
    adapters: Annotated[
        int, typer.Option(min=0, help="Policies that are LoRA adapters over the model, which the recipe publishes.")
    ] = 0,
    lora_rank: Annotated[int, typer.Option(min=1, help="Highest rank among them.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    is_verbose: Annotated[bool, typer.Option("--vllm-log", help="Show all that vLLM says.")] = False,
    ends_with_stdin: Annotated[
        bool, typer.Option("--until-stdin-closes", help="End when standard input does, as with whoever started it.")
    ] = False,
) -> None:
    """Serve a policy with vLLM until Ctrl-C or SIGTERM.

    The server answers OpenAI's endpoints and those that recipes with `engine.kind = "served"` use: tokens in, tokens
    out, and new weights from a folder. Whoever reaches the port can replace the weights: keep it inside.
    """
    from srpo_train.engines.served_process import ServerOptions, ServerProcess

    model = _model(source, policy, step)
    options = ServerOptions(
        host=host,
        port=port,
        dtype=dtype,
        max_model_len=max_model_len,
        kv_cache=kv_cache,
        max_num_seqs=max_num_seqs,
        num_adapters=adapters,
        lora_rank=lora_rank,
        is_cpu=_is_cpu(device),
        is_quiet=not is_verbose,
        extra=tuple(extra or ()),
    )
    console = Console(soft_wrap=True)
    if ends_with_stdin:
        threading.Thread(target=_end_with_stdin, name="srpo-stdin", daemon=True).start()
    with _until_told(), ServerProcess(model, options) as server:
        console.print(f"starting vLLM with {model}", markup=False, highlight=False)
        seconds = server.wait_until_ready()
        console.print(f"healthy after {seconds:.0f} s: {server.url}", markup=False, highlight=False)
        status = server.wait()
        raise EngineError(f"vLLM ended by itself with status {status}; its messages stand above")


@contextlib.contextmanager
def _until_told() -> Iterator[None]:
    """Run the body until it ends, or until Ctrl-C or SIGTERM, which are the way to end a server."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_stdin() -> None:
    """Tell this process to end once nobody can write to its standard input any more: whoever could is gone."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _model(source: str, policy: str, step: int) -> str:
    """Return the directory or hub id that vLLM is given for a policy."""
    from srpo_train.cli._worlds import find_policies
    from srpo_train.policies.loading import resolve_source

    specs = find_policies(source, step=step).specs
    if policy and policy not in specs:
        raise ConfigError(f"--policy {policy}: {source!r} has no such policy{near_miss(policy, specs)}")
    if not policy and len(specs) != 1:
        raise ConfigError(f"{source!r} has {len(specs)} policies of its own; say which with --policy: {sorted(specs)}")
    name = policy or next(iter(specs))
    model = resolve_source(name, specs[name]["source"])
    if (Path(model) / "adapter_config.json").is_file():
        raise ConfigError(f"{model!r} holds an adapter, not a model; serve its base with --adapters 1")
    return model


def _is_cpu(device: str) -> bool:
    import torch

    if device not in ("auto", "cuda", "cpu"):
        raise ConfigError(f"--device {device}: expected auto, cuda or cpu")
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
