"""Train the embedded team of searchers for a few steps, and see how many of them act together on each kind of question.

The full run is `srpo train recipes/tiny-search.toml`; this one is short, so that it shows the parts.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from srpo_envs.records import read_episodes
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
recipe_path = Path(__file__).parent.parent / "recipes" / "tiny-search.toml"

with tempfile.TemporaryDirectory() as folder:
    short = [f"output_dir={folder}", f"train.num_steps={num_steps}", f"eval.every={num_steps}"]
    run_dir = train(load_recipe(recipe_path, short))

    lines = [row for row in read_metrics(run_dir) if "eval/accuracy" in row]
    for name in ("eval/accuracy", "eval/env/gold_passage_recall", "eval/env/num_queries"):
        print(f"{name}: {lines[0][name]:.2f} before, {lines[-1][name]:.2f} after {num_steps} steps")

    cardinalities = defaultdict(list)
    for episode in read_episodes(run_dir / "events" / f"step-{num_steps:06d}.jsonl"):
        for event in episode.events:
            if event.event_type in ("searcher", "refinement"):
                cardinalities[episode.task["info"]["kind"]].append(event.cardinality)
    for kind, found in sorted(cardinalities.items()):
        print(f"{kind}: {sum(found) / len(found):.2f} searchers in each search event")
