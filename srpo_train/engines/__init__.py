"""Engines: who generates. Every engine answers `GenerationRequest`s with `Generation`s."""
