"""Train the embedded tiny team for a few steps from Python, and load what it left with transformers.

The full run is `srpo train recipes/tiny-arithmetic.toml`; this one is short, so that it shows the parts.
"""

import sys
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6
recipe_path = Path(__file__).parent.parent / "recipes" / "tiny-arithmetic.toml"

with tempfile.TemporaryDirectory() as folder:
    recipe = load_recipe(
        recipe_path, [f"output_dir={folder}", f"train.num_steps={num_steps}", f"eval.every={num_steps}"]
    )
    run_dir = train(recipe)

    held_out = [row["eval/accuracy"] for row in read_metrics(run_dir) if "eval/accuracy" in row]
    print(f"held-out accuracy: {held_out[0]:.2f} before, {held_out[-1]:.2f} after {num_steps} steps")

    checkpoint = run_dir / "checkpoints" / f"step-{num_steps:06d}" / "team"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    print(f"{type(model).__name__} with {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
