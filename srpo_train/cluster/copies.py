"""Engines in processes of their own: copies of a policy that sample with transformers and are given its weights.

Weights travel through Ray's object store, once to each machine. They have a name, the version and a random part, which
every request carries: a copy with others, because it was restarted, refuses, and is given the published ones before it
is asked again. So no response comes from weights that are not the published ones.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from srpo_envs.errors import EngineError, WorkerLostError
from srpo_train.cluster.lines import Answer, Line, answered
from srpo_train.cluster.roster import Desk
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.publishing import PushReport, WeightSpecs, of_version, weights_of
from srpo_train.engines.routing import PrefixRouter

if TYPE_CHECKING:
    from srpo_train.engines.transformers import TransformersEngine
    from srpo_train.policies.policy import Policy

logger = logging.getLogger(__name__)

Packed = dict[str, tuple[torch.dtype, tuple[int, ...], Any]]
"""Tensors by name, as number format, shape and bytes, which Ray keeps in memory that processes of a machine share."""

_PAUSE_S = 0.5


class StaleWeightsError(WorkerLostError):
    """A copy has other weights than those it was asked to sample with."""


def pack(weights: Mapping[str, Tensor]) -> Packed:
    """Return tensors as bytes; numpy does not know every number format of torch."""
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        for name, tensor in weights.items()
    }


def unpack(packed: Packed) -> dict[str, Tensor]:
    """Return the tensors again, as copies: what Ray shares cannot be written to."""
    return {
        name: torch.from_numpy(np.array(data)).view(dtype).reshape(shape)
        for name, (dtype, shape, data) in packed.items()
    }


class CopyHost:
    """One copy of a policy, and what samples from it.

    Args:
        policy_id: The policy.
        spec: How it is loaded, see `Policy.load`.
        max_batch_tokens: See `TransformersEngine`.
    """

    def __init__(self, policy_id: str, spec: Mapping[str, Any], max_batch_tokens: int) -> None:
        from srpo_train.engines.transformers import TransformersEngine
        from srpo_train.policies.policy import Policy

        self._policy: Policy = Policy.load(policy_id, **spec)
        self._engine: TransformersEngine = TransformersEngine(self._policy, max_batch_tokens=max_batch_tokens)
        self._label = ""

    @torch.no_grad()
    def take(self, label: str, version: int, packed: Packed) -> None:
        """Replace the weights; in between the copy answers for none."""
        self._label = ""
        given = unpack(packed)
        for name, tensor in weights_of(self._policy):
            tensor.copy_(given[name])
        self._policy.version = version
        self._label = label

    def generate(self, label: str, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Sample with the weights of a name.

        Raises:
            StaleWeightsError: this copy has others.
            EngineError: the model failed.
        """
        if label != self._label:
            raise StaleWeightsError(f"the copy has the weights {self._label!r}, not {label!r}")
        return self._engine.generate(requests, sampling)


class CopyActor:
    """The Ray actor around a `CopyHost`.

    Args:
        desk: Tells the driver that this engine is there.
        num_threads: Threads torch may use; 0 leaves its own choice.
        host: The host's arguments.
    """

    def __init__(self, desk: Desk, num_threads: int, **host: Any) -> None:
        if num_threads:
            torch.set_num_threads(num_threads)
        desk.arrive()
        self._host = CopyHost(**host)

    def ready(self) -> Answer:
        """Answer once the model is loaded."""
        return Answer()

    def ask(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the host."""
        return answered(lambda: getattr(self._host, method)(*arguments))

    def take(self, label: str, version: int, packed: Packed) -> Answer:
        """Give the host new weights; a method of its own, since Ray fetches only what stands among the arguments."""
        return answered(lambda: self._host.take(label, version, packed))


class CopiesEngine:
    """Samples from copies of a policy, and publishes weights to them.

    Requests with one prompt go to one copy; the copies share them evenly. When a copy dies, the others take its
    requests over, and it gets the published weights when it is back.

    Args:
        policy: What is published must look like its weights.
        lines: The copies, at least one.
        store: Puts weights where all copies find them, such as ``ray.put``.
        outage_s: How long to wait while no copy answers, before the engine has failed.
    """

    def __init__(
        self,
        policy: Policy,
        lines: Sequence[Line],
        *,
        store: Callable[[Packed], Any],
        outage_s: float = 300.0,
    ) -> None:
        self._policy = policy
        self._lines = {line.name: line for line in lines}
        self._store = store
        self._outage_s = outage_s
        self._specs = WeightSpecs(policy.policy_id, weights_of(policy))
        self._fit: set[str] = set()  # have the published weights, as far as is known
        self._version = policy.version
        self._label = ""
        self._weights: Any = None

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy.policy_id

    @property
    def published_version(self) -> int:
        """Version of the weights that sample now."""
        return self._version

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> PushReport:
        """Give all copies new weights; one that is lost gets them when it is back, and one at least must take them.

        Raises:
            EngineError: the weights do not fit (then nothing has moved), a copy refuses them, or none can be reached.
        """
        begun = time.monotonic()
        checked = self._specs.check(version, weights)
        self._weights = self._store(pack(checked))
        self._version, self._label = version, f"{version}-{uuid.uuid4().hex[:8]}"
        self._fit.clear()
        self._wait_for_a_copy()
        num_unfit = len(self._lines) - len(self._fit)
        return PushReport(seconds=time.monotonic() - begun, num_bytes=self._specs.num_bytes, num_unfit=num_unfit)

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        Raises:
            EngineError: a copy failed as an engine, or none could be reached for too long.
        """
        found: dict[str, Generation] = {}
        while left := [request for request in requests if request.request_id not in found]:
            self._wait_for_a_copy()
            for generation in self._ask(left, sampling):
                found[generation.request_id] = of_version(generation, self._version)
        return [found[request.request_id] for request in requests]

    def release_memory(self) -> None:
        """Do nothing: the copies' memory is theirs."""

    def close(self) -> None:
        """Let go of the published weights; the copies end with the run."""
        self._weights = None

    def _ask(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Have fit copies share requests; return what came back, and set those aside that are lost."""
        shares = deal_by_prompt(requests, sorted(self._fit))
        waits = {}
        for name, share in shares.items():
            try:
                waits[name] = self._lines[name].send("ask", "generate", self._label, share, sampling)
            except WorkerLostError as error:
                self._set_aside(name, error)
        answers: list[Generation] = []
        for name, wait in waits.items():
            try:
                answers += wait()
            except WorkerLostError as error:
                self._set_aside(name, error)
        return answers

    def _set_aside(self, name: str, error: WorkerLostError) -> None:
        logger.warning("%s gets no more requests until it has the published weights: %s", name, error)
        self._fit.discard(name)

    def _wait_for_a_copy(self) -> None:
        """Give the weights to all that lack them, as often as it takes until one has them.

        Raises:
            EngineError: none had them in time.
        """
        end = time.monotonic() + self._outage_s
        while True:
            troubles = self._give_weights()
            if self._fit:
                return
            if time.monotonic() > end:
                raise EngineError(
                    f"engine of policy {self.policy_id!r}: no copy answered for {self._outage_s:g} s ({troubles})"
                )
            time.sleep(_PAUSE_S)

    def _give_weights(self) -> str:
        """Publish to every copy that is not fit; return what hindered it."""
        waits, troubles = {}, []
        for name in self._lines.keys() - self._fit:
            try:
                waits[name] = self._lines[name].send("take", self._label, self._version, self._weights)
            except WorkerLostError as error:
                troubles.append(str(error))
        for name, wait in waits.items():
            try:
                wait()
            except WorkerLostError as error:
                troubles.append(str(error))
            else:
                self._fit.add(name)
        return "; ".join(sorted(troubles))


def deal_by_prompt(requests: Sequence[GenerationRequest], names: Sequence[str]) -> dict[str, list[GenerationRequest]]:
    """Share requests out so that those with one prompt are together, unless that makes one copy wait for the others.

    Example:
        >>> deal_by_prompt([], ["engine of team 0"])
        {}
    """
    router = PrefixRouter(slack=max(1, len(requests) // (4 * len(names))))
    shares: dict[str, list[GenerationRequest]] = {name: [] for name in names}
    for request in requests:
        name = router.pick(request.prompt, {name: len(share) for name, share in shares.items()})
        shares[name].append(request)
    return {name: share for name, share in shares.items() if share}
