"""Sampling with vLLM in this process, on CPU or GPU; new weights are published to it after every update."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_train.config import VllmConfig
from srpo_train.engines.adapters import StoredAdapter
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.kept import within_kept
from srpo_train.engines.limits import given_up, overlong, room_for
from srpo_train.engines.publishing import PushReport, WeightSpecs, of_version, weights_of
from srpo_train.engines.vllm_adapters import BASE_VERSION, AdapterWeights, BaseWeights
from srpo_train.engines.vllm_host import VllmHost
from srpo_train.policies.policy import Policy
from srpo_train.policies.shared_base import SharedBase

_SEEDS = 2**63
"""vLLM keeps seeds in signed 64-bit integers, and takes -1 for none."""

UNKNOWN_VERSION = -1
"""Version of what weights sampled that nobody published here."""


class Weights(Protocol):
    """What an engine publishes into its host: a whole model, or an adapter over one."""

    lora: Any
    """vLLM's name for the adapter that requests are to use; None for the model itself."""

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Check and push, and return the bytes; see `PublishingEngine.publish`."""
        ...

    def stamp(self, version: int) -> str:
        """Return how vLLM marks what it samples while a version of these weights is published."""
        ...

    def close(self) -> None:
        """Release what was needed to publish."""
        ...


class WholeModel:
    """The weights of a host that has one policy.

    Args:
        policy: Its tensors, as they are now, are what every push is held against.
        host: Takes them.
    """

    lora = None

    def __init__(self, policy: Policy, host: VllmHost) -> None:
        self._host = host
        self._specs = WeightSpecs(policy.policy_id, weights_of(policy))

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Replace all weights of the host, and return their bytes."""
        self._host.push(version, self._specs.check(version, weights))
        return self._specs.num_bytes

    def stamp(self, version: int) -> str:
        """Return the version: the model has no other weights."""
        return str(version)

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Running:
    """A request in the host."""

    request: GenerationRequest
    prompt: tuple[int, ...]
    version: int
    begun: float
    with_kept: bool
    name: str = ""
    answer: Generation | None = None


class VllmEngine:
    """Samples from a copy of a policy in vLLM, with continuous batching.

    It answers as `TransformersEngine` does: the same fields with the same meaning. Seeds are honoured, but draw other
    tokens than there.

    Args:
        policy: Whose prompts it encodes and whose responses it decodes.
        host: The vLLM that samples; several engines may share one.
        weights: What this engine publishes there. The policy's weights must be published before the first request.
        max_model_len: Context of the host; 0 for the policy's.
    """

    def __init__(self, policy: Policy, host: VllmHost, weights: Weights, *, max_model_len: int = 0) -> None:
        self._policy = policy
        self._host = host
        self._weights = weights
        lengths = [length for length in (policy.context_length, max_model_len) if length]
        self._context_length = min(lengths) if lengths else None
        self._version = policy.version
        self._submitted: dict[str, _Running] = {}
        self._ready: list[Generation] = []
        self._is_closed = False
        host.num_users += 1

    @classmethod
    def open(cls, policy: Policy, options: VllmConfig | None = None) -> VllmEngine:
        """Start vLLM for one policy and give it the policy's weights.

        Raises:
            MissingExtraError: vLLM is not installed.
            EngineError: vLLM cannot be made, or does not take the weights.
        """
        options = options or VllmConfig()
        host = VllmHost.open(policy, options)
        engine = cls(policy, host, WholeModel(policy, host), max_model_len=options.max_model_len)
        engine.publish(policy.version, weights_of(policy))
        return engine

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy.policy_id

    @property
    def published_version(self) -> int:
        """Version of the weights that sample now."""
        return self._version

    # --- weights --------------------------------------------------------------------------------------------------

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> PushReport:
        """Replace the weights; requests under way come back as aborted, and may be asked again.

        Raises:
            EngineError: the weights do not fit (then nothing has moved), or the push failed or took too long.
        """
        begun = time.monotonic()
        num_bytes = self._weights.publish(version, weights)
        self._version = version
        return PushReport(seconds=time.monotonic() - begun, num_bytes=num_bytes)

    def release_memory(self) -> None:
        """Let vLLM sleep until the next publication or request, where the recipe and the platform allow it."""
        self._host.sleep()

    # --- requests -------------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        Raises:
            EngineError: vLLM failed as a whole.
        """
        batch = self._begin(requests, sampling)
        while any(running.answer is None for running in batch):
            self._host.step()
        return [running.answer for running in batch if running.answer]

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Begin to answer requests, whose ids differ from those under way.

        Raises:
            EngineError: vLLM failed as a whole; all requests are forgotten.
        """
        for running in self._begin(requests, sampling):
            self._submitted[running.request.request_id] = running

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been finished since the last poll; decode for at most `timeout_s` when there is nothing.

        Raises:
            EngineError: vLLM failed as a whole; all requests are forgotten.
        """
        deadline = time.monotonic() + timeout_s
        while not self._collect() and self._submitted:
            try:
                self._host.step()
            except EngineError:
                self._submitted.clear()
                raise
            if time.monotonic() >= deadline:
                self._collect()
                break
        ready, self._ready = self._ready, []
        return ready

    def cancel(self, request_ids: Collection[str]) -> None:
        """Give requests up; they do not come back."""
        unwanted = set(request_ids)
        self._host.abort([self._submitted.pop(name).name for name in unwanted if name in self._submitted])
        self._ready = [generation for generation in self._ready if generation.request_id not in unwanted]

    def close(self) -> None:
        """Leave the host, which ends with its last engine; safe to call more than once."""
        if not self._is_closed:
            self._is_closed = True
            self._submitted.clear()
            self._weights.close()
            self._host.num_users -= 1
            if not self._host.num_users:
                self._host.close()

    def _collect(self) -> bool:
        """Move finished requests to what is ready; says whether anything is."""
        done = [name for name, running in self._submitted.items() if running.answer]
        self._ready += [answer for name in done if (answer := self._submitted.pop(name).answer)]
        return bool(self._ready)

    def _begin(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[_Running]:
        prompts = {text: self._policy.encode_prompt(text) for text in {request.prompt for request in requests}}
        batch = [
            _Running(request, prompts[request.prompt], self._version, time.perf_counter(), sampling.with_kept)
            for request in requests
        ]
        for running in batch:
            self._start(running, sampling)
        return batch

    def _start(self, running: _Running, sampling: Sampling) -> None:
        request, prompt = running.request, running.prompt
        limit = room_for(request, prompt, self._context_length)
        if limit < 1:
            length = self._context_length
            running.answer = overlong(
                request, prompt, policy_id=self.policy_id, context_length=length, version=running.version
            )
            return
        params = self._params(request, sampling, limit)
        try:
            running.name = self._host.begin(
                prompt, params, lambda output, reason: self._finish(running, output, reason), self._weights.lora
            )
        except ValueError as error:  # such as a token that the model does not have
            running.answer = given_up(request, prompt, str(error), version=running.version, is_hopeless=True)

    def _params(self, request: GenerationRequest, sampling: Sampling, limit: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=limit,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=request.seed % _SEEDS,
            stop=list(request.stop),
            stop_token_ids=list(self._policy.eos_ids),
            ignore_eos=True,  # the policy's own list decides
            logprobs=sampling.top_k if sampling.with_kept else 0,  # 0: that of the sampled token alone
            flat_logprobs=True,
            detokenize=bool(request.stop),  # stop texts are looked for in vLLM's text; ours is decoded at the end
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _finish(self, running: _Running, output: Any, reason: str) -> None:
        if output is None:
            running.answer = given_up(running.request, running.prompt, reason, version=running.version)
            return
        token_ids = tuple(output.token_ids)
        kept, logprobs = _read_kept(output.logprobs) if running.with_kept else ((), tuple(output.logprobs.logprobs))
        if not all(map(math.isfinite, logprobs)):
            raise EngineError(
                f"engine of policy {self.policy_id!r} (version {running.version}): the model's logits are not finite "
                f"in request {running.request.request_id!r}"
            )
        generation = Generation(
            request_id=running.request.request_id,
            text=self._policy.decode(token_ids),
            prompt_token_ids=running.prompt,
            token_ids=token_ids,
            logprobs=logprobs,
            kept_token_ids=kept,
            finish_reason="length" if output.finish_reason == "length" else "stop",
            policy_version=self._version_of(running, output),
            timings={"generate_s": time.perf_counter() - running.begun},
        )
        running.answer = of_version(generation, self._version)

    def _version_of(self, running: _Running, output: Any) -> int:
        """The version that sampled a response; vLLM's own stamp contradicts ours only if something is badly wrong."""
        stamps = {span.version for span in getattr(output, "weight_versions", None) or ()}
        strange = stamps - {self._weights.stamp(running.version)}
        if not strange:
            return running.version
        stamp = min(strange)
        return int(stamp) if stamp.isdecimal() else UNKNOWN_VERSION


def _read_kept(flat: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Read what was left at each position, the sampled token first, and its log-probability within that."""
    places = [slice(*place) for place in zip(flat.start_indices, flat.end_indices, strict=True)]
    lists = [list(zip(flat.token_ids[place], flat.logprobs[place], strict=True)) for place in places]
    read = [within_kept(listed[0], listed[1:]) for listed in lists]
    return tuple(kept for kept, _ in read), tuple(logprob for _, logprob in read)


def open_engines(policies: Iterable[Policy], options: VllmConfig | None = None) -> dict[str, VllmEngine]:
    """Start vLLM for some policies, and return the engines by policy id, with the policies' weights in them.

    Policies over one base share a vLLM; any other policy has one of its own.

    Raises:
        MissingExtraError: vLLM is not installed.
        EngineError: vLLM cannot be made, or does not take the weights.
    """
    options = options or VllmConfig()
    engines: dict[str, VllmEngine] = {}
    by_base: dict[SharedBase, list[Policy]] = {}
    for policy in policies:
        if policy.share is None:
            engines[policy.policy_id] = VllmEngine.open(policy, options)
        else:
            by_base.setdefault(policy.share.base, []).append(policy)
    for base, group in by_base.items():
        engines |= _open_group(base, group, options)
    return engines


def _open_group(base: SharedBase, policies: Sequence[Policy], options: VllmConfig) -> dict[str, VllmEngine]:
    """Start one vLLM for policies over one base."""
    adapters = {policy.policy_id: StoredAdapter.of(policy) for policy in policies if policy.share and policy.share.name}
    ranks = [adapter.rank for adapter in adapters.values()]
    host = VllmHost.open(policies[0], options, num_adapters=len(adapters), lora_rank=max(ranks, default=0))
    host.push(BASE_VERSION, base.state_dict())
    engines = {}
    for number, policy in enumerate(policies, start=1):
        adapter = adapters.get(policy.policy_id)
        weights = AdapterWeights(policy.policy_id, host, number, adapter) if adapter else BaseWeights(policy.policy_id)
        engine = VllmEngine(policy, host, weights, max_model_len=options.max_model_len)
        if adapter:
            engine.publish(policy.version, weights_of(policy))
        engines[policy.policy_id] = engine
    return engines
