"""Servers held by actors: how they are started and end, and how their new addresses reach who asks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from srpo_envs.errors import EngineError
from srpo_train.cluster.servers import AddressBook, ServerSpec, _free_port, end_server, server_spec, start_server
from srpo_train.config import load_recipe

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"

FAKE = """
import os, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
def end():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


def spec(code=FAKE, timeout_s=60.0):
    return ServerSpec(model="fake", command=(sys.executable, "-c", code), start_timeout_s=timeout_s)


def recipe(*overrides):
    served = ["engine.kind=served", "engine.served={}", "ray.engines_per_policy=1"]
    return load_recipe(RECIPE, [*served, *overrides])


def test_a_server_is_awaited_and_ends_with_whoever_holds_its_input():
    process = start_server(spec(), f"http://127.0.0.1:{_free_port('127.0.0.1')}")
    assert process.poll() is None
    end_server(process)
    assert process.returncode == 0


def test_a_server_that_ends_before_it_answers_is_an_error():
    with pytest.raises(EngineError, match="server of fake ended with status 3 before it answered"):
        start_server(spec("raise SystemExit(3)"), "http://127.0.0.1:9")


def test_a_server_that_never_answers_is_ended():
    with pytest.raises(EngineError, match="does not answer after 1 s"):
        start_server(spec("import sys; sys.stdin.read()", timeout_s=1.0), "http://127.0.0.1:9")


def test_the_command_is_that_of_a_server_for_the_policy():
    on_cpu = server_spec(recipe(), ["team"]).command
    assert on_cpu[:5] == (sys.executable, "-m", "srpo_train.cli", "serve-policy", "builtin:tiny-team")
    assert on_cpu[5:] == ("--dtype", "float32", "--device", "cpu", "--until-stdin-closes")
    on_gpus = recipe("ray.gpus_per_engine=2", "ray.server_options=['--tensor-parallel-size','2']")
    assert server_spec(on_gpus, ["team"]).command[5:] == (
        *("--dtype", "float32", "--until-stdin-closes"),
        *("--", "--tensor-parallel-size", "2"),
    )


def test_servers_of_adapters_have_room_for_all_of_them():
    both = ("a={model='m',adapter={rank=4}}", "b={model='m',adapter={rank=16}}")
    shared = recipe(f"policies={{{','.join(both)}}}", "roles={verifier='b','*'='a'}")
    command = " ".join(server_spec(shared, ["a", "b"]).command)
    assert "serve-policy m " in command
    assert "--adapters 2 --lora-rank 16" in command


def test_the_command_line_knows_the_option_that_ties_a_server_to_its_starter():
    shown = subprocess.run(
        [sys.executable, "-m", "srpo_train.cli", "serve-policy", "--help"],
        capture_output=True,
        text=True,
        env={"COLUMNS": "200", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        check=True,
    )
    assert "--until-stdin-closes" in shown.stdout


class Engine:
    def __init__(self):
        self.moves = []

    def move_server(self, old, new):
        self.moves.append((old, new))


def test_a_new_address_reaches_the_engines_that_ask_this_server():
    now = {"engine of a 0": "http://x:1", "engine of b 0": "http://x:2"}
    book = AddressBook(lambda: now, dict(now))
    first, second = Engine(), Engine()
    book.add(["engine of a 0"], first)
    book.add(["engine of b 0"], second)
    book.look()
    now["engine of a 0"] = "http://y:3"
    now["engine of c 0"] = "http://y:4"
    book.look()
    book.look()
    assert first.moves == [("http://x:1", "http://y:3")]
    assert second.moves == []
