"""Supervised warm start of an embedded policy: a phase that teaches every role, then one that spoils what was learnt.

The loss is the mean negative log-likelihood of response tokens; prompts and padding carry none. Everything random comes
from generators seeded here, and one thread does the arithmetic, so a seed gives the same weights on the same machine.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from srpo_train.tiny.curriculum import Curriculum, Phase
from srpo_train.tiny.experts import Example, HabitsT

IGNORED = -100
"""Label of tokens without loss."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded examples; B rows, T tokens."""

    input_ids_BT: Tensor
    """[B, T] int64, prompt, response, end of sequence, right padding."""
    labels_BT: Tensor
    """[B, T] int64, the token itself where it belongs to the response, `IGNORED` elsewhere."""


def make_examples(
    curriculum: Curriculum[HabitsT], phase: Phase[HabitsT], rng: np.random.Generator
) -> dict[str, list[Example]]:
    """Play the episodes of a phase and return the examples by kind of event."""
    pools: dict[str, list[Example]] = {kind: [] for kind in curriculum.role_weights}
    levels, shares = list(phase.level_weights), list(phase.level_weights.values())
    for _ in range(phase.num_episodes):
        for example in curriculum.play(int(rng.choice(levels, p=shares)), phase.habits, rng):
            pools[example.event_type].append(example)
    return pools


def encode_examples(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], int]]:
    """Return (token ids, number of prompt tokens) of each example, end of sequence included."""
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": item.prompt}], add_generation_prompt=True, tokenize=False
        )
        for item in examples
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    response_ids = tokenizer([item.response for item in examples], add_special_tokens=False)["input_ids"]
    return [
        (prompt + response + [tokenizer.eos_token_id], len(prompt))
        for prompt, response in zip(prompt_ids, response_ids, strict=True)
    ]


def collate(rows: Sequence[tuple[list[int], int]], pad_id: int) -> Batch:
    """Right-pad rows into one batch; causal attention never looks at the padding, so no mask is needed."""
    longest = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((len(rows), longest), pad_id)
    labels = torch.full((len(rows), longest), IGNORED)
    for row, (ids, num_prompt) in enumerate(rows):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        labels[row, num_prompt : len(ids)] = input_ids[row, num_prompt : len(ids)]
    return Batch(input_ids, labels)


def response_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean negative log-likelihood of the response tokens; each is predicted from the position before it."""
    logits_BTV = model(input_ids=batch.input_ids_BT[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1), batch.labels_BT[:, 1:].flatten(), ignore_index=IGNORED
    )


def run_phase(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    curriculum: Curriculum[HabitsT],
    phase: Phase[HabitsT],
    rng: np.random.Generator,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train the model in place and return the loss of every step.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        curriculum: Whom to imitate.
        phase: With which habits, how long and how fast.
        rng: Source of the examples and of their order.
        on_step: Called after each step with its number, from 1, and its loss.
    """
    pools = make_examples(curriculum, phase, rng)
    batches = _batches(pools, curriculum.role_weights, tokenizer, phase.batch_size, rng)
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_curve(phase.num_steps))
    losses = []
    model.train()
    for step, batch in zip(range(1, phase.num_steps + 1), batches, strict=False):
        loss = response_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        on_step(step, losses[-1])
    model.eval()
    return losses


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread inside: sums in a fixed order, and no slower for a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(
    pools: Mapping[str, Sequence[Example]],
    weights: Mapping[str, float],
    tokenizer: PreTrainedTokenizerFast,
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """Yield batches for ever: kinds by their weights, examples of a kind uniformly."""
    rows = {kind: encode_examples(pool, tokenizer) for kind, pool in pools.items() if pool}
    kinds = list(rows)
    shares = np.array([weights[kind] for kind in kinds])
    while True:
        drawn = rng.choice(len(kinds), size=batch_size, p=shares / shares.sum())
        pools_drawn = [rows[kinds[kind]] for kind in drawn]
        yield collate([pool[int(rng.integers(len(pool)))] for pool in pools_drawn], tokenizer.pad_token_id)


def _rate_curve(num_steps: int, num_warmup: int = 50) -> Callable[[int], float]:
    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / min(num_warmup, num_steps))
        return rise * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / num_steps))))

    return factor
