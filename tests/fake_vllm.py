"""A vLLM server in miniature, for tests of what talks to one: the same endpoints over a tiny model of its own.

What was measured of the real one holds here: it calls its first weights ``default``, writes the name of its weights on
every response, takes weights in buckets with the class that the workers of a real one use too, in updates of which an
error ends the one under way and which cannot begin twice, keeps the old prefix cache until that is cleared, aborts
requests at a pause, and knows nothing of what was before a restart. Adapters are models of their own name, taken from a
folder, and a request that names one it does not have is refused.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from json_server import Answer, Asked, JsonServer
from torch import Tensor

from srpo_train.engines.base import Sampling
from srpo_train.engines.bucket_receiver import BucketInfo, BucketReceiver, GroupInfo
from srpo_train.engines.decoding import Row, Sampled, decode_batch
from srpo_train.engines.stopping import StopTexts
from srpo_train.policies import Policy
from srpo_train.policies.shared_base import SharedBase

_ABORTED = {"finish_reason": "abort", "token_ids": [], "logprobs": {"content": []}, "weight_versions": []}


class FakeVllm(JsonServer):
    """One server.

    Args:
        policy: Whose weights it starts with; a copy is made.
        max_model_len: Its context.
        takes_adapters: Whether it was started to hold adapters over the policy's model.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_model_len: int = 128,
        takes_adapters: bool = False,
    ) -> None:
        model = copy.deepcopy(policy.model)
        self._first = copy.deepcopy(model.state_dict())
        self.policy = Policy(policy_id="served", model=model, tokenizer=policy.tokenizer, version=policy.version)
        self._base = SharedBase(model, policy.tokenizer) if takes_adapters else None
        self.max_model_len = max_model_len
        self.planned: dict[str, list[Answer]] = defaultdict(list)
        """Answers by path that are given in place of the real ones, one after another."""
        self.delay_s = 0.0
        self.holds: threading.Event | None = None
        """Where there is one, responses wait for it: the server has fallen silent."""
        self._stop_texts = StopTexts(self.policy.decode, self.policy.model.config.vocab_size)
        self._model_lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting_lock = threading.Lock()
        self._waiting: list[tuple[Row, Sampling, str]] = []
        self._decoded: dict[int, Sampled] = {}
        self._forget_everything()
        super().__init__(self._reply)

    def restart(self) -> None:
        """Come back as after a crash, with the weights of the beginning."""
        self.stop()
        self._forget_everything()
        self.start()

    def prompts(self) -> list[tuple[int, ...]]:
        """The prompts it was asked to continue, in order."""
        return [tuple(asked.body["token_ids"]) for asked in self.asked if asked.path.endswith("/generate")]

    def pushes(self) -> int:
        """How often it was given weights."""
        return sum(asked.path == "/finish_weight_update" for asked in self.asked)

    def buckets(self) -> list[int]:
        """The numbers of the buckets it was given, in order."""
        return [asked.body["update_info"]["number"] for asked in self.asked if asked.path == "/update_weights"]

    def _forget_everything(self) -> None:
        self.adapters: dict[str, Policy] = {}
        if self._base is None:
            self.policy.model.load_state_dict(self._first)
        self._receiver = BucketReceiver(self._load, 0)
        self._is_updating = False
        self._taken: dict[str, Tensor] = {}
        self.label = "default"
        self.is_paused = False
        self.has_old_cache = False
        self.num_aborts = 0

    def _reply(self, asked: Asked) -> Answer:
        if self.planned[asked.path]:
            return self.planned[asked.path].pop(0)
        return getattr(self, "_" + asked.path.strip("/").replace("/", "_"))(asked)

    def _health(self, asked: Asked) -> Answer:
        return Answer("")

    def _v1_models(self, asked: Asked) -> Answer:
        adapters = [{"id": name, "max_model_len": None} for name in self.adapters]
        return Answer({"object": "list", "data": [{"id": "team", "max_model_len": self.max_model_len}, *adapters]})

    def _v1_load_lora_adapter(self, asked: Asked) -> Answer:
        name, folder = asked.body["lora_name"], asked.body["lora_path"]
        if self._base is None:
            return Answer({"detail": "Not Found"}, status=404)
        if name in self.adapters:
            return Answer({"error": {"message": f"'{name}' has already been loaded"}}, status=400)
        with self._model_lock:
            share = self._base.load_adapter(name, folder, is_trainable=False)
        self.adapters[name] = Policy(
            policy_id=name, model=self._base.model, tokenizer=self.policy.tokenizer, share=share
        )
        return Answer(f"Success: LoRA adapter '{name}' added successfully.")

    def _v1_unload_lora_adapter(self, asked: Asked) -> Answer:
        if self.adapters.pop(asked.body["lora_name"], None) is None:
            return Answer({"error": {"message": "cannot be found"}}, status=404)
        return Answer("Success: removed successfully.")

    def _weight_info(self, asked: Asked) -> Answer:
        return Answer({"weight_version": self.label})

    def _update_weight_version(self, asked: Asked) -> Answer:
        self.label = asked.body["new_version"]
        return Answer({"success": True, "new_version": self.label})

    def _pause(self, asked: Asked) -> Answer:
        self.is_paused = True
        self.num_aborts += 1
        return Answer({"status": "paused"})

    def _resume(self, asked: Asked) -> Answer:
        self.is_paused = False
        return Answer({"status": "resumed"})

    def _reset_prefix_cache(self, asked: Asked) -> Answer:
        self.has_old_cache = False
        return Answer({"success": True})

    def _get_world_size(self, asked: Asked) -> Answer:
        return Answer({"world_size": 1})

    def _init_weight_transfer_engine(self, asked: Asked) -> Answer:
        return self._tried(lambda: self._receiver.join(GroupInfo(**asked.body["init_info"])))

    def _start_weight_update(self, asked: Asked) -> Answer:
        if self._is_updating:
            return _error("start_weight_update called while a weight update is already active")
        self._is_updating = True
        self._taken.clear()
        self._receiver.begin()
        return Answer({"message": "Weight update started"})

    def _update_weights(self, asked: Asked) -> Answer:
        if not self._is_updating:
            return _error("start_weight_update must be called before update_weights")
        answer = self._tried(lambda: self._receiver.take(BucketInfo(**asked.body["update_info"])))
        self._is_updating = answer.status == 200
        return answer

    def _finish_weight_update(self, asked: Asked) -> Answer:
        if not self.is_paused:
            return _error("weights loaded while requests are under way")
        answer = self._tried(self._receiver.finish)
        if answer.status == 200:
            self._is_updating = False
            self._receiver.leave()
            with self._model_lock:
                self.policy.model.load_state_dict(self._taken)
            self._taken.clear()
            self.has_old_cache = True
        return answer

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        own = self.policy.model.state_dict()
        for name, tensor in weights:
            if tensor.shape != own[name].shape:
                raise ValueError(f"{name} is {list(tensor.shape)} here")
            self._taken[name] = tensor.clone()

    def _tried(self, call: Callable[[], None]) -> Answer:
        try:
            call()
        except RuntimeError as error:
            return _error(str(error))
        return Answer({"message": "done"})

    def _inference_v1_generate(self, asked: Asked) -> Answer:
        params = asked.body["sampling_params"]
        if len(asked.body["token_ids"]) >= self.max_model_len:
            return Answer(
                {"error": {"message": "The decoder prompt is longer than the maximum model length"}}, status=400
            )
        model = asked.body.get("model", "")
        if model and model not in self.adapters:
            return Answer({"error": {"message": f"The model `{model}` does not exist."}}, status=404)
        num_aborts, label = self.num_aborts, self.label
        time.sleep(self.delay_s)
        if self.holds:
            self.holds.wait()
        while self.is_paused:
            time.sleep(0.002)
        if self.num_aborts != num_aborts:
            return Answer({"choices": [{"index": 0, **_ABORTED}]})
        assert not self.has_old_cache, "asked before the prefix cache of the old weights was cleared"
        choice = self._sample(tuple(asked.body["token_ids"]), params, label, model)
        return Answer({"model": model or "team", "choices": [choice]})

    def _sample(self, prompt: tuple[int, ...], params: dict[str, Any], label: str, model: str) -> dict[str, Any]:
        sampling = Sampling(
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=params["top_k"],
            with_kept=params["logprobs"] > 0,
        )
        row = Row(
            index=next(self._numbers),
            prompt=prompt,
            limit=params["max_tokens"],
            seed=params["seed"],
            stops=tuple(params["stop"]),
        )
        sampled = self._decode(row, sampling, model)
        kept = sampled.kept or ((),) * len(sampled.token_ids)
        return {
            "index": 0,
            "finish_reason": sampled.finish_reason,
            "stop_reason": None,
            "token_ids": list(sampled.token_ids),
            "logprobs": {"content": list(map(_entry, sampled.token_ids, sampled.logprobs, kept))},
            "weight_versions": [{"version": label, "start": 0, "end": len(sampled.token_ids)}],
        }

    def _decode(self, row: Row, sampling: Sampling, model: str) -> Sampled:
        """Decode together what came while the model was busy: whoever gets it next does the others' work too."""
        with self._waiting_lock:
            self._waiting.append((row, sampling, model))
        with self._model_lock:
            if row.index not in self._decoded:
                alike = (sampling, model)
                with self._waiting_lock:
                    batch = [other for other, *its in self._waiting if tuple(its) == alike]
                    self._waiting = [waiting for waiting in self._waiting if waiting[1:] != alike]
                policy = self.adapters.get(model, self.policy)
                with policy.sampling_mode():
                    for sampled in decode_batch(policy, batch, sampling, self._stop_texts):
                        self._decoded[sampled.index] = sampled
            return self._decoded.pop(row.index)


def _error(message: str) -> Answer:
    return Answer({"error": {"message": message}}, status=500)


def _entry(token: int, logprob: float, kept: tuple[int, ...]) -> dict[str, Any]:
    """One position; what was left has the rest of the probability in equal parts, and one token was removed."""
    others = [other for other in kept if other != token]
    rest = (1 - math.exp(logprob)) / max(len(others), 1)
    listed = [(token, logprob), *((other, math.log(rest)) for other in others), (max(kept, default=0) + 1, -9999.0)]
    fields = [{"token_id": other, "logprob": value, "rank": 1} for other, value in listed]
    return {**fields[0], "top_logprobs": fields if kept else []}
