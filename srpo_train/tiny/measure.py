"""Measured rates of a policy: what a team of its samples earns, and how often each role keeps to its format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from srpo_envs.core import SetEnv
from srpo_envs.records import ActiveSet, Episode, Member

Responder = Callable[[Sequence[Member]], list[str]]
"""Texts for members, in their order."""


def make_responder(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, generator_seed: int, temperature: float = 1.0
) -> Responder:
    """Return a function that samples one response per member, in batches; temperature 0 takes the likeliest tokens."""
    seeds = torch.Generator().manual_seed(generator_seed)

    def respond(members: Sequence[Member]) -> list[str]:
        seed = int(torch.randint(2**62, (), generator=seeds))
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(seed)
            return _generate(model, tokenizer, members, temperature)

    return respond


def play_teams(envs: Iterable[tuple[SetEnv, int]], respond: Responder) -> list[Episode]:
    """Play one episode in each environment, all of them in step, and return the finished episodes.

    Args:
        envs: Environments with the index of the task each shall play.
        respond: Writes the responses of all pending members together.
    """
    running = [(env, env.reset(seed=index, options={"task_index": index})) for env, index in envs]
    finished: list[SetEnv] = [env for env, _ in running]
    while running:
        texts = iter(respond([member for _, active in running for member in active.members]))
        moved: list[tuple[SetEnv, ActiveSet | None]] = [
            (env, env.step(active.outputs([next(texts) for _ in active.members])).next) for env, active in running
        ]
        running = [(env, active) for env, active in moved if active is not None]
    return [env.episode for env in finished]


def summarise(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean team reward and, by kind of event, the share of valid and of right responses.

    Answers are right when they equal the task's gold answer; verdicts and routes have no such share.
    """
    valid: dict[str, list[bool]] = defaultdict(list)
    right: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        for event in episode.events:
            for member in event.members:
                valid[event.event_type].append(member.is_valid)
                if member.role in ("solver", "aggregator"):
                    right[event.event_type].append(member.parsed == episode.task["gold"])
    rates = {"team_reward": _mean([episode.reward for episode in episodes])}
    rates |= {f"valid/{kind}": _mean(flags) for kind, flags in sorted(valid.items())}
    rates |= {f"right/{kind}": _mean(flags) for kind, flags in sorted(right.items())}
    return rates


def _generate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, members: Sequence[Member], temperature: float
) -> list[str]:
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": member.prompt}], add_generation_prompt=True, tokenize=False
        )
        for member in members
    ]
    encoded = tokenizer(prompts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    drawing = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    longest = max(member.max_new_tokens for member in members)
    token_ids = model.generate(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], max_new_tokens=longest, **drawing
    )[:, encoded["input_ids"].shape[1] :]
    return [
        tokenizer.decode(row[: member.max_new_tokens], skip_special_tokens=True)
        for row, member in zip(token_ids, members, strict=True)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
