"""LoRA adapters in peft's terms: settings, files, and what of peft's choice fits a base that several policies share.

Everything that imports peft is here; it is needed for policies with an adapter only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from srpo_envs.errors import ConfigError, MissingExtraError, PolicyLoadError, near_miss
from srpo_train.config import ALL_LINEAR, AdapterConfig

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

CONFIG_FILE = "adapter_config.json"
"""peft's description of an adapter; a directory that holds one is an adapter and no model."""

WEIGHTS_FILE = "adapter_model.safetensors"
"""peft's file of adapter weights."""

_INIT: dict[str, bool | str] = {"kaiming": True, "gaussian": "gaussian"}


def is_adapter(location: str | Path) -> bool:
    """Whether a directory holds an adapter."""
    return (Path(location) / CONFIG_FILE).is_file()


def linear_names(model: PreTrainedModel) -> frozenset[str]:
    """Return the last parts of the names of all linear layers, such as ``q_proj``, the output head left out.

    The head stays as it is, so that log-probabilities can be taken without the logits of a whole batch.
    """
    head = model.get_output_embeddings()
    linear = (name for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head)
    return frozenset(name.rpartition(".")[2] for name in linear)


def new_config(policy_id: str, settings: AdapterConfig, known: Iterable[str]) -> LoraConfig:
    """Return peft's configuration of a new adapter.

    Args:
        policy_id: Named in errors.
        settings: The recipe's.
        known: Linear layers of the base, as `linear_names` gives them.

    Raises:
        ConfigError: a target is not a linear layer of the base.
        MissingExtraError: peft is not installed.
    """
    targets = sorted(known) if settings.targets == ALL_LINEAR else list(settings.targets)
    for name in targets:
        if name not in known:
            problem = f"policy {policy_id!r}: its model has no linear layer {name!r} below the output head"
            raise ConfigError(f"{problem}{near_miss(name, known)}")
    config: LoraConfig = _peft().LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        init_lora_weights=_INIT[settings.init],
        use_rslora=settings.use_rslora,
    )
    return config


def read_config(policy_id: str, directory: str | Path) -> LoraConfig:
    """Return the configuration of a stored adapter, dropout set to 0.

    Raises:
        PolicyLoadError: it cannot be read, or it does more than plain LoRA.
        MissingExtraError: peft is not installed.
    """
    peft = _peft()
    try:
        config: LoraConfig = peft.PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PolicyLoadError(f"policy {policy_id!r}: {directory}/{CONFIG_FILE} cannot be read ({error})") from error
    # What else peft offers changes the base for all who share it, or is not plain low-rank sums any more.
    is_plain = isinstance(config, peft.LoraConfig) and config.bias == "none"
    if not is_plain or config.modules_to_save or config.use_dora or config.trainable_token_indices:
        raise PolicyLoadError(
            f"policy {policy_id!r}: the adapter in {directory} is not plain LoRA (biases, saved modules, DoRA and "
            "other kinds change the base, which policies share); merge it into a full model and name that"
        )
    config.lora_dropout = 0.0
    return config


def base_of(policy_id: str, directory: str | Path) -> str:
    """Return the base model a stored adapter names.

    Raises:
        PolicyLoadError: it names none.
    """
    base = read_config(policy_id, directory).base_model_name_or_path
    if not base:
        raise PolicyLoadError(f"policy {policy_id!r}: {directory}/{CONFIG_FILE} names no base_model_name_or_path")
    return str(base)


def add_adapter(wrapped: PeftModel | None, model: PreTrainedModel, name: str, config: LoraConfig) -> PeftModel:
    """Add an adapter with fresh weights, in the base's own number format, and return the wrapper around the base."""
    if wrapped is None:
        first: PeftModel = _peft().get_peft_model(model, config, adapter_name=name, autocast_adapter_dtype=False)
        return first
    wrapped.add_adapter(name, config, autocast_adapter_dtype=False)
    return wrapped


def load_weights(policy_id: str, wrapped: PeftModel, name: str, directory: str | Path) -> None:
    """Fill an adapter with stored weights.

    Raises:
        PolicyLoadError: the file cannot be read, or its weights are not those of the adapter.
    """
    from safetensors.torch import load_file

    try:
        stored = load_file(Path(directory) / WEIGHTS_FILE)
        result = _peft().set_peft_model_state_dict(wrapped, stored, adapter_name=name)
    except Exception as error:  # safetensors has an error class of its own, shapes come as RuntimeError
        reason = " ".join(str(error).split())
        raise PolicyLoadError(f"policy {policy_id!r}: cannot load the adapter in {directory} ({reason})") from error
    missing = [key for key in result.missing_keys if f".{name}." in key]
    if wrong := sorted([*missing, *result.unexpected_keys]):
        raise PolicyLoadError(
            f"policy {policy_id!r}: the adapter in {directory} does not fit its base: {len(wrong)} weights are missing "
            f"or unknown, the first is {wrong[0]!r}"
        )


def adapter_weights(wrapped: PeftModel, name: str) -> dict[str, Tensor]:
    """Return an adapter's tensors under the names of its file."""
    weights: Mapping[str, Tensor] = _peft().get_peft_model_state_dict(
        wrapped, adapter_name=name, save_embedding_layers=False
    )
    return dict(weights)


def write_adapter(wrapped: PeftModel, name: str, directory: Path) -> None:
    """Write an adapter as peft does: `CONFIG_FILE` and `WEIGHTS_FILE`."""
    from safetensors.torch import save_file

    config = cast("LoraConfig", copy.copy(wrapped.peft_config[name]))
    config.inference_mode = True  # what is loaded from a file is not trained unless asked for
    config.target_modules = sorted(config.target_modules or ())  # a set, whose order differs from run to run
    config.save_pretrained(str(directory))
    weights = {key: tensor.detach().contiguous() for key, tensor in adapter_weights(wrapped, name).items()}
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "lora") from error
    return peft
