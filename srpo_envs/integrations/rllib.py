"""RLlib (new API stack): any `SetEnv` as a `MultiAgentEnv`.

RLlib lets an environment say by its observations who acts next, so an active set is exactly the agents that are
observed: their actions come back together and are one event, whatever K is. Facts of the event are in ``infos``.

RLlib's connectors make tensors of what they carry, so there are no text spaces. Prompts are code points, padded with
-1, and actions are letters of a fixed alphabet up to an end mark; a prompt that does not fit raises, because a cut
prompt would be another state. The whole prompt is in ``infos[agent]["prompt"]`` as text too.

What RLlib cannot express: an event as a unit of optimisation. It keeps one single-agent episode per agent, and its
losses form a ratio per agent and step; the ratio of a set, its comparison groups and event-whole mini-batches need a
`Learner` of one's own. Tokens are not carried either: an action is text.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import EnvMisuseError
from srpo_envs.integrations import missing
from srpo_envs.records import ActiveSet, StepResult
from srpo_envs.views import _seats

try:
    from ray.rllib.env import multi_agent_env
except ImportError as error:
    raise missing("ray[rllib]") from error

_Base: Any = multi_agent_env.MultiAgentEnv  # whose agents may be anything hashable; ours are named

ALPHABET = string.ascii_letters + string.digits + string.punctuation + " \n"
"""What actions are written in; index ``len(ALPHABET)`` ends a text."""

_LAST_CODE_POINT = 0x10FFFF


class RllibSetEnv(_Base):  # type: ignore[misc]
    """One step is one event; the observed agents are the active set.

    Every agent that has acted so far is paid each event's reward once; at the end all of them end together and see the
    empty prompt.

    Args:
        config: ``env_id`` and ``env_kwargs`` for `srpo_envs.make`, or ``env``, a `SetEnv`; ``max_prompt_chars`` and
            ``max_action_chars``, the lengths of the arrays (512 and 64).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.set_env: SetEnv = config.get("env") or srpo_envs.make(config["env_id"], **config.get("env_kwargs", {}))
        self._prompt_chars = int(config.get("max_prompt_chars", 512))
        observation = spaces.Box(-1, _LAST_CODE_POINT, (self._prompt_chars,), np.float32)
        action = spaces.MultiDiscrete([len(ALPHABET) + 1] * int(config.get("max_action_chars", 64)))
        self.possible_agents = self.set_env.possible_agents
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation)
        self.action_spaces = dict.fromkeys(self.possible_agents, action)
        self._acted: dict[str, None] = {}  # in order
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; arguments as in `SetEnv.reset`."""
        active = self.set_env.reset(seed=seed, options=options)
        self._acted = {}
        return self._observe(active), self._infos(active, None)

    def step(self, action_dict: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Consume the active agents' actions as one event.

        Raises:
            EnvMisuseError: a prompt is longer than ``max_prompt_chars``.
            MemberMismatchError: an active agent's action is missing.
            SurroundingsError: a tool or the grader failed.
        """
        texts = {agent: decode(action) for agent, action in action_dict.items()}
        self._acted |= dict.fromkeys(texts)
        result = self.set_env.step(_seats.set_action(self.set_env, texts))
        paid = dict.fromkeys(self._acted, result.reward)
        terminated, truncated = {"__all__": result.terminated}, {"__all__": result.truncated}
        infos = self._infos(result.next, result)
        if result.next:
            return self._observe(result.next), paid, terminated, truncated, infos
        ended = {agent: self._encode("") for agent in self._acted}
        return ended, paid, terminated, truncated, infos

    def _observe(self, active: ActiveSet) -> dict[str, Any]:
        return {member.agent: self._encode(member.prompt) for member in active.members}

    def _encode(self, prompt: str) -> Any:
        if len(prompt) > self._prompt_chars:
            raise EnvMisuseError(
                f"a prompt has {len(prompt)} characters, the observation space holds {self._prompt_chars}; "
                "raise max_prompt_chars"
            )
        return encode(prompt, self._prompt_chars)

    def _infos(self, active: ActiveSet | None, result: StepResult | None) -> dict[str, Any]:
        """The action specs of the agents that are observed, with their prompts, as RLlib wants infos of no others."""
        infos = _seats.agent_infos(active, result, self.possible_agents)
        if active is None:
            return {agent: infos[agent] for agent in self._acted}
        return {member.agent: {**infos[member.agent], "prompt": member.prompt} for member in active.members}

    def close(self) -> None:
        """Release the environment."""
        self.set_env.close()


def encode(text: str, length: int) -> Any:
    """Return a text as [length] float32 code points, padded with -1; float32 holds each of them exactly."""
    points = np.full(length, -1, dtype=np.float32)
    points[: len(text)] = [ord(letter) for letter in text]
    return points


def write(text: str, length: int) -> Any:
    """Return a text as an action, [length] int64 letters of `ALPHABET` padded with end marks.

    Raises:
        ValueError: a letter is not in `ALPHABET`, or the text is too long.
    """
    letters = np.full(length, len(ALPHABET), dtype=np.int64)
    letters[: len(text)] = [ALPHABET.index(letter) for letter in text]
    return letters


def decode(action: Any) -> str:
    """Return the text of an action: its letters up to the first end mark."""
    letters = [int(letter) for letter in action]
    end = letters.index(len(ALPHABET)) if len(ALPHABET) in letters else len(letters)
    return "".join(ALPHABET[letter] for letter in letters[:end])
