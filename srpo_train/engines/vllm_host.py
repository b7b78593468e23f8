"""One vLLM in this process: requests of one or several engines, one copy of the weights, one fault for all."""

from __future__ import annotations

import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from srpo_envs.errors import ConfigError, EngineError
from srpo_train.config import VllmConfig
from srpo_train.engines.adapters import kernel_rank
from srpo_train.engines.kept import MOST_KEPT
from srpo_train.engines.publishing import PushProgress, run_within
from srpo_train.engines.vllm_library import can_sleep, import_vllm, is_cpu, living, unchanged_process
from srpo_train.engines.vllm_transfer import reload, reload_from_file, stamp, transfer, transfer_options

if TYPE_CHECKING:
    from srpo_train.policies.policy import Policy

logger = logging.getLogger(__name__)

_CPU_BLOCK_SIZE = 32
_CPU_KV_CACHE_BYTES = 64 << 20
_CPU_BATCH_TOKENS = 4096

OnFinished = Callable[[Any, str], None]
"""Takes vLLM's `CompletionOutput` of a finished request, or None and why the request was given up."""


class VllmHost:
    """A vLLM `LLM` and what goes on in it.

    After a failure nothing is known about the model inside, so the host refuses everything from then on.

    Args:
        llm: The `LLM`, whose weights are not yet those of a policy.
        name: Named in errors.
        publish_timeout_s: Seconds a push may take.
        sleeps: Whether it gives its memory back between rollouts.
        has_transfer: Whether it was made with `transfer_options`.
        num_workers: Processes that hold the model.
    """

    def __init__(
        self,
        llm: Any,
        name: str,
        *,
        publish_timeout_s: float,
        sleeps: bool = False,
        has_transfer: bool = True,
        num_workers: int = 1,
    ) -> None:
        self._llm = llm
        self._name = name
        self._publish_timeout_s = publish_timeout_s
        self._sleeps = sleeps
        self._is_asleep = False
        self._has_transfer = has_transfer
        self._num_workers = num_workers
        self._numbers = itertools.count()
        self._waiting: dict[str, OnFinished] = {}
        self._fault = ""
        living.add(llm)
        self.num_users = 0
        """Engines that use it; the last one to leave closes it."""

    @classmethod
    def open(cls, policy: Policy, options: VllmConfig, *, num_adapters: int = 0, lora_rank: int = 0) -> VllmHost:
        """Make a vLLM of a policy's architecture, with weights that are still to be pushed.

        Args:
            policy: Its configuration and tokenizer decide the model.
            options: The recipe's.
            num_adapters: LoRA adapters it is to hold.
            lora_rank: Highest rank among them.

        Raises:
            MissingExtraError: vLLM is not installed.
            ConfigError: it is to sleep, and is not the only one in this process.
            EngineError: vLLM cannot be made, such as for an architecture it does not know.
        """
        vllm = import_vllm()
        arguments = _arguments(policy, options)
        if options.tensor_parallel_size == 1:  # our end of the interface is registered in this process alone
            arguments |= transfer_options()
        if num_adapters:
            # One place more than adapters: on a CPU, rows without an adapter compute with that of the last place.
            arguments |= {"enable_lora": True, "max_loras": num_adapters + 1, "max_lora_rank": kernel_rank(lora_rank)}
        sleeps = bool(arguments.get("enable_sleep_mode"))
        if sleeps and len(living):
            raise ConfigError(
                f"engine.vllm.sleep: policy {policy.policy_id!r} needs a second vLLM in this process, and only one can "
                "sleep; set it to false and share the memory out, or make the policies adapters over one base"
            )
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="srpo-vllm-") as folder, unchanged_process():
            _describe(policy, Path(folder))
            try:
                llm = vllm.LLM(model=folder, **arguments)
            except Exception as error:  # many libraries, each with its own classes; the cause stays chained
                raise EngineError(f"policy {policy.policy_id!r}: vLLM cannot be made ({error})") from error
        logger.info("vLLM of policy %r is up after %.1f s", policy.policy_id, time.monotonic() - begun)
        return cls(
            llm,
            policy.policy_id,
            publish_timeout_s=options.publish_timeout_s,
            sleeps=sleeps,
            has_transfer="weight_transfer_config" in arguments,
            num_workers=options.tensor_parallel_size,
        )

    # --- requests -------------------------------------------------------------------------------------------------

    def begin(self, prompt: tuple[int, ...], params: Any, on_finished: OnFinished, lora: Any = None) -> str:
        """Add a request and return its name here.

        Raises:
            ValueError: vLLM refuses the request.
            EngineError: the host has failed.
        """
        from vllm.exceptions import VLLMClientError

        self._require_sound()
        self._wake()
        name = f"{self._name}/{next(self._numbers)}"
        try:
            self._llm.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, params, lora_request=lora)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        self._waiting[name] = on_finished
        return name

    def step(self) -> None:
        """Decode one token of every request that there is room for, and hand out what is finished.

        Raises:
            EngineError: vLLM failed; all requests are lost.
        """
        self._require_sound()
        try:
            for output in self._llm.llm_engine.step():
                if on_finished := self._waiting.pop(output.request_id, None):
                    on_finished(output.outputs[0], "")
        except Exception as error:  # whatever it is, the model is in an unknown state now
            self._fail(f"decoding failed: {error}")
            raise EngineError(self._fault) from error

    def abort(self, names: Iterable[str]) -> None:
        """Give requests up; nobody is told."""
        known = [name for name in names if self._waiting.pop(name, None)]
        if known:
            self._llm.llm_engine.abort_request(known)

    # --- weights --------------------------------------------------------------------------------------------------

    def push(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Replace the model's weights.

        Raises:
            EngineError: it failed or took too long; the host is of no more use.
        """
        send = reload_from_file if self._num_workers > 1 else transfer if self._has_transfer else reload
        progress = PushProgress(weights)
        self._change(f"version {version}", lambda: send(self._llm, progress), progress)
        stamp(self._llm, version)

    def load_adapter(self, lora: Any) -> None:
        """Load an adapter, in the place of the one with its number.

        Raises:
            EngineError: it failed or took too long; the host is of no more use.
        """
        self._change(f"adapter {lora.lora_name!r}", lambda: self._add_lora(lora), "rank 0 at the adapter's file")

    def sleep(self) -> None:
        """Give the memory of weights and cache back; without effect where that is not possible."""
        if self._sleeps and not self._is_asleep and not self._fault:
            self._give_up_all("vLLM was put to sleep")
            self._llm.sleep(level=1)
            self._is_asleep = True

    def close(self) -> None:
        """End vLLM; its memory is released when no other one is left in this process."""
        if self._llm is not None:
            self._fail("it is closed")
            living.leave(self._llm)
            self._llm = None

    def _change(self, what: str, call: Callable[[], None], progress: object) -> None:
        self._require_sound()
        self._give_up_all(f"{what} was published in the middle of it")
        try:
            self._wake("weights")
            run_within(self._publish_timeout_s, call)
            self._wake()
            # Blocks of the old weights would be taken for those of a new request with the same prompt.
            if not self._llm.reset_prefix_cache(reset_running_requests=True):
                raise RuntimeError("the prefix cache could not be reset")
        except Exception as error:  # a half-loaded model answers with garbage, or not at all
            self._fail(f"publishing {what} failed: {progress}: {error}")
            raise EngineError(self._fault) from error

    def _give_up_all(self, reason: str) -> None:
        waiting = dict(self._waiting)
        self.abort(waiting)
        for on_finished in waiting.values():
            on_finished(None, reason)

    def _add_lora(self, lora: Any) -> None:
        if not self._llm.llm_engine.add_lora(lora):
            raise RuntimeError("vLLM did not take the adapter")

    def _wake(self, part: str = "") -> None:
        """Take memory again: for the weights alone, so that a push needs no room for the cache, or for all."""
        if not self._is_asleep:
            return
        if part:
            self._llm.wake_up(tags=[part])
            return
        self._llm.wake_up()
        self._is_asleep = False

    def _require_sound(self) -> None:
        if self._fault:
            raise EngineError(self._fault)

    def _fail(self, reason: str) -> None:
        self._waiting.clear()
        self._fault = f"vLLM of policy {self._name!r} cannot be used any more, {reason}"


def _arguments(policy: Policy, options: VllmConfig) -> dict[str, Any]:
    """Return the arguments of `LLM` but the model's folder."""
    arguments: dict[str, Any] = {
        "load_format": "dummy",  # the trainer's weights are pushed before the first request
        "dtype": str(policy.model.dtype).removeprefix("torch.") if options.dtype == "policy" else options.dtype,
        "max_model_len": options.max_model_len or policy.context_length,
        "max_num_seqs": options.max_num_seqs,
        "enforce_eager": options.enforce_eager,
        "tensor_parallel_size": options.tensor_parallel_size,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "kv_cache_memory_bytes": options.kv_cache_memory_bytes or None,
        "logprobs_mode": "processed_logprobs",  # after temperature, top-k and top-p
        "max_logprobs": MOST_KEPT,
        "generation_config": "vllm",  # requests say how to sample; a checkpoint's own settings would be added
        "async_scheduling": False,  # no batch is under way between two steps, so a push never meets one
        "disable_log_stats": True,
    }
    if is_cpu():
        arguments |= {
            "enforce_eager": True,
            "block_size": _CPU_BLOCK_SIZE,
            "kv_cache_memory_bytes": options.kv_cache_memory_bytes or _CPU_KV_CACHE_BYTES,
            # A prompt in pieces makes vLLM rewind the request's generator, which a CPU's cannot.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(_CPU_BATCH_TOKENS, arguments["max_model_len"] or 0),
        }
    elif options.sleep and can_sleep():
        arguments["enable_sleep_mode"] = True
    return arguments


def _describe(policy: Policy, folder: Path) -> None:
    """Write a policy's configuration and tokenizer without its weights."""
    config = policy.model.config
    config.architectures = [type(policy.model).__name__]
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
