"""A real search server over the village, in a process that can be killed."""

from __future__ import annotations

import socket
import subprocess
import sys

from retrieval.client import HttpRetriever

_SERVE = """
import sys
from retrieval.bm25 import Bm25Index
from retrieval.server import ServerSettings, serve
from srpo_envs.tasks.village import passages
serve(Bm25Index.from_corpus(passages()), ServerSettings(port=int(sys.argv[1])))
"""


class ServerProcess:
    """One server, which comes back on its port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once searches are answered."""
        if self._process is None:
            self._process = subprocess.Popen([sys.executable, "-c", _SERVE, str(self.port)])
        retriever = HttpRetriever(self.url)
        retriever.wait_until_ready(60)
        retriever.close()

    def kill(self) -> None:
        """SIGKILL: no request under way is answered."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
