"""Engines: who generates. Every engine answers `GenerationRequest`s with `Generation`s.

`srpo_train.engines.transformers` samples in process and needs torch; it is not imported here, so that the contract and
the scripted engine are usable without torch.
"""

from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling
from srpo_train.engines.scripted import ScriptedEngine

__all__ = ["Engine", "Generation", "GenerationRequest", "Sampling", "ScriptedEngine"]
