"""Which of several servers gets a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from srpo_envs.errors import ConfigError


class PrefixRouter:
    """Sends requests of one prompt to one server, where the prompt has been computed already.

    A group's rollouts begin with the same prompt, so its cache is worth a wait, but not any wait: a server with many
    more requests than another loses its claim. Everything else goes to the server with the fewest requests.

    Args:
        slack: So many requests more than the least loaded server has are worth a known prompt.
        memory: Prompts to remember.

    Raises:
        ConfigError: a number is out of range.

    Example:
        >>> router = PrefixRouter()
        >>> router.pick("prompt", {"a": 3, "b": 1}), router.pick("prompt", {"a": 0, "b": 2})
        ('b', 'b')
    """

    def __init__(self, *, slack: int = 32, memory: int = 65_536) -> None:
        if slack < 0 or memory < 1:
            raise ConfigError(f"router: slack must be at least 0 and memory at least 1, got {slack} and {memory}")
        self._slack = slack
        self._memory = memory
        self._server_of: OrderedDict[Hashable, str] = OrderedDict()

    def pick(self, prompt: Hashable, loads: Mapping[str, int]) -> str:
        """Return the server for a prompt.

        Args:
            prompt: What requests share when they belong together.
            loads: Requests under way by server, for those that can take one; at least one.
        """
        least = min(loads, key=lambda server: loads[server])
        known = self._server_of.get(prompt, least)
        server = known if loads.get(known, 1 << 62) <= loads[least] + self._slack else least
        self._server_of[prompt] = server
        self._server_of.move_to_end(prompt)
        if len(self._server_of) > self._memory:
            self._server_of.popitem(last=False)
        return server

    def forget(self, server: str) -> None:
        """Drop every claim of a server, whose cache is gone."""
        for prompt in [prompt for prompt, known in self._server_of.items() if known == server]:
            del self._server_of[prompt]
