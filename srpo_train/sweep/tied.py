"""``python -m srpo_train.sweep.tied ...`` is ``srpo ...`` in a process that does not outlive the one that started it.

Its standard input is a pipe that nobody writes to. When the process at the other end is gone, however it ended, the
pipe is at its end, and this one ends with all it started. A kill is how it ends: runs go on from any instant.
"""

from __future__ import annotations

import os
import signal
import threading


def tie_to_parent() -> None:
    """From now on, kill this process group when standard input ends; the process must lead a group of its own."""
    threading.Thread(target=_outlive_nobody, name="tied-to-parent", daemon=True).start()


def _outlive_nobody() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpid(), signal.SIGKILL)  # the group it leads, never another


if __name__ == "__main__":
    tie_to_parent()
    from srpo_train.entry import main

    main()
