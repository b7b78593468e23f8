"""What a team says in one episode: with seed 3 its answer is right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import srpo_envs

ENV_ID = "ArithmeticSolverVerifierFixed-v0"
"""Three solvers, a verifier and an aggregator: events of K = 3, 1 and 1."""
SEED = 3
REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}


def make_team() -> srpo_envs.SetEnv:
    return srpo_envs.make(ENV_ID, num_solvers=3)


def reply_of(agent: str) -> str:
    return REPLIES[agent.rpartition("_")[0]]


def replies_of(agents: Iterable[str]) -> dict[str, str]:
    return {agent: reply_of(agent) for agent in agents}


def played(solver: str | None = None) -> srpo_envs.Episode:
    """The same episode through `SetEnv` itself, with another text of the solvers where one is given."""
    env = make_team()
    active = env.reset(seed=SEED)
    while active:
        texts = [solver if solver and member.role == "solver" else REPLIES[member.role] for member in active.members]
        active = env.step(active.outputs(texts)).next
    return env.episode


def story(episode: srpo_envs.Episode) -> list[tuple[str, str, list[str], float]]:
    """Ids, texts and rewards of an episode's events, by which two episodes are the same."""
    return [
        (event.event_id, event.state_id, [record.text for record in event.members], event.reward)
        for event in episode.events
    ]


def reply_to_chat(body: Mapping[str, object]) -> dict[str, object]:
    """A chat completion whose text is that of the role which the request names as its model."""
    message = {"role": "assistant", "content": REPLIES[str(body["model"])]}
    return {
        "id": "chat-0",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
