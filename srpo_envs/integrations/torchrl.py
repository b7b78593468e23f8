"""TorchRL: any `SetEnv` as an `EnvBase`, with texts in TensorDicts as non-tensor data.

TorchRL's own ``PettingZooWrapper`` does not take our parallel view: it knows no space of every string, and it makes a
tensor of every entry of ``infos``, where ours hold event ids. `TorchRLSetEnv` keeps the shape that the wrapper gives
(one group per agent, TorchRL's ``MarlGroupMapType.ONE_GROUP_PER_AGENT``)::

    td["solver_0", "prompt"]        str, empty when the agent is not asked
    td["solver_0", "active"]        bool [1]
    td["solver_0", "action"]        str, written by a policy; ignored when the agent is not asked
    td["event_id"], ["state_id"]    str, of the event that is pending; empty at the end
    td["cardinality"]               int64 [1], its K
    td["next", "reward"]            float32 [1], the event's; it is the team's, so it stands at the root
    td["next", ..., "malformed"]    str by agent, why the parser refused its last text

Collectors, ``rollout``, transforms on the tensors and replay buffers that keep their items as they are work. What needs
tensors throughout does not: ``ParallelEnv`` with shared memory, memory-mapped storages, and TorchRL's losses, which
want log-probabilities of tensor actions: an event's ratio has to be formed from ``event_id`` by code of one's own.
"""

from __future__ import annotations

from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.integrations import missing
from srpo_envs.records import ActiveSet, StepResult
from srpo_envs.views import _seats

try:
    import torch  # noqa: TID251  (torchrl is made of it)
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Composite, NonTensor, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise missing("torchrl") from error


class TorchRLSetEnv(EnvBase):  # type: ignore[misc]  # torchrl is not installed where types are checked
    """One step is one event; see the module for the entries of a TensorDict.

    Args:
        env: The environment to show; its own interface stays usable as ``set_env``.
        device: Where the tensors are.
    """

    def __init__(self, env: SetEnv, device: Any = None) -> None:
        super().__init__(device=device)
        self.set_env = env
        self._seed: int | None = None
        self.observation_spec = Composite(
            {
                "event_id": _text(),
                "state_id": _text(),
                "cardinality": Unbounded(shape=(1,), dtype=torch.int64),
                **{
                    agent: Composite({"prompt": _text(), "active": Binary(1, dtype=torch.bool), "malformed": _text()})
                    for agent in env.possible_agents
                },
            },
            device=device,
        )
        self.action_spec = Composite({agent: {"action": _text()} for agent in env.possible_agents}, device=device)
        self.reward_spec = Unbounded(shape=(1,), dtype=torch.float32, device=device)
        self.done_spec = Composite(
            {flag: Binary(1, dtype=torch.bool) for flag in ("done", "terminated", "truncated")}, device=device
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        seed, self._seed = self._seed, None
        return self._observe(self.set_env.reset(seed=seed, options=options), None)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        active = _seats.pending_set(self.set_env)
        texts = {member.agent: tensordict[member.agent, "action"] for member in active.members}
        result = self.set_env.step(_seats.set_action(self.set_env, texts))
        return self._observe(result.next, result).update(
            {
                "reward": torch.tensor([result.reward], device=self.device),
                "done": torch.tensor([result.next is None], device=self.device),
                "terminated": torch.tensor([result.terminated], device=self.device),
                "truncated": torch.tensor([result.truncated], device=self.device),
            }
        )

    def _set_seed(self, seed: int | None) -> None:
        """Keep the seed for the next reset, which restarts the environment's stream with it."""
        self._seed = seed

    def _observe(self, active: ActiveSet | None, result: StepResult | None) -> TensorDict:
        observations = _seats.observe(active, self.set_env.possible_agents)
        infos = _seats.agent_infos(active, result, self.set_env.possible_agents)
        return TensorDict(
            {
                "event_id": active.event_id if active else "",
                "state_id": active.state_id if active else "",
                "cardinality": torch.tensor([active.cardinality if active else 0]),
                **{
                    agent: {
                        "prompt": seen["prompt"],
                        "active": torch.tensor([seen["active"] == 1]),
                        "malformed": infos[agent].get("malformed_reason", ""),
                    }
                    for agent, seen in observations.items()
                },
            },
            device=self.device,
        )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Release the environment."""
        self.set_env.close()
        super().close(raise_if_closed=raise_if_closed)


def _text() -> NonTensor:
    return NonTensor(shape=(), example_data="")
