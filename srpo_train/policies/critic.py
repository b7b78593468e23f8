"""A centralised critic: the value of the state before an event, read from what its members are asked.

Every member's prompt is derived from the pre-action state alone, and together they show what the team sees of it. So
the value of an event with K members is the mean over its members, ``V(s_e) = (1/K) sum_j v(o_ej)``, with one network v
for all roles, whichever policies play them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from srpo_envs.errors import ConfigError, MissingExtraError, PolicyLoadError
from srpo_train.batching import MemberRow
from srpo_train.policies import lora
from srpo_train.policies.loading import resolve_device, resolve_dtype, resolve_source, silent
from srpo_train.policies.policy import Policy, disable_dropout

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CRITIC = "critic"
"""How errors call it."""


class Critic:
    """A transformer with a head of one number, read at the last token of a prompt.

    It is a token classifier of transformers with a single label, so what `save` writes loads there too.

    Args:
        model: The classifier.
        tokenizer: That of its checkpoint; prompts come as tokens, so it only tells whether the policies' fits.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        disable_dropout(model)
        model.train(bool(getattr(model, "is_gradient_checkpointing", False)))
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def load(
        cls, source: str | Path, *, dtype: str = "float32", device: str = "auto", gradient_checkpointing: bool = False
    ) -> Critic:
        """Load what `save` wrote, or a causal language model whose output head is replaced by one that gives 0.

        Args:
            source: A directory, a hub id, ``builtin:<name>``, or a LoRA adapter, whose base is then taken.
            dtype: ``float32``, ``bfloat16`` or ``float16``.
            device: A torch device, or ``auto``.
            gradient_checkpointing: Recompute activations in the backward pass.

        Raises:
            ConfigError: the dtype, device or builtin name is unknown.
            PolicyLoadError: there is no such model, it is incomplete, or transformers has no token classifier of it.
            MissingExtraError: transformers is not installed.
        """
        location = resolve_source(CRITIC, source)
        if lora.is_adapter(location):
            location = resolve_source(CRITIC, lora.base_of(CRITIC, location))
        model, tokenizer = _read(location, resolve_dtype(CRITIC, dtype))
        nn.Module.to(model, resolve_device(CRITIC, device))
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return cls(model, tokenizer)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What an optimiser may change."""
        return list(self.model.parameters())

    def __call__(self, rows: Sequence[MemberRow]) -> Tensor:
        """Return v(o) of each row's prompt: [M] float32, differentiable."""
        lengths = torch.tensor([len(row.prompt_ids) for row in rows])
        input_ids_MS = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
        for index, row in enumerate(rows):
            input_ids_MS[index, : len(row.prompt_ids)] = torch.tensor(row.prompt_ids)
        # Padding is on the right, where a causal model's real tokens do not look: no attention mask is needed.
        output = self.model(input_ids=input_ids_MS.to(self.model.device), use_cache=False)
        values_MS: Tensor = output.logits[..., 0]
        return values_MS[torch.arange(len(rows)), lengths - 1].float()

    def check_tokenizers(self, policies: Sequence[Policy]) -> None:
        """Refuse policies whose tokens mean something else to the critic.

        Raises:
            ConfigError: a policy has another vocabulary.
        """
        words = self.tokenizer.get_vocab()
        for policy in policies:
            if policy.tokenizer.get_vocab() != words:
                raise ConfigError(
                    f"critic: policy {policy.policy_id!r} has another tokenizer than the critic's model, which could "
                    "not read its prompts; name a model with that tokenizer as critic.model, and give all policies one"
                )

    def save(self, directory: str | Path) -> None:
        """Write the classifier in transformers format, with its tokenizer."""
        with silent():
            self.model.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)


def _read(location: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        from transformers import AutoModelForTokenClassification, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "train") from error
    try:
        with silent(), _no_load_report(), torch.random.fork_rng(devices=[]):
            tokenizer = AutoTokenizer.from_pretrained(location)
            loaded: Any = AutoModelForTokenClassification.from_pretrained(
                location, num_labels=1, dtype=dtype, output_loading_info=True
            )
    # Loading crosses several libraries, each with its own error classes; the cause stays chained.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PolicyLoadError(f"critic: cannot load {location!r} as a token classifier ({reason})") from error
    model, report = loaded
    _start_at_zero(model, set(report["missing_keys"]), location)
    for parameter in model.parameters():
        # Weights as read lie in the mapped file at any address, and matrix products round by the alignment of their
        # factors: a resumed critic would differ in the last bit from one that never stopped.
        parameter.data = parameter.data.clone()
    return model, tokenizer


@contextlib.contextmanager
def _no_load_report() -> Iterator[None]:
    """Keep transformers from advising to train the new head on a downstream task, which is what happens here."""
    from transformers.utils import logging

    library: Any = logging
    verbosity = library.get_verbosity()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)


@torch.no_grad()
def _start_at_zero(model: PreTrainedModel, missing: set[str], location: str) -> None:
    """Set a head that the checkpoint lacks to 0, in place of the library's random numbers."""
    for name, parameter in model.named_parameters():
        if name in missing:
            if len(parameter) != 1:
                raise PolicyLoadError(f"critic: the checkpoint {location!r} lacks the weight {name!r}; it is damaged")
            parameter.zero_()
