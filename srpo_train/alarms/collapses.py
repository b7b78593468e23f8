"""Collapses that only a run's history shows: functions from the metrics so far to what is wrong now.

Thresholds and their reasons are in docs/alarms.md. The first three are the failures of the workflow study: an isolated
policy whose parallel members amplify one another until held-out accuracy falls off a cliff, and a shared policy whose
dominant role captures the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from srpo_train.alarms.history import History
from srpo_train.alarms.settings import AlarmsConfig
from srpo_train.alarms.trouble import Trouble

_MINIMAL_GROWTH = 8
"""Tokens. An answer of one token that becomes one of three has not run away."""


def collapses(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    """Yield what is wrong now, judged by everything before."""
    yield from _validation_cliff(history, config)
    yield from _amplification(history, config)
    yield from _role_capture(history, config)
    yield from _entropy_collapse(history, config)
    yield from _length_runaway(history, config)
    yield from _silent_batches(history, config)


def _validation_cliff(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    scores, sizes = history.values("eval/avg_at_k"), history.values("eval/num_episodes")
    if len(scores) < 2:
        return
    best = max(range(len(scores)), key=scores.__getitem__)
    fall = scores[best] - scores[-1]
    noise = math.hypot(_standard_error(scores[best], sizes[best]), _standard_error(scores[-1], sizes[-1]))
    settings = config.validation_cliff
    if fall >= max(settings.drop, settings.num_errors * noise):
        yield Trouble(
            "validation_cliff",
            f"held-out Avg@k fell from {scores[best]:.3f} to {scores[-1]:.3f}, which is more than "
            f"{settings.num_errors:g} standard errors ({noise:.3f}): training has begun to destroy what it had "
            f"learned; go back to the best checkpoint with a lower learning rate, or stop there",
        )


def _amplification(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    settings = config.amplification
    for role in history.roles("train/member_grad_amplification/"):
        norms, perplexities = (history.values(f"train/{name}/{role}") for name in ("role_grad_norm", "perplexity"))
        alignment = statistics.fmean(history.values(f"train/member_grad_amplification/{role}")[-settings.patience :])
        if len(norms) < 3 or not perplexities:
            continue
        usual, calmest = statistics.median(norms[:-1]), min(perplexities)
        if not usual:  # a role that mostly had no advantage has no usual gradient to outgrow
            continue
        has_grown = norms[-1] >= settings.growth * usual and perplexities[-1] >= settings.perplexity * calmest
        if has_grown and alignment >= settings.alignment:
            yield Trouble(
                "amplification",
                f"the gradient of role {role!r} is {norms[-1] / usual:.1f} times its median, its perplexity "
                f"{perplexities[-1] / calmest:.1f} times its lowest, and its members pull together "
                f"({alignment:.2f} times as far as unrelated ones): they amplify one another's mistakes; use sqrt or "
                f"mean scaling, objective.role_weights = 'multiplicity', or a lower learning rate for this role",
                role,
            )


def _role_capture(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    settings = config.role_capture
    for role in history.roles("rollout/role_capture/"):
        name = f"rollout/role_capture/{role}"
        now = history.recent(name, settings.patience)
        if now is not None and now - history.start(name) >= settings.share:
            yield Trouble(
                "role_capture",
                f"{now:.0%} of the responses of role {role!r} read as another role's did at the start of the run "
                f"({history.start(name):.0%} then): a role with more gradient is capturing it; give it a policy of "
                f"its own, or balance the roles with objective.role_weights = 'balanced'",
                role,
            )


def _entropy_collapse(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    settings = config.entropy_collapse
    accuracy = history.recent("rollout/accuracy", settings.patience)
    if accuracy is None or accuracy >= settings.solved:
        return
    for role in history.roles("train/entropy/"):
        name = f"train/entropy/{role}"
        now, start = history.recent(name, settings.patience), history.start(name)
        if now is not None and now < settings.share * start:
            yield Trouble(
                "entropy_collapse",
                f"role {role!r} has {now:.2g} nats of entropy a token left of {start:.2g}, while only {accuracy:.0%} "
                f"of the training episodes are right: it no longer tries anything else; lower the learning rate, "
                f"raise clip_high, or give entropy_coef a small positive value",
                role,
            )


def _length_runaway(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    settings = config.length_runaway
    for role in history.roles("rollout/response_length/"):
        length, cut = f"rollout/response_length/{role}", f"rollout/cut_rate/{role}"
        now, cut_now = history.recent(length, settings.patience), history.recent(cut, settings.patience)
        if now is None or cut_now is None:
            continue
        start, cut_start = history.start(length), history.start(cut)
        is_longer = now >= max(settings.growth * start, start + _MINIMAL_GROWTH)
        if is_longer or cut_now - cut_start >= settings.cut:
            yield Trouble(
                "length_runaway",
                f"responses of role {role!r} have {now:.0f} tokens ({start:.0f} at the start of the run) and "
                f"{cut_now:.0%} run into the limit ({cut_start:.0%} then): an unnormalised sum of log-ratios "
                f"rewards length; use objective.length_normalized, a length penalty, or a lower entropy_coef",
                role,
            )


def _silent_batches(history: History, config: AlarmsConfig) -> Iterator[Trouble]:
    settings = config.silent_batches
    names = ("train/num_zero_advantage_events", "train/num_events", "rollout/accuracy")
    zero, total, accuracy = (history.recent(name, settings.patience) for name in names)
    if zero is None or not total or accuracy is None or accuracy >= settings.solved:
        return
    if zero / total >= settings.share:
        yield Trouble(
            "silent_batches",
            f"{zero / total:.0%} of the trained events have advantage 0 while {accuracy:.0%} of the episodes are "
            f"right: the metrics look calm because almost nothing is learned; use more episodes a group, tasks of "
            f"another difficulty, or a coarser objective.group_key",
        )


def _standard_error(share: float, count: float) -> float:
    """Binomial standard error of a share; of one that is 0 or 1, that of a single exception."""
    share = min(max(share, 1 / (2 * count)), 1 - 1 / (2 * count)) if count else 0.5
    return math.sqrt(share * (1 - share) / max(1.0, count))
