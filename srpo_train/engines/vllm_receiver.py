"""The worker's end of vLLM's weight-transfer interface; imported by vLLM, when a worker starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


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
