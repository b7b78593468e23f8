"""A checkpoint's view of stored events: log-probabilities, ratios and clips, through the code that training uses.

The ratio is that of the checkpoint's policy to the behavior policy as the engine recorded it. Training itself scores
the old policy anew with the trainer before an update, so the two differ by what `train/engine_gap` measures.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import torch

from srpo_envs.records import Episode
from srpo_train.batching import EventBatch, micro_batches
from srpo_train.config import Recipe
from srpo_train.experience import Experience
from srpo_train.objective import Clip, LossTensors, Objective
from srpo_train.objective.logratio import member_log_ratio
from srpo_train.objective.surrogate import Units, is_clipped, ratio_of, units
from srpo_train.policies.team import Team
from srpo_train.set_gradient import event_clips, loss_tensors, score_rows
from srpo_train.viewer.runs import RunPlace, checkpoint_store
from srpo_train.viewer.timeline import EventScores, MemberScores

_MAX_TEAMS = 2
_PASS_TOKENS = 8192


class CheckpointScorer:
    """Scores events with checkpoints, on the CPU, one request at a time; the teams last used stay in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._teams: OrderedDict[tuple[str, int], Team] = OrderedDict()

    def score(self, place: RunPlace, step: int, experience: Experience, episode: Episode) -> dict[str, EventScores]:
        """Return what the checkpoint of a step says of an episode's events, by event id.

        Events that were not trained on are left out.

        Args:
            place: The run.
            step: Of the checkpoint.
            experience: The training step that holds the episode.
            episode: The episode.

        Raises:
            CheckpointError: there is no such checkpoint.
            PolicyLoadError: it cannot be loaded.
        """
        batch = _events_of(experience.batch, episode)
        if not batch.num_events:
            return {}
        with self._lock:
            return score_events(batch, self._team(place, step), place.recipe)

    def _team(self, place: RunPlace, step: int) -> Team:
        key = (str(place.path), step)
        if key not in self._teams:
            while len(self._teams) >= _MAX_TEAMS:
                self._teams.popitem(last=False)
            self._teams[key] = load_team(place, step)
        self._teams.move_to_end(key)
        return self._teams[key]


def load_team(place: RunPlace, step: int) -> Team:
    """Load the policies of a checkpoint on the CPU.

    Raises:
        CheckpointError: there is no such checkpoint.
        PolicyLoadError: it cannot be loaded.
    """
    recipe = place.recipe
    specs = recipe.policy_specs(checkpoint_store(place).at(step).path)
    on_cpu = {name: {**spec, "device": "cpu", "gradient_checkpointing": False} for name, spec in specs.items()}
    return Team.load(on_cpu, recipe.role_table)


@torch.no_grad()
def score_events(batch: EventBatch, team: Team, recipe: Recipe) -> dict[str, EventScores]:
    """Return what a team says of complete events, by event id.

    Args:
        batch: Events with advantages, whose old log-probabilities are the behavior policy's.
        team: The policies.
        recipe: Gives the objective, whose ratio and clip are taken, and the temperatures.
    """
    scorers = {
        policy.policy_id: policy.scorer(temperature=recipe.sampling_of(policy.policy_id).temperature) for policy in team
    }
    scored = score_rows(batch.rows, scorers, micro_batches(batch.rows, _PASS_TOKENS))
    # Penalties and corrections weigh the loss; they move neither ratio nor clip.
    objective = replace(recipe.build_objective(), kl_coef=0.0, entropy_coef=0.0, correction="none")
    clips = {policy_id: Clip.of(recipe.objective_of(policy_id).build()) for policy_id in recipe.policies}
    tensors = loss_tensors(objective, batch, scored)
    tensors = replace(tensors, clip_E=event_clips(objective, batch, clips))
    members = _member_scores(objective, tensors, batch, team)
    return dict(zip(batch.event_ids or (), _event_scores(objective, tensors, members), strict=True))


def _member_scores(
    objective: Objective, tensors: LossTensors, batch: EventBatch, team: Team
) -> list[list[MemberScores]]:
    log_ratio_M = member_log_ratio(tensors.current_MT, tensors.old_MT, tensors.token_mask_MT).tolist()
    members: list[list[MemberScores]] = [[] for _ in range(batch.num_events)]
    for index, (row, log_ratio) in enumerate(zip(batch.rows, log_ratio_M, strict=True)):
        logprobs = tensors.current_MT[index, : len(row.token_ids)].tolist()
        tokenizer = team[row.policy_id].tokenizer
        texts = [str(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in row.token_ids]
        scores = MemberScores(log_ratio=log_ratio, logprobs=tuple(logprobs), token_texts=tuple(texts))
        members[row.event_index].append(scores)
    if objective.unit == "set":
        return members
    return _with_units(units(objective, tensors), objective, tensors, members)


def _with_units(
    found: Units, objective: Objective, tensors: LossTensors, members: list[list[MemberScores]]
) -> list[list[MemberScores]]:
    """Add the ratios of rows, or whether a token of a row is clipped, where these are what an objective clips."""
    clipped_U = is_clipped(found.log_ratio, found.advantage, objective, found.clip)
    unknown_U = found.advantage.isnan()  # the sign of an advantage decides which bound holds
    ratios: list[float | None] = [None] * len(tensors.event_of_row_M)
    if objective.unit == "token":
        of_row_U = tensors.token_mask_MT.bool().nonzero()[:, 0]
        none_M = torch.zeros(len(ratios), dtype=torch.bool)
        clipped_M, unknown_M = (
            none_M.index_put((of_row_U[flag_U],), torch.tensor(True)) for flag_U in (clipped_U, unknown_U)
        )
    else:
        clipped_M, unknown_M, ratios = clipped_U, unknown_U, ratio_of(found.log_ratio).tolist()
    held = [None if unknown else held for held, unknown in zip(clipped_M.tolist(), unknown_M.tolist(), strict=True)]
    by_row = iter(zip(ratios, held, strict=True))
    joined: list[list[MemberScores]] = [[] for _ in members]
    seats = [0] * len(members)
    for event, (ratio, clipped) in zip(tensors.event_of_row_M.tolist(), by_row, strict=True):
        joined[event].append(replace(members[event][seats[event]], ratio=ratio, is_clipped=clipped))
        seats[event] += 1
    return joined


def _event_scores(objective: Objective, tensors: LossTensors, members: list[list[MemberScores]]) -> list[EventScores]:
    if objective.unit != "set":
        return [EventScores(members=tuple(scores)) for scores in members]
    found = units(objective, tensors)
    clipped = is_clipped(found.log_ratio, found.advantage, objective, found.clip)
    columns = zip(
        members,
        found.log_ratio.tolist(),
        ratio_of(found.log_ratio).tolist(),
        clipped.tolist(),
        found.advantage.isnan().tolist(),
        strict=True,
    )
    return [
        EventScores(members=tuple(scores), log_ratio=log_ratio, ratio=ratio, is_clipped=None if is_unknown else is_held)
        for scores, log_ratio, ratio, is_held, is_unknown in columns
    ]


def _events_of(batch: EventBatch, episode: Episode) -> EventBatch:
    wanted = {event.event_id for event in episode.events}
    return batch.select([index for index, event_id in enumerate(batch.event_ids or ()) if event_id in wanted])
