"""The worker's ends of vLLM's weight-transfer interface; imported by vLLM, when a worker starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from srpo_train.engines.bucket_receiver import BucketInfo, BucketReceiver, GroupInfo


@dataclass
class InitInfo:
    """There is nothing to agree on beforehand."""


@dataclass
class UpdateInfo:
    """One push."""

    weights: Iterable[tuple[str, Tensor]]
    """All tensors under the names of transformers, in this process."""


class WeightReceiver(WeightTransferEngine):  # type: ignore[misc]
    """Loads tensors of this process into the model, layer by layer, as they stand in a checkpoint."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing: there is no connection."""

    def start_weight_update(self) -> None:
        """Take the layers' weights back to the form in which a checkpoint can be loaded."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load the tensors; a layer whose weights are complete is brought into its final form."""
        self.model.load_weights(update_info.weights)

    def finish_weight_update(self) -> None:
        """Bring what is left into its final form."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: there is no connection."""


class ServedReceiver(WeightTransferEngine):  # type: ignore[misc]
    """Loads buckets that a trainer sends to a server into the model, layer by layer."""

    init_info_cls = GroupInfo
    update_info_cls = BucketInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        parallel = self.parallel_config
        self._receiver = BucketReceiver(
            lambda weights: self.model.load_weights(weights),
            parallel.data_parallel_index * parallel.world_size + parallel.rank,
            self.device,
        )
        self._is_open = False

    def init_transfer_engine(self, init_info: GroupInfo) -> None:
        """Join the trainer's group."""
        self._receiver.join(init_info)

    def start_weight_update(self) -> None:
        """Take the layers' weights back to the form in which a checkpoint can be loaded.

        After a push that broke off, some layers are in that form already, and some of those have a part of what they
        wait for: they get back what they had, and all begin together.
        """
        if self._is_open:
            finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self._is_open = True
        self._receiver.begin()

    def receive_weights(self, update_info: BucketInfo) -> None:
        """Load a bucket; a layer whose weights are complete is brought into its final form."""
        self._receiver.take(update_info)

    def finish_weight_update(self) -> None:
        """Bring what is left into its final form, once everything has come."""
        self._receiver.finish()
        finalize_layerwise_reload(self.model, self.model_config)
        self._is_open = False
        self._receiver.leave()

    def shutdown(self) -> None:
        """Leave the group."""
        self._receiver.leave()
