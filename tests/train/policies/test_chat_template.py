"""Qwen3's chat template in our use: one user message, a prompt that nothing changes, and nothing sampled is rewritten.

The template below does in few words what the published one does to user and assistant messages: it strips the think
block of every assistant message before the last question, gives the later ones an empty one if they have none, and,
with ``enable_thinking = false``, ends the prompt with an empty think block, so that the model answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy

QWEN3_LIKE = (
    "{%- set last = namespace(question=-1) -%}"
    "{%- for m in messages if m.role == 'user' -%}{%- set last.question = messages.index(m) -%}{%- endfor -%}"
    "{%- for m in messages -%}{{- '<|user|>' if m.role == 'user' else '<|assistant|>' -}}"
    "{%- if m.role == 'user' -%}{{- m.content -}}"
    "{%- else -%}{%- set answer = m.content.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n')"
    " if '</think>' in m.content else '' -%}"
    "{%- if loop.index0 > last.question -%}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- answer -}}{%- endif -%}{{- '<|end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def policy(tiny_checkpoint: Path) -> Policy:
    loaded = Policy.load("qwen", tiny_checkpoint, device="cpu", chat_template_kwargs={"enable_thinking": False})
    loaded.tokenizer.chat_template = QWEN3_LIKE
    return loaded


def render(policy: Policy, *messages: tuple[str, str], **options: Any) -> str:
    listed = [{"role": role, "content": content} for role, content in messages]
    text = policy.tokenizer.apply_chat_template(listed, tokenize=False, enable_thinking=False, **options)
    assert isinstance(text, str)
    return text


def test_the_template_is_one_that_a_careless_caller_loses_tokens_to(policy: Policy) -> None:
    """What the tests below guard against is there: it strips thoughts, and rewrites a response put back into it."""
    told = (("user", "a"), ("assistant", "<think>\nb\n</think>\n\nc"), ("user", "d"))
    assert "b" not in render(policy, *told)
    prompt = render(policy, told[0], add_generation_prompt=True)
    sampled = "<think>b</think>c"
    assert not render(policy, told[0], ("assistant", sampled)).startswith(prompt + sampled)


def test_with_thinking_off_the_prompt_ends_with_an_empty_thought(policy: Policy) -> None:
    prompt = policy.encode_prompt("a?")
    assert policy.tokenizer.decode(list(prompt)) == f"<|user|>a?<|end|>\n<|assistant|>{EMPTY}"


@pytest.mark.parametrize("response", ["c", "0 1\n", "\nc", "é…", "<think>", "b</think>c", "<think>b</think>c", ""])
def test_a_prompt_stays_as_it_is_when_a_response_follows(policy: Policy, response: str) -> None:
    """Prompt and response are joined as tokens, which is how the trainer scores them and the engine sampled them."""
    prompt = policy.encode_prompt("a?")
    sampled = tuple(policy.tokenizer(response, add_special_tokens=False)["input_ids"])
    joined = prompt + sampled
    assert policy.encode_prompt("a?") == joined[: len(prompt)]
    assert policy.tokenizer.decode(list(joined)) == f"<|user|>a?<|end|>\n<|assistant|>{EMPTY}{response}"


def test_an_earlier_response_is_quoted_in_a_user_message_and_stays_whole(policy: Policy) -> None:
    """Worlds show drafts inside the next question, where the template strips nothing."""
    draft = "<think>b</think>c"
    assert draft in policy.tokenizer.decode(list(policy.encode_prompt(f"d {draft} e?")))


def test_what_an_engine_returns_is_the_prompt_of_the_template_and_the_tokens_as_sampled(policy: Policy) -> None:
    requests = [GenerationRequest(request_id=str(n), prompt="a?", max_new_tokens=24, seed=n) for n in range(24)]
    generations = TransformersEngine(policy).generate(requests, Sampling())
    prompt = policy.encode_prompt("a?")
    assert {generation.prompt_token_ids for generation in generations} == {prompt}
    thought = set(policy.tokenizer.convert_tokens_to_ids(["<think>", "</think>"]))
    thinking = [generation for generation in generations if thought & set(generation.token_ids)]
    assert thinking, "no sample holds a think token, so nothing is tested"
    for generation in thinking:
        assert len(generation.logprobs) == len(generation.token_ids)
        assert generation.text == policy.tokenizer.decode(list(generation.token_ids), skip_special_tokens=True)
        assert "think>" in generation.text
