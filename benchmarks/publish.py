"""Publishing weights from two sharded ranks to 1, 2 and 4 servers, against saving and loading a whole state dict.

    python benchmarks/publish.py               # some minutes on two cores; --models 32 --servers 1,2 for less

The trainer is real: two processes hold a model of Qwen3's architecture with FSDP2, in float32, and publish it in
bfloat16. The servers are light processes that take buckets with the class that vLLM's workers use, over HTTP as vLLM
does, into tensors of their own. Ways:

- *plain*: the whole model is collected on the main rank, cast, written with torch.save, and read by every server;
- *file*: buckets through files in memory (or --folder), which servers load while the next ones are put together;
- *gloo*: buckets over one process group;
- *adapter*: a LoRA adapter of rank 16 on all linear layers, as files.

Seconds are the median of --repeat pushes, from the first tensor to the last server's word; *ratio* is to *plain* with
the same model and servers. *Memory* is what the main rank's resident memory grows by at most during a push, files that
it maps included.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import http.server
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from srpo_train.config import DistributedConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.distributed.sharding import ShardedModel
from srpo_train.engines.bucket_receiver import BucketInfo, BucketReceiver, GroupInfo
from srpo_train.engines.buckets import images, plan_buckets
from srpo_train.engines.endpoint import Endpoint, Patience
from srpo_train.engines.served_adapters import AdapterServer
from srpo_train.engines.served_server import Published, VllmServer
from srpo_train.engines.served_transport import FolderTransport, GroupTransport
from srpo_train.engines.served_weights import WeightFolder

MB = 1 << 20
LAYERS = 8
COLUMNS = ("model MB", "servers", "way", "bucket MB", "buckets", "sent MB", "seconds", "ratio", "memory MB")
TIMEOUT_S = 300.0


# --- a server ------------------------------------------------------------------------------------------------------


class Receiver(http.server.ThreadingHTTPServer):
    """Answers what a trainer asks of a vLLM server when it publishes; holds tensors in the place of a model."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.label = "default"
        self.adapters: list[str] = []
        self.held: dict[str, torch.Tensor] = {}
        self.receiver = BucketReceiver(self.load, 0)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take tensors, as a model does."""
        for name, tensor in weights:
            if name in self.held:
                self.held[name].copy_(tensor)
            else:
                self.held[name] = tensor.clone()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; every reply says everything that a trainer wants to know."""
        actions: dict[str, Callable[[], object]] = {
            "/start_weight_update": self.receiver.begin,
            "/init_weight_transfer_engine": lambda: self.receiver.join(GroupInfo(**body["init_info"])),
            "/update_weights": lambda: self.receiver.take(BucketInfo(**body["update_info"])),
            "/finish_weight_update": self.finish,
            "/update_weight_version": lambda: setattr(self, "label", body["new_version"]),
            "/load_whole": lambda: self.load(torch.load(body["path"]).items()),
            "/v1/load_lora_adapter": lambda: self.load_adapter(body["lora_name"], Path(body["lora_path"])),
            "/v1/unload_lora_adapter": lambda: self.adapters.remove(body["lora_name"]),
        }
        actions.get(path.partition("?")[0], lambda: None)()
        names = [{"id": name, "max_model_len": 1} for name in ("model", *self.adapters)]
        return {"weight_version": self.label, "world_size": 1, "data": names}

    def finish(self) -> None:
        """Put what has come to use."""
        self.receiver.finish()
        self.receiver.leave()

    def load_adapter(self, name: str, folder: Path) -> None:
        """Take an adapter."""
        self.load(load_file(folder / "adapter_model.safetensors").items())
        self.adapters.append(name)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a reply in one piece: two of them wait for each other's confirmation
    server: Receiver

    def _reply(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        reply = json.dumps(self.server.answer(self.path, body or {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_POST = _reply

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def receivers(number: int) -> Iterator[list[str]]:
    """Run servers in processes of their own, and yield their addresses."""
    command = [sys.executable, __file__, "--receive"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) for _ in range(number)]
    try:
        yield [f"http://127.0.0.1:{int(process.stdout.readline())}" for process in running if process.stdout]
    finally:
        for process in running:
            process.kill()
            process.wait()


# --- the trainer ---------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One push."""

    model_mb: int
    servers: int
    way: str
    bucket_mb: int
    buckets: int
    sent_mb: float
    seconds: float
    memory_mb: float


class Growth:
    """What the resident memory of this process grows by at most."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was used before is not to be used again unseen
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._read("VmRSS")

    def peak_mb(self) -> float:
        """Return it, in MB."""
        return (self._read("VmHWM") - self._before) / 1024

    @staticmethod
    def _read(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


def make_model(model_mb: int) -> Any:
    """Return a model of about so many MB in bfloat16."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width = max(64, int((model_mb * MB / 2 / LAYERS / 11.5) ** 0.5) // 64 * 64)
    config = Qwen3Config(
        hidden_size=width, intermediate_size=width * 5 // 2, num_hidden_layers=LAYERS, vocab_size=4 * width,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, head_dim=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


def adapter_of(shards: ShardedModel, rank: int = 16) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter on all linear layers."""
    tensors: dict[str, torch.Tensor] = {}
    for name, module in shards.model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            tensors[f"{name}.lora_A.weight"] = torch.zeros(rank, module.in_features, dtype=torch.bfloat16)
            tensors[f"{name}.lora_B.weight"] = torch.zeros(module.out_features, rank, dtype=torch.bfloat16)
    return tensors


class Trainer:
    """One rank; the main one also talks to the servers."""

    def __init__(self, shards: ShardedModel, ranks: Ranks, folder: Path, model_mb: int) -> None:
        self.shards, self.ranks, self.folder, self.model_mb = shards, ranks, folder, model_mb
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.version = 0

    def call(self, work: Any) -> Any:
        """Run something on the loop that talks to servers."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def plain(self, urls: list[str]) -> tuple[int, int]:
        """Push a whole state dict; return pieces and bytes."""
        with self.shards.collected():
            if not self.ranks.is_main:
                return 1, 0
            path = self.folder / "whole.pt"
            torch.save(dict(self.shards.state_dict()), path)

            async def tell_all() -> None:
                ends = [Endpoint(url, patience=Patience()) for url in urls]
                replies = await asyncio.gather(*(end.post("/load_whole", {"path": str(path)}) for end in ends))
                assert all(reply.is_good for reply in replies), replies
                await asyncio.gather(*(end.close() for end in ends))

            self.call(tell_all())
            size = path.stat().st_size
            path.unlink()
            return 1, size

    def buckets(self, urls: list[str], transport: str, bucket_bytes: int) -> tuple[int, int]:
        """Push buckets; return pieces and bytes."""
        with self.shards.streamed():
            if not self.ranks.is_main:
                return 1, 0
            stream = self.shards.stream
            self.version += 1
            stored = WeightFolder(self.folder / f"v{self.version}", plan_buckets(stream.specs, bucket_bytes))
            published = Published(version=self.version, label=f"v{self.version}", weights=stored)
            servers = self.servers(urls, VllmServer)
            way = (
                FolderTransport(TIMEOUT_S)
                if transport == "file"
                else GroupTransport(transport, host="", timeout_s=TIMEOUT_S)
            )
            telling = asyncio.run_coroutine_threadsafe(way.give(servers, published), self.loop)
            for image in images(stored.buckets, stream):
                self.call(stored.add(image))
                del image
            faults = telling.result()
            assert not faults, faults
            self.leave(servers)
            subprocess.run(["rm", "-r", str(stored.folder)], check=True)
            return len(stored.buckets), stored.num_bytes

    def adapter(self, urls: list[str]) -> tuple[int, int]:
        """Push an adapter; return pieces and bytes."""
        if not self.ranks.is_main:
            return 1, 0
        self.version += 1
        folder = self.folder / f"adapter@{self.version}"
        folder.mkdir()
        save_file(adapter_of(self.shards), folder / "adapter_model.safetensors")
        servers = self.servers(urls, lambda url, **settings: AdapterServer(url, "adapter", **settings))
        published = Published(version=self.version, label=folder.name, folder=folder)
        faults = self.call(FolderTransport(TIMEOUT_S).give(servers, published))
        assert not faults, faults
        self.leave(servers)
        return 1, sum(path.stat().st_size for path in folder.iterdir())

    def servers(self, urls: list[str], make: Callable[..., VllmServer]) -> list[VllmServer]:
        """Return what talks to servers."""
        return [make(url, patience=Patience()) for url in urls]

    def leave(self, servers: list[VllmServer]) -> None:
        """Close connections."""
        for server in servers:
            self.call(server.close())

    def measure(self, way: str, bucket_mb: int, urls: list[str], repeat: int) -> Row:
        """Push several times and return what it took."""
        pushes: dict[str, Callable[[], tuple[int, int]]] = {
            "plain": lambda: self.plain(urls),
            "adapter": lambda: self.adapter(urls),
        }
        push = pushes.get(way, lambda: self.buckets(urls, way, bucket_mb * MB))
        push()  # servers make room for what they hold
        seconds, memory = [], []
        for _ in range(repeat):
            dist.barrier()
            growth, begun = Growth(), time.perf_counter()
            num_buckets, num_bytes = push()
            seconds.append(time.perf_counter() - begun)
            memory.append(growth.peak_mb())
        return Row(
            self.model_mb, len(urls), way, bucket_mb, num_buckets, num_bytes / MB,
            statistics.median(seconds), statistics.median(memory),
        )  # fmt: skip


def run_rank(rank: int, model_mb: int, options: argparse.Namespace, folder: str) -> None:
    """Be a rank of the trainer for one size of model."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_S)
    )
    ranks = Ranks(rank, 2)
    shards = ShardedModel(
        "model", make_model(model_mb), dtype=torch.bfloat16, device=torch.device("cpu"), ranks=ranks,
        settings=DistributedConfig(sharding="fsdp"),
    )  # fmt: skip
    trainer = Trainer(shards, ranks, Path(folder), model_mb)
    # Adapters first: a server whose model has moved answers for none.
    ways = [("adapter", 0), ("plain", 0), *((way, size) for way in ("file", "gloo") for size in options.buckets)]
    rows = []
    for number in options.servers:
        with receivers(number if rank == 0 else 0) as urls:
            for way, size in ways:
                rows.append(trainer.measure(way, size, urls, options.repeat))
    if rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps([asdict(row) for row in rows]))
    dist.barrier()
    dist.destroy_process_group()


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table(*COLUMNS, title="two sharded ranks to light servers, one thread each")
    plain = {(row.model_mb, row.servers): row.seconds for row in rows if row.way == "plain"}
    for row in rows:
        ratio = row.seconds / plain[row.model_mb, row.servers]
        table.add_row(
            str(row.model_mb), str(row.servers), row.way, str(row.bucket_mb or ""), str(row.buckets),
            f"{row.sent_mb:.1f}", f"{row.seconds:.2f}", f"{ratio:.2f}", f"{row.memory_mb:.0f}",
        )  # fmt: skip
    Console(width=120).print(table)


def numbers(text: str) -> list[int]:
    """Read numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=numbers, default=[32, 256], help="sizes in MB of bfloat16")
    parser.add_argument("--servers", type=numbers, default=[1, 2, 4], help="numbers of servers")
    parser.add_argument("--buckets", type=numbers, default=[4, 32], help="sizes of buckets in MB")
    parser.add_argument("--repeat", type=int, default=3, help="pushes of each kind")
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None, help="for the files")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        torch.set_num_threads(1)
        receiver = Receiver()
        print(receiver.server_port, flush=True)
        receiver.serve_forever()
    # Otherwise the C library keeps what was freed, and its memory is not what is in use.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MB // 4)
    processes: Any = mp  # its functions have no types
    for model_mb in options.models:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            processes.spawn(run_rank, (model_mb, options, folder), nprocs=2)
            show([Row(**row) for row in json.loads((Path(folder) / "rows.json").read_text())])


if __name__ == "__main__":
    main()
