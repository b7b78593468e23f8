from __future__ import annotations

import pytest
import torch

from srpo_train.policies import Policy


@pytest.fixture
def own_policy(tiny_checkpoint):
    """A policy that a test may change."""
    return Policy.load("own", tiny_checkpoint, device="cpu")


# --- tokens -------------------------------------------------------------------------------------------------------


def ids(policy, *tokens: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer.convert_tokens_to_ids(list(tokens)))


def test_a_prompt_is_one_user_message_ready_for_the_answer(tiny_policy):
    expected = ids(tiny_policy, "<|user|>", "ab", "+", "c", "<|end|>", "<|assistant|>")
    assert tiny_policy.encode_prompt("ab+c") == expected


def test_template_variables_reach_the_template(tiny_checkpoint):
    policy = Policy.load("p", tiny_checkpoint, device="cpu", chat_template_kwargs={"thinking": True})
    assert policy.encode_prompt("a") == ids(policy, "<|user|>", "a", "<|end|>", "<|assistant|>", "<think>")


def test_without_a_template_the_text_is_encoded_as_it_is(own_policy):
    own_policy.tokenizer.chat_template = None
    assert own_policy.encode_prompt("ab+c") == ids(own_policy, "ab", "+", "c")


def test_decoding_hides_special_tokens_and_nothing_else(tiny_policy):
    tokens = ids(tiny_policy, "<think>", "a", "b", "Ġ", "?", "</think>", "<|end|>")
    assert tiny_policy.decode(tokens) == "<think>ab ?</think>"


def test_end_tokens_are_the_tokenizer_s_and_all_of_the_generation_config(own_policy):
    end, question = ids(own_policy, "<|end|>", "?")
    assert own_policy.eos_ids == tuple(sorted((end, question)))
    own_policy.model.generation_config.eos_token_id = question
    assert own_policy.eos_ids == tuple(sorted((end, question)))
    own_policy.model.generation_config.eos_token_id = None
    assert own_policy.eos_ids == (end,)
    own_policy.tokenizer.eos_token = None
    assert own_policy.eos_ids == ()


def test_context_length_is_the_model_s(tiny_policy):
    assert tiny_policy.context_length == 128


def test_tied_weights_are_counted_once(tiny_policy):
    # V = 46 tokens, width 32, two layers. Embedding 46 * 32 = 1,472 (tied head); a layer: q 32*64, k and v 32*32 each,
    # o 64*32 = 6,144, MLP 3 * 32 * 64 = 6,144, norms 2 * 32 + 2 * 16 = 96, together 12,384; final norm 32.
    assert len(tiny_policy.tokenizer) == 46
    assert tiny_policy.num_parameters == 1_472 + 2 * 12_384 + 32


# --- passes -------------------------------------------------------------------------------------------------------


def test_dropout_is_off_in_training_mode_too(dropout_policy):
    tokens = torch.tensor([dropout_policy.encode_prompt("0+1=?")])
    with torch.no_grad():
        expected = dropout_policy.model.eval()(input_ids=tokens).logits
        assert torch.equal(dropout_policy.model.train()(input_ids=tokens).logits, expected)


def test_sampling_mode_runs_without_gradients_and_restores_the_mode(own_policy):
    own_policy.model.train()
    with pytest.raises(KeyError), own_policy.sampling_mode():
        assert not own_policy.model.training
        assert not torch.is_grad_enabled()
        raise KeyError
    assert own_policy.model.training
    assert torch.is_grad_enabled()


def test_gradient_checkpointing_gives_the_same_gradient(tiny_checkpoint, own_policy):
    saving = Policy.load("saving", tiny_checkpoint, device="cpu", gradient_checkpointing=True)
    tokens = torch.tensor([own_policy.encode_prompt("0+1=?")])
    for policy in (own_policy, saving):
        policy.model(input_ids=tokens).logits.logsumexp(-1).sum().backward()
    for plain, recomputed in zip(own_policy.model.parameters(), saving.model.parameters(), strict=True):
        torch.testing.assert_close(plain.grad, recomputed.grad)


def test_gradient_checkpointing_recomputes_layers_in_the_backward_pass(tiny_checkpoint):
    policy = Policy.load("saving", tiny_checkpoint, device="cpu", gradient_checkpointing=True)
    calls = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    loss = policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum()
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


# --- saving -------------------------------------------------------------------------------------------------------


def test_a_saved_policy_loads_to_the_same_tokens_ends_and_logits(own_policy, tmp_path):
    with torch.no_grad():
        own_policy.model.model.norm.weight.mul_(1.5)
    own_policy.save(tmp_path / "policy")
    loaded = Policy.load("again", tmp_path / "policy", device="cpu")
    tokens = own_policy.encode_prompt("ab 01?")
    assert loaded.encode_prompt("ab 01?") == tokens
    assert loaded.eos_ids == own_policy.eos_ids
    with torch.no_grad():
        expected = own_policy.model(input_ids=torch.tensor([tokens])).logits
        assert torch.equal(loaded.model(input_ids=torch.tensor([tokens])).logits, expected)


def test_a_saved_policy_has_the_files_other_tools_read(tiny_policy, tmp_path):
    tiny_policy.save(tmp_path)
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert wanted <= {path.name for path in tmp_path.iterdir()}
