"""Supervised warm start of the embedded policy: a phase that teaches every role, then one that spoils what was learnt.

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
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from srpo_train.tiny.experts import (
    Example,
    Habits,
    play_examples,
    sample_environment,
    with_random_company,
)

IGNORED = -100
"""Label of tokens without loss."""

SPOILED = Habits(
    wrong_step=0.12,
    flipped_minus=0.35,
    bare_guess=0.65,
    random_verdict=0.30,
    random_choice=0.30,
    random_route=0.50,
    malformed=0.005,
)
"""Habits of the second phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One stretch of supervised learning."""

    name: str
    """Shown by the progress bar and kept in the report."""
    habits: Habits
    """Of the responses to imitate."""
    num_steps: int
    """Optimiser steps."""
    learning_rate: float
    """Peak of AdamW's rate; it warms up over 50 steps and falls along a cosine to a twentieth."""
    batch_size: int = 32
    """Examples a step."""
    num_episodes: int = 6000
    """Episodes the examples are drawn from."""


PHASES = (
    Phase(name="clean", habits=Habits(random_route=0.5), num_steps=1200, learning_rate=3e-3),
    Phase(name="spoiled", habits=SPOILED, num_steps=300, learning_rate=1e-3),
)
"""The recipe of the embedded policy."""

ROLE_WEIGHTS: Mapping[str, float] = {
    "solver": 0.50,
    "revision": 0.15,
    "verifier": 0.10,
    "aggregator": 0.15,
    "router": 0.10,
}
"""Share of each kind of event in a batch."""

LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.1, 2: 0.6, 3: 0.3}
"""Share of each level among the episodes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded examples; B rows, T tokens."""

    input_ids_BT: Tensor
    """[B, T] int64, prompt, response, end of sequence, right padding."""
    labels_BT: Tensor
    """[B, T] int64, the token itself where it belongs to the response, `IGNORED` elsewhere."""


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Return the architecture: about 0.13 million parameters; heads of 32, the least that vLLM runs on a CPU."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        use_cache=True,
        dtype="float32",
    )


def new_model(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    """Return a freshly initialised model without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        torch.nn.Module.to(model, torch.float32)
        return model


def make_examples(habits: Habits, num_episodes: int, rng: np.random.Generator) -> dict[str, list[Example]]:
    """Play episodes of all variants and levels and return the examples by kind of event."""
    pools: dict[str, list[Example]] = {kind: [] for kind in ROLE_WEIGHTS}
    levels, shares = list(LEVEL_WEIGHTS), list(LEVEL_WEIGHTS.values())
    for _ in range(num_episodes):
        env = sample_environment(rng, int(rng.choice(levels, p=shares)))
        company = with_random_company(habits, rng)
        index = int(rng.integers(env.tasks.num_tasks))
        for example in play_examples(env, task_index=index, rng=rng, target=habits, committed=company):
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
    phase: Phase,
    rng: np.random.Generator,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train the model in place and return the loss of every step.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        phase: What to imitate, how long and how fast.
        rng: Source of the examples and of their order.
        on_step: Called after each step with its number, from 1, and its loss.
    """
    batches = _batches(make_examples(phase.habits, phase.num_episodes, rng), tokenizer, phase, rng)
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
    pools: Mapping[str, Sequence[Example]], tokenizer: PreTrainedTokenizerFast, phase: Phase, rng: np.random.Generator
) -> Iterator[Batch]:
    """Yield batches for ever: kinds by `ROLE_WEIGHTS`, examples of a kind uniformly."""
    rows = {kind: encode_examples(pool, tokenizer) for kind, pool in pools.items() if pool}
    kinds = list(rows)
    shares = np.array([ROLE_WEIGHTS[kind] for kind in kinds])
    while True:
        drawn = rng.choice(len(kinds), size=phase.batch_size, p=shares / shares.sum())
        pools_drawn = [rows[kinds[kind]] for kind in drawn]
        yield collate([pool[int(rng.integers(len(pool)))] for pool in pools_drawn], tokenizer.pad_token_id)


def _rate_curve(num_steps: int, num_warmup: int = 50) -> Callable[[int], float]:
    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / min(num_warmup, num_steps))
        return rise * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / num_steps))))

    return factor
