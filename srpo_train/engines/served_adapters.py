"""LoRA adapters on vLLM servers: several policies over the model that a server was started with.

A version of an adapter is loaded under a name that no other version of any run has, and a request says the name. So a
server that was restarted cannot answer with an old adapter: it does not know the name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from srpo_train.engines.endpoint import Reply
from srpo_train.engines.served_server import FRESH, Published, Sampled, ServerFaultError, VllmServer


class AdapterServer(VllmServer):
    """Talks to one server about the adapter of one policy.

    Args:
        url: Its address.
        policy_id: The adapter's policy.
        **settings: See `VllmServer`.

    Raises:
        ConfigError: the URL is not one.
    """

    def __init__(self, url: str, policy_id: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._policy_id = policy_id

    async def generate(self, prompt: tuple[int, ...], params: Mapping[str, Any], published: Published) -> Reply:
        """Ask once for a response of the published adapter.

        Raises:
            ServerFaultError: the server does not have it, or cannot do what is asked.
        """
        reply = await self._generate(params, {"token_ids": prompt, "model": published.label})
        if reply.status == 404 and published.label in reply.reason:
            raise ServerFaultError(f"{self.url}: it does not have the adapter {published.label!r}")
        return reply

    def read(self, body: Mapping[str, Any], *, with_kept: bool) -> Sampled:
        """Read an answer; its label is the adapter's name, unless the model below is not the one it stands on."""
        sampled = super().read(body, with_kept=with_kept)
        is_sound = sampled.labels == {FRESH}
        return dataclasses.replace(sampled, labels=frozenset({str(body.get("model"))})) if is_sound else sampled

    async def label(self) -> str:
        """Return the names of the policy's adapters there: one, or none before a publication.

        Raises:
            ServerFaultError: it does not answer, or its model has got other weights.
        """
        if (base := await super().label()) != FRESH:
            raise ServerFaultError(f"{self.url}: the model below its adapters has the weights {base!r}; restart it")
        return ", ".join(self._loaded())

    async def take(self, published: Published, end: float) -> None:
        """Load the adapter under its name, then drop the versions before.

        Raises:
            ServerFaultError: names the step that failed, or during which the time ran out.
        """
        self._begun = time.monotonic()
        await self.label()
        loaded = self._loaded()
        if published.label not in loaded:
            payload = {"lora_name": published.label, "lora_path": str(published.folder)}
            await self._change("load the adapter", "/v1/load_lora_adapter", payload, end)
        for name in loaded:
            if name != published.label:
                await self._change("unload the adapter before", "/v1/unload_lora_adapter", {"lora_name": name}, end)
        await self.confirm(published)

    async def _change(self, what: str, path: str, payload: Mapping[str, str], end: float) -> None:
        reply = await self._endpoint.post(path, payload, timeout_s=max(end - time.monotonic(), 1e-3))
        if reply.status != 200:  # which comes with a sentence in the place of JSON
            raise self._fault(what, reply, "srpo serve-policy --adapters")

    def _loaded(self) -> list[str]:
        return [name for name in self.models if name.rpartition("@")[0] == self._policy_id]
