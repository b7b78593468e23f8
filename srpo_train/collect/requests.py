"""From a member of an active set to a request with its own seed, and from the generation to the member's output."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from srpo_envs.errors import ConfigError, EngineError, near_miss
from srpo_envs.records import ActiveSet, Member, MemberOutput
from srpo_train.engines.base import Generation, GenerationRequest
from srpo_train.roles import policy_id_of


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from anything with a stable text; the same parts give the same seed on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def request_id(active: ActiveSet, member: Member) -> str:
    """Return the name of a member's request: event id and member index."""
    return f"{active.event_id}/{member.index}"


def is_worth_a_retry(answer: Generation) -> bool:
    """Whether the engine gave a request up that it might answer at another try."""
    return answer.finish_reason == "abort" and not answer.is_hopeless


class Requester:
    """Says who answers for a member, and writes requests and outputs.

    Args:
        roles: Policy id of each role; ``*`` stands for every role not named.
        policy_ids: The policies that have an engine.
        seed: Decides, with each request's id, every sampled token.
    """

    def __init__(self, roles: Mapping[str, str], policy_ids: Collection[str], seed: int) -> None:
        self._roles = dict(roles)
        self._policy_ids = tuple(policy_ids)
        self._seed = seed

    def requests(self, active: ActiveSet) -> list[tuple[str, GenerationRequest]]:
        """Return one (policy id, request) per member, in member order.

        Raises:
            ConfigError: a role has no policy, or one without an engine.
        """
        return [(self._policy_of(member.role), self._request(active, member)) for member in active.members]

    def outputs(self, active: ActiveSet, answers: Mapping[str, Generation]) -> list[MemberOutput]:
        """Return the output of each member, in member order.

        Args:
            active: The set that was asked.
            answers: Generation by request id, one for every member.

        Raises:
            EngineError: tokens and log-probabilities of a generation do not match.
        """
        return [self._output(active, member, answers[request_id(active, member)]) for member in active.members]

    def _policy_of(self, role: str) -> str:
        policy_id = policy_id_of(self._roles, role)
        if policy_id not in self._policy_ids:
            raise ConfigError(
                f"roles: role {role!r} names policy {policy_id!r}{near_miss(policy_id, self._policy_ids)}"
            )
        return policy_id

    def _request(self, active: ActiveSet, member: Member) -> GenerationRequest:
        name = request_id(active, member)
        return GenerationRequest(
            request_id=name,
            prompt=member.prompt,
            max_new_tokens=member.max_new_tokens,
            seed=derive_seed(self._seed, name),
            stop=member.stop,
            member=member,
        )

    def _output(self, active: ActiveSet, member: Member, answer: Generation) -> MemberOutput:
        policy_id = self._policy_of(member.role)
        if len(answer.logprobs) != len(answer.token_ids):
            raise EngineError(
                f"request {answer.request_id!r}: the engine of policy {policy_id!r} gave {len(answer.token_ids)} "
                f"tokens but {len(answer.logprobs)} log-probabilities"
            )
        return MemberOutput(
            event_id=active.event_id,
            member_index=member.index,
            text=answer.text,
            policy_id=policy_id,
            policy_version=answer.policy_version,
            prompt_token_ids=answer.prompt_token_ids,
            token_ids=answer.token_ids,
            behavior_logprobs=answer.logprobs,
            kept_token_ids=answer.kept_token_ids,
            token_mask=(1,) * answer.num_tokens,
            finish_reason=answer.finish_reason,
            timings=answer.timings,
        )
