"""Processes of a cluster in miniature: hosts in this process that can die, restart and lose their answers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from srpo_envs.errors import WorkerLostError
from srpo_train.cluster.lines import answered


class LocalLine:
    """A line to a host in this process; everything that goes over it is pickled, as between processes.

    Args:
        name: Its seat.
        make_host: Makes the host, at the start and after each death.
    """

    def __init__(self, name: str, make_host: Callable[[], Any]) -> None:
        self.name = name
        self._make_host = make_host
        self.host: Any = make_host()
        self.asked: list[str] = []
        self.deaths: list[str] = []
        """Methods, in order, at whose next call the host dies before it answers."""
        self.fatal_calls: frozenset[int] = frozenset()
        """Numbers of calls, counted from 0, at which it dies likewise, whatever is called."""
        self.num_answers = 0
        self.num_refusals = 0
        """Calls that find nobody before a host that died is back."""
        self.is_gone = False

    def send(self, method: str, *arguments: Any) -> Callable[[], Any]:
        name, rest = (arguments[0], arguments[1:]) if method == "ask" else (method, arguments)
        self.asked.append(name)
        return lambda: self._answer(name, rest)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.is_gone:
            raise WorkerLostError(f"{self.name} is lost")
        if self.num_refusals:
            self.num_refusals -= 1
            raise WorkerLostError(f"{self.name} restarts")
        call = getattr(self.host, name)
        answer = pickle.loads(pickle.dumps(answered(lambda: call(*pickle.loads(pickle.dumps(arguments))))))
        is_dying = self.num_answers in self.fatal_calls
        self.num_answers += 1
        if self.deaths and self.deaths[0] == name:
            self.deaths.pop(0)
            is_dying = True
        if is_dying:
            self.host = self._make_host()
            raise WorkerLostError(f"{self.name} died")
        if answer.error is not None:
            raise answer.error
        return answer.value
