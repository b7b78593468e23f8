"""How large a model is, from its configuration alone: parameters, layers, key-value cache, activations.

The model is built on torch's meta device, where tensors have shapes and no memory, so that counts are exact for every
architecture transformers knows. Nothing is downloaded: the configuration comes from a directory, from the hub's local
cache, or from the table below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from srpo_envs.errors import PolicyLoadError
from srpo_train.policies import lora

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_QWEN3 = {"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
_QWEN3 |= {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960}
_QWEN25 = {"model_type": "qwen2", "max_position_embeddings": 32_768}
_QWEN25_3B = _QWEN25 | {"hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36}
_QWEN25_3B |= {"num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True}
_QWEN25_7B = _QWEN25 | {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28}
_QWEN25_7B |= {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False}

# Numbers of the config.json that each hub repository publishes, huggingface.co/<id>/blob/main/config.json. They give
# the sizes in the technical reports: Qwen3 (arXiv:2505.09388, table 1), Qwen2.5 (arXiv:2412.15115, table 1).
_PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B": _QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "Qwen/Qwen3-8B": _QWEN3 | {"hidden_size": 4096, "intermediate_size": 12_288, "tie_word_embeddings": False},
    "Qwen/Qwen2.5-3B": _QWEN25_3B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN25_3B,
    "Qwen/Qwen2.5-7B": _QWEN25_7B | {"max_position_embeddings": 131_072},
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25_7B,
}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a causal language model.

    Example:
        ``shape_of("solver", "Qwen/Qwen3-4B").num_parameters`` is 4,022,468,096.
    """

    num_parameters: int
    """Weights, tied ones counted once."""
    head_parameters: int
    """Those of the output head alone; 0 where it is tied to the embeddings."""
    linear: Mapping[str, int]
    """For each linear layer below the head, by the last part of its name: inputs plus outputs, summed over layers."""
    vocab_size: int
    """Words of the output head."""
    hidden_size: int
    """Width of the hidden states."""
    num_layers: int
    """Decoder layers."""
    kv_size: int
    """Numbers in the key-value cache for one token, over all layers."""
    mlp_size: int
    """Width inside the feed-forward part; 0 where the configuration does not say, and activations are not estimated."""
    attention_size: int
    """Width of all queries of a token."""
    norms_heads: bool
    """Whether queries and keys are normalised, which keeps more of them for the backward pass."""
    context_length: int | None
    """Most positions; None when the configuration names none."""

    @property
    def critic_parameters(self) -> int:
        """Parameters of a critic on this model: a head of one number in place of its own."""
        return self.num_parameters - self.head_parameters + self.hidden_size + 1

    def adapter_parameters(self, rank: int, targets: Collection[str] | None = None) -> int:
        """Return the parameters of a LoRA adapter on these linear layers, None for all."""
        return rank * sum(size for name, size in self.linear.items() if targets is None or name in targets)

    def layer_activation_bytes(self, itemsize: int) -> int:
        """Return what one layer keeps of one token for the backward pass.

        Without attention's square matrix, which fused kernels do not keep. A norm keeps its input in float32, its
        output before and after the scale; attention its queries, keys, values and output; the feed-forward part, gated
        as in Llama and Qwen, four vectors.
        """
        kv_width = self.kv_size // self.num_layers
        normed = 2 * self.hidden_size + (self.attention_size + kv_width // 2 if self.norms_heads else 0)
        return (4 + 2 * itemsize) * normed + itemsize * (2 * self.attention_size + kv_width + 4 * self.mlp_size)


def shape_of(policy_id: str, location: str) -> ModelShape | None:
    """Return the shape of a directory's or hub id's model; None for an id that is neither known here nor in the cache.

    Raises:
        PolicyLoadError: the directory has no configuration that transformers can read.
    """
    config = _config_of(policy_id, location)
    return None if config is None else _measure(config)


def stored_parameters(directory: str | Path) -> int:
    """Return the parameters of a stored adapter, from the header of its file."""
    from safetensors import safe_open

    with safe_open(Path(directory) / lora.WEIGHTS_FILE, framework="pt") as file:
        return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118


def _config_of(policy_id: str, location: str) -> PreTrainedConfig | None:
    from transformers import AutoConfig

    if location in _PUBLISHED:
        published = dict(_PUBLISHED[location])
        config: PreTrainedConfig = AutoConfig.for_model(published.pop("model_type"), **published)
        return config
    try:
        stored: PreTrainedConfig = AutoConfig.from_pretrained(location, local_files_only=True)
        return stored
    except (OSError, ValueError) as error:
        if not Path(location).is_dir():
            return None
        raise PolicyLoadError(
            f"policy {policy_id!r}: cannot read the configuration in {location!r}; the directory needs a config.json "
            f"of a transformers model ({' '.join(str(error).split())})"
        ) from error


def _measure(config: PreTrainedConfig) -> ModelShape:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    head = model.get_output_embeddings()
    is_tied = bool(text.tie_word_embeddings)
    linear: dict[str, int] = {}
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear) and part is not head:
            key = name.rpartition(".")[2]
            linear[key] = linear.get(key, 0) + part.in_features + part.out_features
    num_heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    return ModelShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        head_parameters=0 if is_tied else sum(parameter.numel() for parameter in head.parameters()),
        linear=linear,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        kv_size=2 * text.num_hidden_layers * num_kv_heads * head_dim,
        mlp_size=getattr(text, "intermediate_size", None) or 0,
        attention_size=num_heads * head_dim,
        norms_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        context_length=getattr(text, "max_position_embeddings", None),
    )
