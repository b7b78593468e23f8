"""verl: SRPO as an advantage estimator and a policy loss of its registries, with the events in its batch.

verl's advantage functions are given one id for each row, ``uid``; here it names the row's event (`EventUid`), and it
stays with the row however verl reorders, splits or pads its batch. verl's policy losses see some rows of one
micro-batch and no ids at all, while an event has one ratio over all its members. So what is registered as the loss is
linear: it multiplies log-probabilities by coefficients that were computed before, from whole events, and that verl
carries in the column ``advantages``. Summed over micro-batches and ranks it has the gradient of the whole objective.

The registered estimator gives the coefficients at the policy that sampled, where every ratio is 1: all that one update
for each batch needs. Before every further update the rows are scored again, and `update_coefficients` turns those
log-probabilities into the coefficients of that update (pass one of the two; the update is pass two).

Importing this module registers both under the name ``srpo``; verl imports it in all its processes where the environment
variable ``VERL_USE_EXTERNAL_MODULES`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from srpo_envs.errors import ConfigError, MissingPackageError
from srpo_envs.records import Episode
from srpo_train.integrations.events import PADDING, Events, EventUid, require_whole_vocabulary
from srpo_train.objective import Objective, estimate_advantage, preset

try:
    from verl import DataProto
    from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss
except ImportError as error:
    raise MissingPackageError(
        f"srpo_train.integrations.verl needs verl, and {error.name or 'a part of it'!r} is not installed: "
        "run pip install 'verl==0.9.1'; see docs/integrations-training.md"
    ) from error

_EXPECTED = {"unit": "set", "kl_coef": 0.0, "entropy_coef": 0.0, "correction": "none", "role_weights": "none"}
"""Fields of an objective that are the same in verl, whatever the others are."""


# --- what verl calls ----------------------------------------------------------------------------------------------


def register(objective: Objective, name: str) -> None:
    """Register an objective as an advantage estimator of verl, and the policy loss that goes with it.

    Raises:
        ConfigError: the objective has terms that are verl's to add.
        ValueError: verl knows another estimator of that name.
    """
    for field, expected in _EXPECTED.items():
        if getattr(objective, field) != expected:
            raise ConfigError(
                f"objective {name!r}: {field} is {getattr(objective, field)!r} and must be {expected!r} here; "
                "divergence penalty, entropy bonus and correction are verl's own"
            )
    register_adv_est(name)(_estimator(objective))
    register_policy_loss(name)(coefficient_loss)


def _estimator(objective: Objective) -> Callable[..., tuple[Tensor, Tensor]]:
    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return coefficients and advantages of every token, where verl has advantages and returns.

        Args:
            token_level_rewards: [N, T]; the sum of a row is the return R_e of its event.
            response_mask: [N, T], 1 on sampled tokens.
            index: N texts of `EventUid`.

        Returns:
            [N, T] coefficients at ratio 1, and [N, T] the advantage A_e, from which `update_coefficients` goes on.

        Raises:
            IncompleteEventError: an event lacks a row or has one too many.
        """
        events = Events.of(index)
        return_E = events.from_rows(token_level_rewards.sum(dim=-1).double(), "return")
        advantage = estimate_advantage(events.credit(return_E), objective.advantage)
        advantage_E = advantage.on_events(events.event_of_row_M, len(events.uids))
        unit_NT = torch.zeros(response_mask.shape)
        coefficient_NT, _ = events.coefficients(objective, advantage_E, response_mask, unit_NT, unit_NT)
        advantage_NT = torch.zeros(response_mask.shape, device=response_mask.device)
        advantage_NT[events.row_M] = advantage_E[events.event_of_row_M, None].to(advantage_NT)
        return coefficient_NT, advantage_NT

    return estimate


def coefficient_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Sum of minus coefficient times log-probability, whose gradient is that of the objective.

    The arguments are those of every policy loss of verl. The coefficients hold the division by the number of events, so
    ``loss_agg_mode`` is not read; it stays in force for verl's entropy and divergence terms.
    """
    loss_NT = -advantages * log_prob
    if rollout_is_weights is not None:
        loss_NT = loss_NT * rollout_is_weights
    loss = agg_loss(loss_NT, response_mask, "token-sum", dp_size=config.global_batch_info.get("dp_size", 1))
    moved_NT = (old_log_prob - log_prob).detach() * response_mask
    return loss, {"actor/ppo_kl": (moved_NT.sum() / response_mask.sum().clamp(min=1)).item()}


# --- what a trainer of verl calls ---------------------------------------------------------------------------------


def to_data_proto(episodes: Sequence[Episode], pad_token_id: int) -> DataProto:
    """Return the member rows of whole events as verl lays them out: prompts padded left, responses right.

    Args:
        episodes: Finished episodes; events that are incomplete are left out.
        pad_token_id: The tokenizer's.

    Raises:
        ConfigError: a row was sampled under top-k or top-p; verl scores its tokens among all.
    """
    complete = [event for episode in episodes for event in episode.events if event.is_complete]
    require_whole_vocabulary(complete)
    pairs = [(event, member) for event in complete for member in event.members]
    members = [member for _, member in pairs]
    prompts = _padded([member.prompt_token_ids for member in members], pad_token_id, "left")
    responses = _padded([member.token_ids for member in members], pad_token_id, "right")
    is_prompt = _padded([[1] * len(member.prompt_token_ids) for member in members], 0, "left")
    is_response = _padded([[1] * len(member.token_ids) for member in members], 0, "right")
    attention_mask = torch.cat([is_prompt, is_response], dim=1)
    scores = torch.zeros(responses.shape)
    scores[:, 0] = torch.tensor([event.team_return for event, _ in pairs])
    uids = [str(EventUid(event.group_id, event.event_type, event.event_id, event.cardinality)) for event, _ in pairs]
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            "response_mask": _padded([member.token_mask for member in members], 0, "right"),
            "rollout_log_probs": _padded([member.behavior_logprobs for member in members], 0.0, "right"),
            "token_level_scores": scores,
            "token_level_rewards": scores,
        },
        non_tensors={"uid": np.array(uids, dtype=object)},
    )


def split_events(data: DataProto, num_minibatches: int, *, seed: int, multiple: int = 1) -> list[DataProto]:
    """Deal whole events, shuffled, into mini-batches for one update each.

    Args:
        data: Rows with their `EventUid`.
        num_minibatches: Updates.
        seed: Fixes the shuffle.
        multiple: Fill each up with rows that nothing is trained on, to so many rows as verl's ranks and micro-batches
            need. Rows of an event are never given twice.
    """
    events = Events.of(data.non_tensor_batch["uid"])
    order = torch.randperm(len(events.uids), generator=torch.Generator().manual_seed(seed))
    parts = []
    for chosen in torch.tensor_split(order, num_minibatches):
        part = data.select_idxs(events.row_M[torch.isin(events.event_of_row_M, chosen)])
        missing = -len(part) % multiple
        parts.append(DataProto.concat([part, _padding_rows(part, missing)]) if missing else part)
    return parts


def update_coefficients(data: DataProto, log_probs: Tensor, objective: Objective) -> dict[str, float]:
    """Pass one of an update: write its coefficients into ``data.batch["advantages"]``.

    Args:
        data: The rows of the update, whole events, as they went through the registered estimator; with
            ``old_log_probs``.
        log_probs: [N, T] log-probabilities under the policy as it is now, by verl's ``compute_log_prob``.
        objective: The one that was registered.

    Returns:
        What `srpo_train.objective.diagnose` says (``clip_fraction``, ``ratio_mean`` ...), and the ``objective``.

    Raises:
        IncompleteEventError: an event lacks a row or has one too many.
    """
    events, batch = Events.of(data.non_tensor_batch["uid"]), data.batch
    advantage_E = events.from_rows(batch["returns"][:, 0], "advantage")
    batch["advantages"], report = events.coefficients(
        objective, advantage_E, batch["response_mask"], batch["old_log_probs"], log_probs
    )
    return report


def _padding_rows(data: DataProto, number: int) -> DataProto:
    """Return copies of the first row that nothing is trained on."""
    rows = data.select_idxs(torch.zeros(number, dtype=torch.int64))
    for name in ("response_mask", "token_level_scores", "token_level_rewards", "advantages", "returns"):
        if name in rows.batch:
            rows.batch[name] = torch.zeros_like(rows.batch[name])
    rows.non_tensor_batch["uid"] = np.array([f"{PADDING}{index}" for index in range(number)], dtype=object)
    return rows


def _padded(sequences: Sequence[Sequence[float]], fill: float, side: str) -> Tensor:
    dtype = torch.float32 if isinstance(fill, float) else torch.int64
    return pad_sequence([torch.tensor(list(each), dtype=dtype) for each in sequences], True, fill, side)


register(preset("srpo"), "srpo")
