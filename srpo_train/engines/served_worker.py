"""What a vLLM server's workers learn from us: `srpo serve-policy` names a class of this module to them."""

from __future__ import annotations

import contextlib

from srpo_train.engines.vllm_transfer import SERVED_BACKEND, register

# A worker imports this module before it makes its transfer engine; elsewhere there may be no vLLM.
with contextlib.suppress(ImportError):
    register(SERVED_BACKEND, "ServedReceiver")


class PolicyWorker:
    """A worker is made a kind of this class, which adds nothing: that its module is imported is what counts."""
