from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import srpo_train.engines
assert "torch" not in sys.modules
import srpo_train.engines.transformers, srpo_train.policies
assert "torch" in sys.modules
assert "transformers" not in sys.modules
"""


def test_the_contract_needs_no_torch_and_transformers_is_imported_only_when_a_model_is():
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
