"""Sampling on vLLM servers, one or many: tokens in, tokens out, over HTTP; new weights are published to all of them."""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.engines.adapters import NoChange, StoredAdapter
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.buckets import images, plan_buckets
from srpo_train.engines.endpoint import Patience
from srpo_train.engines.in_flight import InFlight
from srpo_train.engines.limits import given_up, overlong, room_for
from srpo_train.engines.publishing import PushReport, WeightSpecs, of_version, weights_of
from srpo_train.engines.served_adapters import AdapterServer
from srpo_train.engines.served_fleet import Fleet
from srpo_train.engines.served_server import Published, Sampled, ServerFaultError, VllmServer
from srpo_train.engines.served_transport import FolderTransport, GroupTransport, Transport
from srpo_train.engines.served_weights import WeightFolder
from srpo_train.engines.weight_stream import WeightStream

if TYPE_CHECKING:
    from torch import Tensor

    from srpo_train.policies.policy import Policy

_SEEDS = 2**63
"""vLLM keeps seeds in signed 64-bit integers, and takes -1 for none."""
_KNOWN_PROMPTS = 4096
_REFUSED_TO_ALL = (401, 403, 404, 405)
"""Refusals that every request would meet: no key, or a server that was started otherwise."""


class ServedEngine:
    """Samples from copies of a policy on vLLM servers that `srpo serve-policy` has started.

    It answers as the engines in this process do: token ids, log-probabilities, seeds, stop texts. Requests of one
    prompt go to one server; all others to the least busy one. When a server breaks off, its requests go to the others.
    vLLM writes on every response which weights sampled it, and a response of others than the published ones is refused:
    its server was restarted, and gets them again before it gets more requests.

    Args:
        policy: Whose prompts it encodes and whose responses it decodes; what is published must look like its weights.
        urls: The servers. Those of a policy that is an adapter hold its base.
        beside_adapters: The servers hold adapters of other policies, over the policy's model, which is frozen.
        weights_dir: Folder for published weights, which the servers see under the same path; one of this machine's
            temporary folders when left out.
        api_key: Of the servers; empty for none.
        timeout_s: Longest wait for one response; it is then tried elsewhere.
        max_retries: Tries of a response after the first.
        publish_timeout_s: Longest time in which a server may take new weights.
        transport: How they get there: ``file`` through `weights_dir`, ``gloo`` or ``nccl`` over a process group.
            Adapters go through `weights_dir` always.
        bucket_bytes: Size of the pieces in which they go.
        group_host: Address of this machine at which servers find the group; the one that the first of them sees when
            empty.
        outage_s: How long requests wait while no server is fit, before the engine has failed.
        probe_s: Pause between two looks at a server that is set aside.

    Raises:
        ConfigError: no server, one twice, a URL that is none, or a number out of range.
        MissingExtraError: httpx is not installed.

    Example:
        ``ServedEngine(policy, ["http://gpu-1:8000", "http://gpu-2:8000"], weights_dir="/shared/weights")``
    """

    def __init__(
        self,
        policy: Policy,
        urls: Sequence[str],
        *,
        beside_adapters: bool = False,
        weights_dir: str | Path | None = None,
        api_key: str = "",
        timeout_s: float = 600.0,
        max_retries: int = 3,
        publish_timeout_s: float = 300.0,
        transport: Literal["file", "gloo", "nccl"] = "file",
        bucket_bytes: int = 1 << 30,
        group_host: str = "",
        outage_s: float = 300.0,
        probe_s: float = 2.0,
    ) -> None:
        if not urls or len(set(urls)) != len(urls):
            raise ConfigError(f"engine of policy {policy.policy_id!r}: expected distinct servers, got {list(urls)}")
        patience = Patience(timeout_s=timeout_s, max_retries=max_retries)
        settings: dict[str, Any] = {
            "patience": patience,
            "api_key": api_key,
        }
        self._adapter = _adapter_of(policy, beside_adapters=beside_adapters)
        self._server_settings = settings
        way: Transport = FolderTransport(publish_timeout_s)
        if transport != "file" and not self._adapter:
            way = GroupTransport(transport, host=group_host, timeout_s=publish_timeout_s)
        self._policy = policy
        self._bucket_bytes = bucket_bytes
        self._specs = WeightSpecs(policy.policy_id, weights_of(policy))
        self._max_tries = max_retries + 1
        self._own_folder = tempfile.mkdtemp(prefix="srpo-weights-") if weights_dir is None else None
        self._folder = (
            Path(self._own_folder or weights_dir or "").absolute() / f"{policy.policy_id}-{uuid.uuid4().hex[:8]}"
        )
        self._encode = functools.lru_cache(_KNOWN_PROMPTS)(policy.encode_prompt)
        self._in_flight = InFlight(f"srpo-served-{policy.policy_id}", self._answer)
        self._fleet = Fleet(
            policy.policy_id,
            [self._server(url) for url in urls],
            transport=way,
            version=policy.version,
            outage_s=outage_s,
            probe_s=probe_s,
            beside=self._in_flight.beside,
        )

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy.policy_id

    @property
    def published_version(self) -> int:
        """Version of the weights that sample now."""
        return self._fleet.published.version

    def move_server(self, old: str, new: str) -> None:
        """Ask a server at another address in the place of one that has ended; it gets the published weights first."""
        self._in_flight.call(self._fleet.replace(old, self._server(new)))

    def _server(self, url: str) -> VllmServer:
        if self._adapter:
            return AdapterServer(url, self.policy_id, **self._server_settings)
        return VllmServer(url, **self._server_settings)

    # --- weights --------------------------------------------------------------------------------------------------

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> PushReport:
        """Replace the weights on all servers; requests under way come back as aborted, and may be asked again.

        A server that cannot be reached gets them when it is back; at least one must take them now.

        Raises:
            EngineError: the weights do not fit (then nothing has moved), a server did not take them in time (names it
                and the step), or none could be reached.
        """
        begun = time.monotonic()
        name = f"{version}-{uuid.uuid4().hex[:8]}"
        if self._adapter:
            folder = self._folder / f"{self.policy_id}@{name}"
            self._adapter.write(folder, self._specs.check(version, weights))
            published = Published(version=version, label=folder.name, folder=folder)
            num_bytes, num_buckets = sum(path.stat().st_size for path in folder.iterdir()), 1
            server_s = self._tell_all(published)
        else:
            stream = self._specs.stream(version, weights)
            folder = self._folder / name
            stored = WeightFolder(folder, plan_buckets(stream.specs, self._bucket_bytes))
            num_bytes, num_buckets = stored.num_bytes, len(stored.buckets)
            server_s = self._tell_all(Published(version=version, label=name, weights=stored), stream)
        for other in self._folder.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return PushReport(
            seconds=time.monotonic() - begun,
            num_bytes=num_bytes,
            num_buckets=num_buckets,
            server_s=server_s,
            num_unfit=len(self._fleet.servers) - len(server_s),
        )

    def _tell_all(self, published: Published, stream: WeightStream | None = None) -> dict[str, float]:
        """Publish, and put a whole model's tensors together meanwhile; return the seconds of each server."""
        version, stored = published.version, published.weights
        self._in_flight.interrupt(
            lambda request: self._superseded(request, version), lambda generation: of_version(generation, version)
        )
        with self._in_flight.started(self._fleet.publish(published)) as telling:
            if stored and stream:
                try:
                    for image in images(stored.buckets, stream):
                        self._in_flight.call(stored.add(image))
                        del image
                        if telling.done():  # it failed, and nobody is left to take the rest
                            break
                finally:
                    self._in_flight.call(stored.end())
            return telling.result()

    def release_memory(self) -> None:
        """Do nothing: the servers' memory is theirs."""

    # --- requests -------------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        Raises:
            EngineError: no server was fit for too long, or they refuse to work.
        """
        self._encode_all(requests)
        return self._in_flight.generate(requests, sampling)

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Begin to answer requests; return at once."""
        self._encode_all(requests)
        self._in_flight.submit(requests, sampling)

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been answered; wait for at most `timeout_s` when nothing is ready.

        Raises:
            EngineError: no server was fit for too long, or they refuse to work.
        """
        return self._in_flight.poll(timeout_s)

    def cancel(self, request_ids: Collection[str]) -> None:
        """Give requests up: their connections are closed, and the servers stop working on them."""
        self._in_flight.cancel(request_ids)

    def close(self) -> None:
        """Close all connections and remove published files; safe to call more than once. The servers go on."""
        self._in_flight.close(self._fleet.close())
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def _encode_all(self, requests: Sequence[GenerationRequest]) -> None:
        """Encode prompts on the caller's thread, where its tokenizer is in use."""
        for request in requests:
            self._encode(request.prompt)

    async def _answer(self, request: GenerationRequest, sampling: Sampling) -> Generation:
        begun = time.monotonic()
        prompt, published = self._encode(request.prompt), self._fleet.published
        give_up = functools.partial(given_up, request, prompt, version=published.version)
        reason = ""
        for _ in range(self._max_tries):
            server = await self._fleet.pick(prompt)
            length = min(server.context_length, self._policy.context_length or server.context_length)
            if (limit := room_for(request, prompt, length)) < 1:
                return overlong(
                    request, prompt, policy_id=self.policy_id, context_length=length, version=published.version
                )
            try:
                sampled = await self._ask(server, prompt, self._params(request, sampling, limit), published)
            except _RefusedError as refusal:
                return give_up(str(refusal), is_hopeless=True)
            except ServerFaultError as fault:
                reason = str(fault)
            else:
                return self._generation(request, prompt, sampled, published.version, time.monotonic() - begun)
            if self._fleet.published is not published:
                return self._superseded(request, self.published_version)
            self._fleet.set_aside(server, reason)
        return give_up(f"after {self._max_tries} tries: {reason}")

    async def _ask(
        self, server: VllmServer, prompt: tuple[int, ...], params: dict[str, Any], published: Published
    ) -> Sampled:
        """Return one response of a server.

        Raises:
            ServerFaultError: it gave none that can be used.
            _RefusedError: no server will.
            EngineError: no server will answer any request.
        """
        reply, label = await server.generate(prompt, params, published), published.label
        if not reply.is_good:
            if reply.status in _REFUSED_TO_ALL:
                raise EngineError(
                    f"engine of policy {self.policy_id!r}: {server.url} refuses to work: {reply.reason}; start it with "
                    "`srpo serve-policy`"
                )
            if not reply.may_pass:
                raise _RefusedError(f"{server.url}: {reply.reason}")
            raise ServerFaultError(f"{server.url}: {reply.reason}")
        try:
            sampled = server.read(reply.body, with_kept=params["logprobs"] > 0)
        except ValueError as error:
            raise ServerFaultError(f"{server.url}: {error}") from error
        except FloatingPointError as error:
            raise EngineError(
                f"engine of policy {self.policy_id!r}, weights {label!r}, {server.url}: {error}"
            ) from error
        if sampled.finish_reason not in ("stop", "length"):
            raise ServerFaultError(f"{server.url}: it ended a response by {sampled.finish_reason!r}")
        if sampled.labels != {label}:
            raise ServerFaultError(f"{server.url}: sampled with the weights {sorted(sampled.labels)}, not {label!r}")
        return sampled

    def _superseded(self, request: GenerationRequest, version: int) -> Generation:
        reason = f"version {version} was published in the middle of it"
        return given_up(request, self._encode(request.prompt), reason, version=version)

    def _params(self, request: GenerationRequest, sampling: Sampling, limit: int) -> dict[str, Any]:
        return {
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": request.seed % _SEEDS,
            "stop": list(request.stop),
            "stop_token_ids": list(self._policy.eos_ids),
            "ignore_eos": True,  # the policy's own list decides
            "logprobs": sampling.top_k if sampling.with_kept else 0,  # 0: that of the sampled token alone
            "detokenize": bool(request.stop),  # stop texts are looked for in vLLM's text; ours is decoded at the end
        }

    def _generation(
        self, request: GenerationRequest, prompt: tuple[int, ...], sampled: Sampled, version: int, duration_s: float
    ) -> Generation:
        return Generation(
            request_id=request.request_id,
            text=self._policy.decode(sampled.token_ids),
            prompt_token_ids=prompt,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            kept_token_ids=sampled.kept,
            finish_reason="length" if sampled.finish_reason == "length" else "stop",
            policy_version=version,
            timings={"generate_s": duration_s},
        )


def _adapter_of(policy: Policy, *, beside_adapters: bool) -> StoredAdapter | None:
    """Return the adapter that servers hold of a policy; None for a whole model.

    A frozen model beside adapters is served as one that changes nothing: in a batch with adapters, a CPU computes rows
    without one with whatever is in the last place.
    """
    if policy.share is None:
        return None
    if policy.share.name:
        return StoredAdapter.of(policy)
    return NoChange(policy.share.base) if beside_adapters else None


class _RefusedError(Exception):
    """A server finds something wrong with a request itself."""
