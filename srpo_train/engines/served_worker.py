"""What a vLLM server's workers learn from us: `srpo serve-policy` starts them with this class beside vLLM's own."""

from __future__ import annotations

import contextlib

from srpo_train.engines.vllm_sampler import keep_whole_distribution
from srpo_train.engines.vllm_transfer import SERVED_BACKEND, register

# A worker imports this module before it makes its transfer engine; elsewhere there may be no vLLM.
with contextlib.suppress(ImportError):
    register(SERVED_BACKEND, "ServedReceiver")


class PolicyWorker:
    """Methods that a worker gets in addition, called by name through ``/collective_rpc``."""

    _keeps_whole_distribution = False

    def keep_whole_distribution(self) -> None:
        """Report log-probabilities as they are before top-k and top-p from now on; once is enough."""
        if not self._keeps_whole_distribution:
            keep_whole_distribution(self)
            self._keeps_whole_distribution = True
