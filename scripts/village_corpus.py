"""Write the corpus of the village, the miniature world to search in, as package data of `retrieval`.

    python scripts/village_corpus.py

The facts come from `srpo_envs.tasks.village`; equal code gives an equal file, and a test compares the two.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from retrieval.corpus import row_of
from srpo_envs.tasks.village import passages

TARGET = Path(__file__).parents[1] / "retrieval" / "corpora" / "village" / "passages.jsonl.gz"


def main() -> None:
    """Write the file."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_bytes(gzip.compress(b"".join(map(row_of, passages())), mtime=0))
    print(f"{len(passages())} passages, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
