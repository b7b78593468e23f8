"""Engines: who generates. Every engine answers `GenerationRequest`s with `Generation`s.

`srpo_train.engines.transformers` samples in process and needs torch; it is not imported here, so that the contract and
the scripted engine are usable without torch.
"""

from srpo_train.engines.background import BackgroundEngine
from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling, StreamingEngine
from srpo_train.engines.scripted import ScriptedEngine

__all__ = [
    "BackgroundEngine",
    "Engine",
    "Generation",
    "GenerationRequest",
    "Sampling",
    "ScriptedEngine",
    "StreamingEngine",
]
