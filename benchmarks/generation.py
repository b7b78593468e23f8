"""Tokens per second of the transformers engine against `generate` of transformers, in the same run.

Run it with ``python benchmarks/generation.py``. The model has the shape of the embedded policy with random weights; the
256 prompts are 32 questions of 24 to 40 tokens, each asked 8 times, as a rollout group asks them. Two cases: every
response runs to 32 tokens, and responses that end early (7 % of the vocabulary ends a response, so about 13 tokens on
average). Only tokens of responses are counted, never padding behind an end.

The peer appears twice: sampling only, and with the sampled tokens' log-probs, which training needs and the engine
always returns. Rounds are interleaved, so that a busy machine slows every row alike; the best round counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy

VOCABULARY = 400
NUM_ENDING = 28
PAD_ID = 0
MAX_NEW_TOKENS = 32
Prompts = Sequence[tuple[int, ...]]


class IdTokenizer:
    """Writes and reads ids as words, so that the benchmark needs no trained tokenizer."""

    chat_template = None
    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Return the ids written in the text."""
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, token_ids: Sequence[int], **_: bool) -> str:
        """Return the ids as words."""
        return " ".join(map(str, token_ids))


def make_policy(eos_ids: Sequence[int]) -> Policy:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=160,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=list(eos_ids) or None, pad_token_id=PAD_ID)
    return Policy(policy_id="bench", model=model, tokenizer=IdTokenizer())


def make_prompts(num_questions: int, group_size: int) -> list[tuple[int, ...]]:
    random = np.random.default_rng(0)
    questions = [
        tuple(random.integers(1, VOCABULARY, size).tolist()) for size in random.integers(24, 41, num_questions)
    ]
    return [question for question in questions for _ in range(group_size)]


def sample_with_engine(policy: Policy, prompts: Prompts, round_number: int) -> int:
    requests = [
        GenerationRequest(
            request_id=str(number),
            prompt=" ".join(map(str, prompt)),
            max_new_tokens=MAX_NEW_TOKENS,
            seed=round_number * len(prompts) + number,
        )
        for number, prompt in enumerate(prompts)
    ]
    return sum(len(generation.token_ids) for generation in TransformersEngine(policy).generate(requests, Sampling()))


def sample_with_generate(policy: Policy, prompts: Prompts, round_number: int, *, with_logprobs: bool) -> int:
    torch.manual_seed(round_number)
    width = max(map(len, prompts))
    ids = torch.tensor([(PAD_ID,) * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([(0,) * (width - len(prompt)) + (1,) * len(prompt) for prompt in prompts])
    with torch.no_grad():
        output = policy.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            return_dict_in_generate=True,
            output_logits=with_logprobs,
        )
        responses = output.sequences[:, width:]
        if with_logprobs:
            logprobs = torch.stack(output.logits, dim=1).log_softmax(dim=-1)
            logprobs.gather(-1, responses[..., None])
    return count_tokens(responses.numpy(), policy.eos_ids)


def count_tokens(responses: np.ndarray, eos_ids: Sequence[int]) -> int:
    ends = np.isin(responses, eos_ids)
    lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, responses.shape[1])
    return int(lengths.sum())


def measure(contestants: dict[str, Callable[[int], int]], rounds: int) -> dict[str, tuple[float, int]]:
    """Return the best tokens per second of each contestant, and the tokens of that round."""
    best = dict.fromkeys(contestants, (0.0, 0))
    for round_number in range(rounds + 1):
        for name, sample in contestants.items():
            started = time.perf_counter()
            tokens = sample(round_number)
            rate = tokens / (time.perf_counter() - started)
            if round_number:  # round 0 warms up
                best[name] = max(best[name], (rate, tokens))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    prompts = make_prompts(arguments.questions, arguments.group_size)

    print(f"{len(prompts)} responses of at most {MAX_NEW_TOKENS} tokens, {arguments.threads} thread(s)\n")
    print("| responses | sampler | tokens a round | tokens/s | engine is faster by |")
    print("|---|---|---:|---:|---:|")
    for case, eos_ids in (("full length", ()), ("ending early", range(1, NUM_ENDING + 1))):
        policy = make_policy(eos_ids)
        results = measure(
            {
                "engine, with log-probs": lambda n, p=policy: sample_with_engine(p, prompts, n),
                "generate": lambda n, p=policy: sample_with_generate(p, prompts, n, with_logprobs=False),
                "generate, with log-probs": lambda n, p=policy: sample_with_generate(p, prompts, n, with_logprobs=True),
            },
            arguments.rounds,
        )
        engine_rate = results["engine, with log-probs"][0]
        for name, (rate, tokens) in results.items():
            print(f"| {case} | {name} | {tokens:,} | {rate:,.0f} | {engine_rate / rate:.2f} |")


if __name__ == "__main__":
    main()
