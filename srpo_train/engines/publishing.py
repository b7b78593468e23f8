"""Publishing: new weights reach an engine that holds a copy of them - whole, checked, in time, and under a number.

A push that goes wrong must never pass for one that went well. What was read of other systems, and tried: a tensor that
is left out leaves its old value in place without a word, a part of a fused layer gives garbage, an error half-way
leaves a model whose next call may not return, and a lost peer makes a push wait for ever. So names, shapes and number
formats are checked before anything moves, a push has a deadline that says how far it came, and every generation
carries the number of the weights that sampled it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_train.engines.base import Engine, Generation
from srpo_train.engines.weight_stream import TensorSpec, WeightStream
from srpo_train.policies.policy import Policy

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_NAMED = 3
"""Tensors an error names of each kind."""


@runtime_checkable
class PublishingEngine(Engine, Protocol):
    """An engine that holds a copy of its policy's weights."""

    @property
    def published_version(self) -> int:
        """Version of the weights that sample now."""
        ...

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> PushReport:
        """Replace the weights and say what it took; requests under way are given up and come back as aborted.

        Args:
            version: Number of these weights, written on every generation from now on.
            weights: What `weights_of` gives for the policy: every tensor, by name.

        Raises:
            EngineError: a tensor is missing, unknown or of another shape or number format (then nothing has moved and
                the old weights go on), or the push failed or missed its deadline (then the engine is of no more use).
        """
        ...

    def release_memory(self) -> None:
        """Give accelerator memory back until the next publication or request, where the engine can."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PushReport:
    """What a publication took."""

    seconds: float
    """From the call to the last server's word."""
    num_bytes: int
    """Sent to each server."""
    num_buckets: int = 1
    """Pieces they came in."""
    server_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each server that has them now, by address, from the beginning to its word."""
    num_unfit: int = 0
    """Servers that do not have them yet."""


def push_metrics(reports: Sequence[PushReport]) -> dict[str, float]:
    """Return what publications took, one after the other; nothing where there were none."""
    if not reports:
        return {}
    slowest = [seconds for report in reports for seconds in report.server_s.values()]
    return {
        "publish/seconds": sum(report.seconds for report in reports),
        "publish/bytes": float(sum(report.num_bytes for report in reports)),
        "publish/buckets": float(sum(report.num_buckets for report in reports)),
        "publish/slowest_s": max(slowest, default=max(report.seconds for report in reports)),
        "publish/unfit_servers": float(sum(report.num_unfit for report in reports)),
    }


def weights_of(policy: Policy) -> Iterable[tuple[str, Tensor]]:
    """Return what an engine needs to answer as a policy: every tensor of its state by name, or of its adapter's.

    That includes both names of tied tensors: an engine that is given one of them may leave the other as it was. Of a
    model that is spread over ranks it is a stream, which there is only while the model is `streamed`.
    """
    if policy.shards:
        return policy.shards.stream
    state: Mapping[str, Tensor] = (policy.share or policy.model).state_dict()
    return state.items()


class WeightSpecs:
    """The tensors of a policy, by name; made once, and held against every push.

    Args:
        policy_id: Named in errors.
        weights: The policy's tensors as they are at the beginning.
    """

    def __init__(self, policy_id: str, weights: Iterable[tuple[str, Tensor]]) -> None:
        self._policy_id = policy_id
        self._specs = dict(weights.specs) if isinstance(weights, WeightStream) else specs_of(dict(weights))

    @property
    def num_bytes(self) -> int:
        """Size of all of them."""
        return sum(spec.num_bytes for spec in self._specs.values())

    def check(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return the tensors of a push by name, without their gradients, if they are exactly those expected.

        Raises:
            EngineError: names every kind of difference; nothing has moved.
        """
        given: dict[str, Tensor] = {}
        twice = []
        for name, tensor in weights:
            if name in given:
                twice.append(f"{name!r} twice")
            given[name] = tensor.detach()
        self._require(version, specs_of(given), twice)
        return given

    def stream(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> WeightStream:
        """Return the tensors of a push one after the other, if they will be exactly those expected.

        Raises:
            EngineError: names every kind of difference; nothing has moved.
        """
        if not isinstance(weights, WeightStream):
            return WeightStream(self._specs, self.check(version, weights).__getitem__)
        self._require(version, weights.specs)
        return weights

    def _require(self, version: int, given: Mapping[str, TensorSpec], problems: Sequence[str] = ()) -> None:
        missing = [name for name in self._specs if name not in given]
        unknown = [name for name in given if name not in self._specs]
        other = [
            f"{name!r} is {given[name]}, expected {spec}"
            for name, spec in self._specs.items()
            if name in given and given[name] != spec
        ]
        problems = [*problems, *_listed("missing", missing), *_listed("unknown", unknown), *other[:_NAMED]]
        if problems:
            raise EngineError(
                f"policy {self._policy_id!r}: the weights of version {version} do not fit ({'; '.join(problems)}); "
                f"nothing has moved; every push needs all {len(self._specs)} tensors, as the policy's state has them"
            )


class PushProgress:
    """Tensors on their way to a rank, and how far they have come.

    Args:
        weights: By name.
        rank: Who takes them.
        notes: Folder in which another process can read how far they have come.
    """

    def __init__(self, weights: Mapping[str, Tensor], rank: int = 0, notes: Path | None = None) -> None:
        self._weights = weights
        self._rank = rank
        self._notes = notes
        self._followed: Path | None = None
        self._number = 0
        self._name = ""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for number, (name, tensor) in enumerate(self._weights.items(), start=1):
            self._number, self._name = number, name
            if self._notes:
                with contextlib.suppress(OSError):  # a folder that can only be read holds the weights all the same
                    (self._notes / f"rank-{self._rank}").write_text(str(self), encoding="utf-8")
            yield name, tensor

    def __str__(self) -> str:
        if self._followed:
            return notes_in(self._followed) or "no rank has taken a tensor"
        where = f"{self._name!r} ({self._number} of {len(self._weights)} tensors)" if self._name else "the first tensor"
        return f"rank {self._rank} at {where}"

    def follow(self, notes: Path) -> None:
        """Tell from now on what the ranks note in a folder."""
        self._followed = notes


def notes_in(folder: Path) -> str:
    """Return how far the ranks have come that take a push, as they noted it."""
    return ", ".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("rank-*")))


def run_within(timeout_s: float, call: Callable[[], _T]) -> _T:
    """Run a call on a thread of its own and return its result.

    A call that hangs cannot be ended from outside; its thread is left behind, and whatever it holds with it.

    Raises:
        TimeoutError: it has not returned in time.
        Exception: whatever the call raised.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if device is not None:  # the current device belongs to a thread
                torch.cuda.set_device(device)
            results.append(call())
        except BaseException as error:  # the boundary of the thread: raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="srpo-publish", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if errors:
        raise errors[0]
    return results[0]


def of_version(generation: Generation, published: int) -> Generation:
    """Return a generation if the published weights sampled it, and otherwise an aborted one that says which did."""
    if generation.policy_version == published or generation.finish_reason == "abort":
        return generation
    reason = f"sampled by version {generation.policy_version}, while version {published} is published"
    logger.warning("request %r is refused: %s", generation.request_id, reason)
    return replace(generation, text="", token_ids=(), logprobs=(), finish_reason="abort", abort_reason=reason)


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return what tensors look like, by name."""
    return {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}


def _listed(kind: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(map(repr, names[:_NAMED]))
    return [f"{len(names)} {kind}: {shown}{' ...' if len(names) > _NAMED else ''}"]
