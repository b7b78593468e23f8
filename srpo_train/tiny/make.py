"""The whole recipe of an embedded policy: tokenizer, two supervised phases, measured rates, checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from srpo_envs.errors import CheckpointError
from srpo_train.policies.policy import Policy
from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.curriculum import Curriculum, Phase
from srpo_train.tiny.experts import HabitsT
from srpo_train.tiny.measure import measure_policy
from srpo_train.tiny.model import WIDTH, new_model, tiny_config
from srpo_train.tiny.tokenizer import train_tokenizer
from srpo_train.tiny.village.curriculum import VILLAGE
from srpo_train.tiny.warm_start import make_examples, run_phase, single_thread
from srpo_train.tiny.workflows.curriculum import CODERS, WORKFLOWS

CURRICULA: Mapping[str, Curriculum[Any]] = {
    curriculum.name: curriculum for curriculum in (ARITHMETIC, VILLAGE, WORKFLOWS, CODERS)
}
"""Recipes of the embedded policies, by the name of the shipped checkpoint."""

RECIPE_FILE = "RECIPE.json"
"""Settings and measured rates, beside the weights."""

_NUM_TOKENIZER_EPISODES = 400

StepReport = Callable[[Phase[Any], int, float], None]
"""Called with the phase, its step from 1, and the loss."""


def make_tiny_policy(
    output_dir: str | os.PathLike[str],
    curriculum: Curriculum[HabitsT],
    seed: int = 0,
    *,
    width: int = WIDTH,
    num_measured: int | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Make an embedded policy and write it as a transformers checkpoint.

    Equal seeds give equal weights on one machine; between machines the last bits of floating-point sums may differ.

    Args:
        output_dir: Folder to write; it must not hold files.
        curriculum: The recipe, one of `CURRICULA` or an altered one.
        seed: Decides the initial weights, the examples and the measurement.
        width: Hidden size; the shipped ones have 64.
        num_measured: Held-out questions each measurement plays; by default what the curriculum says.
        show_progress: Draw a progress bar on the terminal.

    Returns:
        The report that is also written to ``RECIPE.json``: ``settings`` and ``measured``.

    Raises:
        CheckpointError: the folder holds files, or it is one.
        ConfigError: a width that no model can have.
    """
    target = Path(output_dir)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(
            f"output_dir {str(target)!r}: expected a new or empty folder, got one with files or a file; "
            "remove it or name another"
        )
    with single_thread(), _progress(curriculum.phases, show_progress) as on_step:
        tokenizer = make_tokenizer(curriculum, seed)
        model = new_model(tiny_config(tokenizer, width), seed)
        for number, phase in enumerate(curriculum.phases):
            rng = np.random.default_rng([seed, 1, number])
            run_phase(model, tokenizer, curriculum, phase, rng, functools.partial(on_step, phase))
        policy = Policy(policy_id="team", model=model, tokenizer=tokenizer)
        report = {
            "settings": _settings(model, tokenizer, seed, curriculum),
            "measured": measure_policy(policy, curriculum, num_measured or curriculum.num_measured, seed),
        }
    save_checkpoint(target, model, tokenizer, report)
    return report


def make_tokenizer(curriculum: Curriculum[HabitsT], seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on transcripts of flawless experts."""
    last = curriculum.phases[-1]
    transcripts = dataclasses.replace(last, habits=curriculum.clean, num_episodes=_NUM_TOKENIZER_EPISODES)
    pools = make_examples(curriculum, transcripts, np.random.default_rng([seed, 0]))
    texts = (text for pool in pools.values() for item in pool for text in (item.prompt, item.response))
    return train_tokenizer(texts, pieces=curriculum.pieces, words=curriculum.words)


def save_checkpoint(
    target: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, report: dict[str, Any]
) -> None:
    """Write config, generation config, weights, tokenizer and recipe; the folder appears whole or not at all."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an attempt that was interrupted
    partial.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(partial)
    GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    ).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # tied
    (partial / "model.safetensors").write_bytes(safetensors.torch.save(weights, metadata={"format": "pt"}))
    (partial / RECIPE_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if target.is_dir():
        target.rmdir()
    partial.replace(target)


def _settings(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, curriculum: Curriculum[HabitsT]
) -> dict[str, Any]:
    return {
        "seed": seed,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "width": model.config.hidden_size,
        "vocab_size": len(tokenizer),
        "phases": [_as_json(phase) for phase in curriculum.phases],
        "role_weights": dict(curriculum.role_weights),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _as_json(phase: Phase[HabitsT]) -> dict[str, Any]:
    """Return the fields of a phase with texts as keys, as they are read back."""
    levels = {str(level): share for level, share in phase.level_weights.items()}
    return {**dataclasses.asdict(phase), "level_weights": levels}


@contextlib.contextmanager
def _progress(phases: Sequence[Phase[HabitsT]], is_shown: bool) -> Iterator[StepReport]:
    """Yield a step report that draws a bar for each phase, or does nothing."""
    if not is_shown:
        yield lambda phase, step, loss: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}")) as bar:
        tasks = {phase.name: bar.add_task(phase.name, total=phase.num_steps, loss=float("nan")) for phase in phases}
        yield lambda phase, step, loss: bar.update(tasks[phase.name], completed=step, loss=loss)
