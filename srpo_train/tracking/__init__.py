"""Where a run can be watched besides its own files: the terminal, TensorBoard, Weights & Biases, trackio.

``metrics.jsonl`` and ``events/`` are the truth; all that is here are views of them. A view that fails is reported once
and counted, and the run goes on; a resumed run gives no view a point twice (`srpo_train.tracking.guard`).
"""

from srpo_train.tracking.opening import open_metrics

__all__ = ["open_metrics"]
