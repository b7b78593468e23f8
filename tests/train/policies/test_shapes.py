"""`srpo_train.policies.shapes`: sizes of models that are not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from srpo_envs.errors import PolicyLoadError
from srpo_train.policies.shapes import shape_of

WIDTHS = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 192}
WIDTHS |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("hub_id", "num_parameters", "context"),
    [  # the counts that the model cards' safetensors summaries show
        ("Qwen/Qwen3-4B", 4_022_468_096, 40_960),
        ("Qwen/Qwen3-8B", 8_190_735_360, 40_960),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688, 32_768),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 32_768),
    ],
)
def test_published_models_are_known_without_a_network(hub_id: str, num_parameters: int, context: int) -> None:
    shape = shape_of("team", hub_id)
    assert shape is not None
    assert (shape.num_parameters, shape.context_length) == (num_parameters, context)


def test_a_rank_64_adapter_on_qwen3_8b_by_hand() -> None:
    shape = shape_of("team", "Qwen/Qwen3-8B")
    assert shape is not None
    per_layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12_288)
    assert shape.adapter_parameters(64) == 64 * 36 * per_layer
    assert shape.kv_size == 2 * 36 * 8 * 128


def test_an_unknown_id_has_no_shape() -> None:
    assert shape_of("team", "nobody/nothing-1b") is None


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyLoadError, match=r"policy 'team'.*config\.json"):
        shape_of("team", str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("config", "model"), [(Qwen3Config, Qwen3ForCausalLM), (Qwen2Config, Qwen2ForCausalLM)])
def test_activations_of_a_layer_are_what_autograd_keeps(
    config: type, model: type, dtype: torch.dtype, tmp_path: Path
) -> None:
    own = WIDTHS | ({"head_dim": 32} if config is Qwen3Config else {})
    kept = [kept_bytes(model(config(num_hidden_layers=layers, **own)).to(dtype), 256) for layers in (1, 3)]
    config(num_hidden_layers=3, **own).save_pretrained(tmp_path)
    shape = shape_of("team", str(tmp_path))
    assert shape is not None
    measured = (kept[1] - kept[0]) / 2 / 256
    assert shape.layer_activation_bytes(dtype.itemsize) == pytest.approx(measured, rel=0.12)


def kept_bytes(model: torch.nn.Module, num_tokens: int) -> int:
    """Bytes of the distinct tensors that a forward pass leaves for the backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.base_model(input_ids=torch.arange(num_tokens)[None] % 64, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
