"""Sampling one batch of responses with a key-value cache: prefill once, decode, drop what has finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from srpo_envs.records import FinishReason
from srpo_train.engines.base import Sampling
from srpo_train.engines.sampling import Draw, draw, request_uniforms
from srpo_train.engines.stopping import StopTexts
from srpo_train.policies.policy import Policy
from srpo_train.throughput.recorder import RECORDER, Work

COMPACT_BELOW = 0.9
"""Finished rows leave the tensors when less than this share of them is still being sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One response to sample."""

    index: int
    """Position of the request in the call."""
    prompt: tuple[int, ...]
    """Prompt tokens, at least one."""
    limit: int
    """Most tokens to sample."""
    seed: int
    """Decides its uniforms."""
    stops: tuple[str, ...]
    """Texts that end it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One sampled response."""

    index: int
    """The row's."""
    token_ids: tuple[int, ...]
    """What was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each token in the distribution it was drawn from."""
    kept: tuple[tuple[int, ...], ...] = ()
    """For each token those it was drawn from; empty where all were, or nobody asked."""
    finish_reason: FinishReason
    """``stop`` or ``length``."""


def plan_batches(rows: Sequence[Row], *, max_tokens: int, max_rows: int) -> Iterator[list[Row]]:
    """Split rows into batches whose padded size, rows times (longest prompt + longest limit), fits a token budget.

    Rows are ordered by prompt, longest first: padding is small, identical prompts share a batch, and a batch too large
    for the device fails at the beginning of a call rather than at its end. A row larger than the budget is a batch of
    its own.
    """
    ordered = sorted(rows, key=lambda row: (-len(row.prompt), row.prompt, -row.limit, row.index))
    batch: list[Row] = []
    longest_limit = 0
    for row in ordered:
        longest_limit = max(longest_limit, row.limit)
        width = len((batch or [row])[0].prompt) + longest_limit
        if batch and (len(batch) == max_rows or (len(batch) + 1) * width > max_tokens):
            yield batch
            batch, longest_limit = [], row.limit
        batch.append(row)
    if batch:
        yield batch


def decode_batch(policy: Policy, rows: Sequence[Row], sampling: Sampling, stop_texts: StopTexts) -> list[Sampled]:
    """Sample the response of every row; call it in the policy's `sampling_mode`.

    Returns:
        One `Sampled` per row, in row order.

    Raises:
        FloatingPointError: the model produced logits that are not numbers.
    """
    responses = _Responses(rows, policy.eos_ids, stop_texts)
    forward = _CachedForward(policy, rows)
    logits_RV = forward.prefill()
    for step in range(responses.longest_limit):
        uniforms_R = torch.from_numpy(responses.uniforms(forward.row_ids, step)).to(logits_RV.device)
        drawn = draw(logits_RV, uniforms_R, sampling)
        running_R = responses.append(forward.row_ids, step, drawn)
        if not running_R.any():
            break
        tokens_R = drawn.tokens_R
        if running_R.mean() < COMPACT_BELOW:
            tokens_R = tokens_R[forward.keep(np.flatnonzero(running_R))]
        logits_RV = forward.step(tokens_R, int(running_R.sum()))
    RECORDER.count("generate", forward.work)
    return responses.result()


class _CachedForward:
    """The model, the cache and the rows that are in the tensors now."""

    def __init__(self, policy: Policy, rows: Sequence[Row]) -> None:
        from transformers import DynamicCache

        self._model = policy.model
        self._device = policy.device
        self._cache = DynamicCache(config=policy.model.config)
        self._prompts = list(dict.fromkeys(row.prompt for row in rows))
        place = {prompt: number for number, prompt in enumerate(self._prompts)}
        self._prompt_of_row = [place[row.prompt] for row in rows]
        self.row_ids: NDArray[np.int64] = np.arange(len(rows))
        self.work = Work()

    def prefill(self) -> Tensor:
        """Run each distinct prompt once, spread its cache over the rows that share it, return [R, V] first logits."""
        lengths = [len(prompt) for prompt in self._prompts]
        width = max(lengths)
        self.work.add(Work(num_tokens=sum(lengths), num_slots=width * len(lengths)))
        # The filler's id is never seen: attention is decided by lengths, so it may equal any real token.
        ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in self._prompts], device=self._device)
        start = torch.tensor([width - length for length in lengths], device=self._device)[:, None]
        columns = torch.arange(width, device=self._device)[None, :]
        mask = columns >= start
        logits = self._forward(ids, mask, (columns - start).clamp(min=0))

        rows = torch.tensor(self._prompt_of_row, device=self._device)
        self._select(rows)
        self._mask = mask[rows]
        self._position = torch.tensor(lengths, device=self._device)[rows]
        return logits[rows]

    def step(self, tokens_R: Tensor, num_running: int) -> Tensor:
        """Feed one token per row, of which so many are not finished, and return [R, V] logits of the next."""
        self.work.add(Work(num_tokens=num_running, num_slots=len(tokens_R)))
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=True)
        logits = self._forward(tokens_R[:, None], self._mask, self._position[:, None])
        self._position = self._position + 1
        return logits

    def keep(self, places: NDArray[np.int64]) -> Tensor:
        """Drop all other rows from the tensors; returns the kept places on the device."""
        kept = torch.from_numpy(places).to(self._device)
        self._select(kept)
        self._mask, self._position = self._mask[kept], self._position[kept]
        self.row_ids = self.row_ids[places]
        return kept

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def _select(self, places: Tensor) -> None:
        """Gather cache rows; a place may be named several times, which spreads a shared prompt."""
        self._cache.reorder_cache(cast(torch.LongTensor, places))


class _Responses:
    """What has been sampled so far, kept on the host."""

    def __init__(self, rows: Sequence[Row], eos_ids: Sequence[int], stop_texts: StopTexts) -> None:
        self._rows = rows
        self._eos = np.array(eos_ids, dtype=np.int64)
        self._stop_texts = stop_texts
        self._limits = np.array([row.limit for row in rows])
        self.longest_limit = int(self._limits.max())
        shape = (len(rows), self.longest_limit)
        self._uniforms = np.stack([request_uniforms(row.seed, self.longest_limit) for row in rows])
        self._tokens = np.zeros(shape, dtype=np.int64)
        self._logprobs = np.zeros(shape, dtype=np.float32)
        self._kept: list[list[tuple[int, ...]]] = [[] for _ in rows]
        self._lengths = np.zeros(len(rows), dtype=np.int64)
        self._running = np.ones(len(rows), dtype=bool)
        self._ended = np.zeros(len(rows), dtype=bool)

    def uniforms(self, row_ids: NDArray[np.int64], step: int) -> NDArray[np.float64]:
        """Return [R] the number that decides each row's next token."""
        uniforms_R: NDArray[np.float64] = self._uniforms[row_ids, step]
        return uniforms_R

    def append(self, row_ids: NDArray[np.int64], step: int, drawn: Draw) -> NDArray[np.bool_]:
        """Record one token per row; rows that had finished before are ignored. Returns [R] which rows go on."""
        tokens_R, logprobs_R = drawn.tokens_R.cpu().numpy(), drawn.logprobs_R.cpu().numpy()
        fresh = self._running[row_ids]
        rows, tokens = row_ids[fresh], tokens_R[fresh]
        if not np.isfinite(logprobs_R[fresh]).all():
            raise FloatingPointError(f"the model's logits are not finite at response token {step}")
        self._tokens[rows, step] = tokens
        self._logprobs[rows, step] = logprobs_R[fresh]
        if drawn.kept is not None:
            for place in np.flatnonzero(fresh).tolist():
                self._kept[row_ids[place]].append(tuple(drawn.kept[place]))
        self._lengths[rows] = step + 1
        self._ended[rows] = np.isin(tokens, self._eos) | self._stopped(rows, tokens, step)
        self._running[rows] = ~self._ended[rows] & (step + 1 < self._limits[rows])
        return self._running[row_ids]

    def result(self) -> list[Sampled]:
        """Return the responses in row order."""
        return [
            Sampled(
                index=row.index,
                token_ids=tuple(self._tokens[place, : self._lengths[place]].tolist()),
                logprobs=tuple(self._logprobs[place, : self._lengths[place]].tolist()),
                kept=tuple(self._kept[place]),
                finish_reason="stop" if self._ended[place] else "length",
            )
            for place, row in enumerate(self._rows)
        ]

    def _stopped(self, rows: NDArray[np.int64], tokens: NDArray[np.int64], step: int) -> NDArray[np.bool_]:
        stopped = np.zeros(len(rows), dtype=bool)
        for number, (place, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            stops = self._rows[place].stops
            if stops and self._stop_texts.completing(stops)[token]:
                stopped[number] = self._stop_texts.reached(self._tokens[place, : step + 1].tolist(), stops)
        return stopped
