"""The whole recipe of the embedded policy: tokenizer, two supervised phases, measured rates, checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from srpo_envs.errors import CheckpointError
from srpo_train.policies.policy import Policy
from srpo_train.tiny.experts import CLEAN
from srpo_train.tiny.measure import measure_policy
from srpo_train.tiny.tokenizer import train_tokenizer
from srpo_train.tiny.warm_start import (
    LEVEL_WEIGHTS,
    PHASES,
    ROLE_WEIGHTS,
    Phase,
    make_examples,
    new_model,
    run_phase,
    single_thread,
    tiny_config,
)

RECIPE_FILE = "RECIPE.json"
"""Settings and measured rates, beside the weights."""

_NUM_TOKENIZER_EPISODES = 400

StepReport = Callable[[Phase, int, float], None]
"""Called with the phase, its step from 1, and the loss."""


def make_tiny_policy(
    output_dir: str | os.PathLike[str],
    seed: int = 0,
    *,
    phases: Sequence[Phase] = PHASES,
    num_measured: int = 256,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Make the embedded policy and write it as a transformers checkpoint.

    Equal seeds give equal weights on one machine; between machines the last bits of floating-point sums may differ.

    Args:
        output_dir: Folder to write; it must not hold files.
        seed: Decides the initial weights, the examples and the measurement.
        phases: Supervised phases in order.
        num_measured: Held-out questions each measurement plays.
        show_progress: Draw a progress bar on the terminal.

    Returns:
        The report that is also written to ``RECIPE.json``: ``settings`` and ``measured``.

    Raises:
        CheckpointError: the folder holds files, or it is one.
    """
    target = Path(output_dir)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(
            f"output_dir {str(target)!r}: expected a new or empty folder, got one with files or a file; "
            "remove it or name another"
        )
    with single_thread(), _progress(phases, show_progress) as on_step:
        tokenizer = make_tokenizer(seed)
        model = new_model(tiny_config(tokenizer), seed)
        for number, phase in enumerate(phases):
            rng = np.random.default_rng([seed, 1, number])
            run_phase(model, tokenizer, phase, rng, functools.partial(on_step, phase))
        policy = Policy(policy_id="team", model=model, tokenizer=tokenizer)
        report = {
            "settings": _settings(model, tokenizer, seed, phases),
            "measured": measure_policy(policy, num_measured, seed),
        }
    save_checkpoint(target, model, tokenizer, report)
    return report


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on transcripts of flawless experts."""
    pools = make_examples(CLEAN, _NUM_TOKENIZER_EPISODES, np.random.default_rng([seed, 0]))
    return train_tokenizer(text for pool in pools.values() for item in pool for text in (item.prompt, item.response))


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
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, phases: Sequence[Phase]
) -> dict[str, Any]:
    return {
        "seed": seed,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": len(tokenizer),
        "phases": [dataclasses.asdict(phase) for phase in phases],
        "role_weights": dict(ROLE_WEIGHTS),
        "level_weights": {str(level): share for level, share in LEVEL_WEIGHTS.items()},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


@contextlib.contextmanager
def _progress(phases: Sequence[Phase], is_shown: bool) -> Iterator[StepReport]:
    """Yield a step report that draws a bar for each phase, or does nothing."""
    if not is_shown:
        yield lambda phase, step, loss: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}")) as bar:
        tasks = {phase.name: bar.add_task(phase.name, total=phase.num_steps, loss=float("nan")) for phase in phases}
        yield lambda phase, step, loss: bar.update(tasks[phase.name], completed=step, loss=loss)
