"""Sampling in process from a transformers model, on CPU or GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.engines.attention import grouped_decode_attention
from srpo_train.engines.base import Generation, GenerationRequest, Sampling
from srpo_train.engines.decoding import Row, Sampled, decode_batch, plan_batches
from srpo_train.engines.limits import overlong, room_for
from srpo_train.engines.stopping import StopTexts
from srpo_train.policies.policy import Policy
from srpo_train.throughput.recorder import RECORDER

logger = logging.getLogger(__name__)


class TransformersEngine:
    """Samples from a `Policy`'s own model, so there are no weights to push: an update is seen by the next call.

    It has its own decoding loop because `generate` of transformers lacks what training on sets needs: a seed for each
    response (so that a response does not depend on its neighbours, and members of one event differ), the log-prob of
    each sampled token without keeping the scores of the whole vocabulary, finished rows that leave the batch instead
    of being padded to the slowest one, and shared prompts that are computed once.

    Args:
        policy: Whose model samples; its `version` is written on every generation.
        max_batch_tokens: Most tokens of prompt and response, padding included, that are in the cache at once; the
            memory bound. A single larger request still runs, alone.
        max_batch_size: Most responses sampled together.

    Raises:
        ConfigError: a bound is below 1.
    """

    def __init__(self, policy: Policy, *, max_batch_tokens: int = 65_536, max_batch_size: int = 512) -> None:
        if max_batch_tokens < 1 or max_batch_size < 1:
            raise ConfigError(
                f"engine of policy {policy.policy_id!r}: max_batch_tokens and max_batch_size must be at least 1, "
                f"got {max_batch_tokens} and {max_batch_size}"
            )
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_size = max_batch_size
        self._context_length = policy.context_length  # finding it costs too much to do it for every request
        self._stop_texts = StopTexts(policy.decode, policy.model.config.get_text_config().vocab_size)

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy.policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        A prompt that leaves no room in the model's context comes back as ``abort`` without tokens; one that leaves
        less room than asked for is sampled up to the context's end and finishes with ``length``.

        Raises:
            EngineError: the model failed (out of memory, logits that are not numbers).
        """
        encode = {text: self._policy.encode_prompt(text) for text in {request.prompt for request in requests}}
        rows = [
            Row(index=index, prompt=prompt, limit=limit, seed=request.seed, stops=request.stop)
            for index, request in enumerate(requests)
            if (limit := room_for(request, prompt := encode[request.prompt], self._context_length)) > 0
        ]
        sampled = self._sample(rows, sampling)
        return [
            self._generation(request, encode[request.prompt], *sampled.get(index, (None, {})))
            for index, request in enumerate(requests)
        ]

    def close(self) -> None:
        """Do nothing: the model belongs to the policy."""

    def _sample(self, rows: Sequence[Row], sampling: Sampling) -> dict[int, tuple[Sampled, Mapping[str, float]]]:
        """Sampled response and timings by row; the rows of a batch end together, and a batch waits for those before."""
        batches = plan_batches(rows, max_tokens=self._max_batch_tokens, max_rows=self._max_batch_size)
        found: dict[int, tuple[Sampled, Mapping[str, float]]] = {}
        asked = time.perf_counter()
        try:
            with self._policy.sampling_mode(), grouped_decode_attention(self._policy.model):
                for batch in batches:
                    begun = time.perf_counter()
                    with RECORDER.span("decode batch", "generate", track=f"engine {self.policy_id}", rows=len(batch)):
                        responses = decode_batch(self._policy, batch, sampling, self._stop_texts)
                    timings = {"generate_s": time.perf_counter() - begun, "queue_s": begun - asked}
                    found |= {response.index: (response, timings) for response in responses}
                return found
        except (RuntimeError, IndexError, FloatingPointError) as error:  # out of memory is a RuntimeError
            raise EngineError(
                f"engine of policy {self.policy_id!r} (version {self._policy.version}) failed on {len(rows)} requests: "
                f"{error}; if memory ran out, lower max_batch_tokens (now {self._max_batch_tokens})"
            ) from error

    def _generation(
        self,
        request: GenerationRequest,
        prompt: tuple[int, ...],
        sampled: Sampled | None,
        timings: Mapping[str, float],
    ) -> Generation:
        if sampled is None:
            return overlong(
                request,
                prompt,
                policy_id=self.policy_id,
                context_length=self._context_length,
                version=self._policy.version,
            )
        return Generation(
            request_id=request.request_id,
            text=self._policy.decode(sampled.token_ids),
            prompt_token_ids=prompt,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            kept_token_ids=sampled.kept,
            finish_reason=sampled.finish_reason,
            policy_version=self._policy.version,
            timings=timings,
        )
