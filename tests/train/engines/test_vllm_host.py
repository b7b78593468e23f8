"""What a host asks of vLLM, and in which order: on a stand-in, so that it is known without vLLM and without a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from srpo_envs.errors import EngineError
from srpo_train.engines.vllm_host import VllmHost
from srpo_train.engines.vllm_library import living

WEIGHTS = {"a": torch.zeros(2), "b": torch.ones(3)}


class FakeLLM:
    """Writes down what it is asked for, and takes tensors one by one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken: list[str] = []
        self.resets = True
        self.stops_at = ""
        self.release = threading.Event()
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: self.calls.append("shutdown")))

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, request) -> None:
        for name, _ in request["update_info"]["weights"]:
            if name == self.stops_at:
                self.release.wait(30)
            self.taken.append(name)
        self.calls.append("update")

    def finish_weight_update(self) -> None:
        self.calls.append("finish")

    def update_weight_version(self, version: str) -> None:
        self.calls.append(f"version {version}")

    def collective_rpc(self, method, kwargs) -> None:
        self.calls.append(method)
        self.taken += [name for name, _ in kwargs["weights_iterator"]]

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        assert reset_running_requests
        self.calls.append("reset")
        return self.resets

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags=None) -> None:
        self.calls.append(f"wake {tags}")


@pytest.fixture
def llm():
    return FakeLLM()


@pytest.fixture
def make_host(llm):
    made = []

    def make(**options) -> VllmHost:
        made.append(VllmHost(llm, "solver", **{"publish_timeout_s": 10.0, **options}))
        return made[-1]

    yield make
    llm.release.set()
    for host in made:
        host.close()


def test_a_push_takes_every_tensor_stamps_the_version_and_clears_the_prefix_cache(llm, make_host):
    make_host().push(3, WEIGHTS)
    assert llm.taken == ["a", "b"]
    assert llm.calls == ["start", "update", "finish", "reset", "version 3"]


def test_without_the_transfer_interface_the_weights_are_reloaded(llm, make_host):
    make_host(has_transfer=False).push(3, WEIGHTS)
    assert llm.taken == ["a", "b"]
    assert llm.calls == ["reload_weights", "reset", "version 3"]


def test_a_host_that_sleeps_wakes_its_weights_for_a_push_and_the_rest_afterwards(llm, make_host):
    host = make_host(sleeps=True)
    host.sleep()
    host.sleep()
    host.push(1, WEIGHTS)
    host.push(2, WEIGHTS)
    once = ["start", "update", "finish"]
    assert llm.calls == [
        "sleep 1",
        "wake ['weights']",
        *once,
        "wake None",
        "reset",
        "version 1",
        *once,
        "reset",
        "version 2",
    ]


def test_a_host_that_cannot_sleep_is_left_alone(llm, make_host):
    make_host().sleep()
    assert llm.calls == []


def test_a_prefix_cache_that_is_not_cleared_ends_the_host(llm, make_host):
    llm.resets = False
    host = make_host()
    with pytest.raises(EngineError, match="prefix cache could not be reset"):
        host.push(1, WEIGHTS)
    with pytest.raises(EngineError, match="cannot be used any more"):
        host.push(2, WEIGHTS)
    assert "version 1" not in llm.calls


def test_a_push_that_hangs_says_where(llm, make_host):
    llm.stops_at = "b"
    with pytest.raises(
        EngineError, match=r"version 1 failed: rank 0 at 'b' \(2 of 2 tensors\): no answer within 0.1 s"
    ):
        make_host(publish_timeout_s=0.1).push(1, WEIGHTS)


def test_the_last_host_of_a_process_ends_them_all(llm, make_host):
    first, second = make_host(), VllmHost(other := FakeLLM(), "judge", publish_timeout_s=1.0)
    first.close()
    first.close()
    assert llm.calls == []  # vLLM would take down what the second one needs
    second.close()
    assert llm.calls == other.calls == ["shutdown"]
    assert not living._in_use
