"""Advantages: pure functions from returns to one number per event or per member row (SRPO eq. 6).

Every estimator is a function of the same table of facts, so that a baseline is a name and a group key. Statistics are
taken in float64 over the rows of the table and nothing else: drop what must not count *before* (`CreditTable.select`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, NonFiniteError, UnknownIdError, near_miss
from srpo_train.objective.credit import Advantage, CreditTable
from srpo_train.objective.segments import is_constant, segment_mean, segment_sum
from srpo_train.objective.spec import AdvantageSpec, NonFinite, Singleton

AdvantageEstimator = Callable[[CreditTable, AdvantageSpec], Advantage]

ESTIMATORS: dict[str, AdvantageEstimator] = {}


def register_estimator(name: str) -> Callable[[AdvantageEstimator], AdvantageEstimator]:
    """Register a function of (table, spec) under a name that recipes and presets may use."""

    def register(estimator: AdvantageEstimator) -> AdvantageEstimator:
        ESTIMATORS[name] = estimator
        return estimator

    return register


def estimate_advantage(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """Run the estimator a spec names, and whiten its advantages over the whole table if the spec says so.

    Raises:
        UnknownIdError: no estimator of that name is registered.
        ConfigError: the table lacks a column the estimator or the group key needs.
        NonFiniteError: a return is NaN or infinite and the spec says ``raise``.
    """
    if spec.estimator not in ESTIMATORS:
        raise UnknownIdError(f"no advantage estimator {spec.estimator!r}{near_miss(spec.estimator, ESTIMATORS)}")
    advantage = ESTIMATORS[spec.estimator](table, spec)
    if not spec.whiten:
        return advantage
    one_group = torch.zeros(advantage.value.numel(), dtype=torch.int64)
    whitened = group_relative(advantage.value, one_group, ddof=spec.ddof, std_floor=spec.std_floor)
    return replace(advantage, value=whitened)


# --- pure functions over one vector of samples --------------------------------------------------------------------


def group_relative(
    return_N: Tensor,
    group_N: Tensor,
    *,
    trajectory_N: Tensor | None = None,
    ddof: int = 1,
    std_floor: float = 1e-6,
    singleton: Singleton = "zero",
    non_finite: NonFinite = "raise",
) -> Tensor:
    """Group-relative advantage, ``A = (R - mean_g) / (std_g + eps)`` (SRPO eq. 6).

    The paper does not say which standard deviation. The default is the sample one (ddof 1), which Dr. MAS and the
    common GRPO implementations use, so that presets differ in what they group and not in this constant.

    Args:
        return_N: [N] returns.
        group_N: [N] integers; samples with equal numbers are compared.
        trajectory_N: [N] integers; the samples of a group with equal numbers share the weight of one in mean and
            deviation. None gives every sample a weight of its own.
        ddof: 1 for the sample, 0 for the population standard deviation.
        std_floor: the epsilon of eq. 6.
        singleton: advantage of a group of one (sample, or trajectory): 0, or the return itself over ``1 + eps``.
        non_finite: what a NaN or infinite return does; ``exclude`` gives it 0 and takes it out of its group.

    Returns:
        [N] float32, no gradient. Equal returns give exactly 0; each group, so weighted, sums to 0 up to rounding.
    """
    finite_N = _finite(return_N, non_finite)
    group_F, value_F = torch.unique(group_N[finite_N], return_inverse=True)[1], return_N[finite_N].double()
    num_groups = int(group_F.max()) + 1 if group_F.numel() else 0
    weight_F, size_G = _weigh(group_F, None if trajectory_N is None else trajectory_N[finite_N], num_groups)
    centered_F = value_F - (segment_sum(weight_F * value_F, group_F, num_groups) / size_G)[group_F]
    square_G = segment_sum(weight_F * centered_F.square(), group_F, num_groups)
    std_G = (square_G / (size_G - ddof).clamp(min=1)).sqrt()
    advantage_F = centered_F / (std_G[group_F] + std_floor)
    advantage_F = torch.where(is_constant(value_F, group_F, num_groups)[group_F], 0.0, advantage_F)
    if singleton == "raw":
        advantage_F = torch.where(size_G[group_F] == 1, value_F / (1.0 + std_floor), advantage_F)
    return _scatter(advantage_F, finite_N)


def mean_relative(return_N: Tensor, group_N: Tensor, *, non_finite: NonFinite = "raise") -> Tensor:
    """Return minus the group mean, without division by the deviation (MAGRPO): [N] float32."""
    finite_N = _finite(return_N, non_finite)
    group_F, value_F = torch.unique(group_N[finite_N], return_inverse=True)[1], return_N[finite_N].double()
    num_groups = int(group_F.max()) + 1 if group_F.numel() else 0
    centered_F = value_F - segment_mean(value_F, group_F, num_groups)[group_F]
    return _scatter(torch.where(is_constant(value_F, group_F, num_groups)[group_F], 0.0, centered_F), finite_N)


def leave_one_out(return_N: Tensor, group_N: Tensor, *, non_finite: NonFinite = "raise") -> Tensor:
    """Return minus the mean of the *other* samples of the group (RLOO): [N] float32; a group of one gives 0.

    It equals n/(n-1) times the return minus the whole group's mean.
    """
    group_N = torch.unique(group_N, return_inverse=True)[1]
    finite_N = _finite(return_N, non_finite)
    size_N = torch.bincount(group_N[finite_N], minlength=int(group_N.max()) + 1 if group_N.numel() else 0)[group_N]
    centered_N = mean_relative(return_N, group_N, non_finite=non_finite)
    return centered_N * size_N / (size_N - 1).clamp(min=1)


def discounted_return(reward_T: Tensor, gamma: float) -> Tensor:
    """Return ``R_t = r_t + gamma * R_{t+1}`` over the events of one episode in order of time: [T] float64."""
    returns, following = [], 0.0
    for reward in reversed(reward_T.double().tolist()):
        following = reward + gamma * following
        returns.append(following)
    return torch.tensor(returns[::-1], dtype=torch.float64)


def generalized_advantage(
    reward_T: Tensor, value_T: Tensor, *, gamma: float, gae_lambda: float, bootstrap: float = 0.0
) -> Tensor:
    """Generalized advantage estimation over the events of one episode.

    ``delta_t = r_t + gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lambda * A_{t+1}``.

    Args:
        reward_T: [T] rewards in order of time.
        value_T: [T] critic's values of the pre-action states.
        gamma: discount per event.
        gae_lambda: trace decay per event.
        bootstrap: value of the state after the last event; 0 where the episode terminated.

    Returns:
        [T] float32.
    """
    rewards, values = reward_T.double().tolist(), [*value_T.double().tolist(), bootstrap]
    advantages, following = [], 0.0
    for index in range(len(rewards) - 1, -1, -1):
        delta = rewards[index] + gamma * values[index + 1] - values[index]
        following = delta + gamma * gae_lambda * following
        advantages.append(following)
    return torch.tensor(advantages[::-1], dtype=torch.float32)


# --- estimators over a table --------------------------------------------------------------------------------------


@register_estimator("group_relative")
def _estimate_event_group(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """SRPO: events compared within ``group_key``."""
    group_E = table.key(spec.group_key, "event")
    return Advantage(value=_normalize(table.return_E, group_E, spec), level="event")


@register_estimator("row_relative")
def _estimate_row_group(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """Dr. MAS and AT-GRPO: all rows compared within ``group_key``, which may name the agent."""
    group_M = table.key(spec.group_key, "row")
    trajectory_M = table.key(("episode",), "row") if spec.weighting == "trajectory" else None
    return Advantage(value=_normalize(table.row_return(), group_M, spec, trajectory_M), level="row")


@register_estimator("trajectory_relative")
def _estimate_trajectory_group(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """GRPO: mean score of each trajectory's rows, compared within ``group_key``; every row gets its trajectory's."""
    return _from_trajectories(table, spec, lambda score, group: _normalize(score, group, spec))


@register_estimator("mean_relative")
def _estimate_event_mean(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """MAGRPO: event return minus the mean of its ``group_key``."""
    group_E = table.key(spec.group_key, "event")
    return Advantage(value=mean_relative(table.return_E, group_E, non_finite=spec.non_finite), level="event")


@register_estimator("leave_one_out")
def _estimate_leave_one_out(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """RLOO: mean score of each trajectory's rows minus that of the other trajectories of its ``group_key``."""
    return _from_trajectories(table, spec, lambda s, g: leave_one_out(s, g, non_finite=spec.non_finite))


@register_estimator("gigpo")
def _estimate_group_in_group(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """GiGPO: whole episodes compared within ``group_key``, and events compared where their states are equal.

    ``A_e = A(episode) + step_weight * A(step)``. The second compares the discounted return from the event on with that
    of the events of the same group that began in the same state (the anchor); an anchor of one event gives 0.
    """
    group_E, anchor_E = table.key(spec.group_key, "event"), table.key((*spec.group_key, "state"), "event")
    episodes = table.episodes()
    firsts = torch.stack([events[0] for events in episodes]) if episodes else torch.zeros(0, dtype=torch.int64)
    episode_N = _normalize(table.return_E[firsts], group_E[firsts], spec)
    macro_E = torch.zeros(table.return_E.numel())
    step_return_E = torch.zeros_like(macro_E, dtype=torch.float64)
    for events, advantage in zip(episodes, episode_N, strict=True):
        macro_E[events] = advantage
        step_return_E[events] = discounted_return(table.rewards(events), spec.gamma)
    step_E = _normalize(step_return_E, anchor_E, replace(spec, singleton="zero"))
    return Advantage(value=macro_E + spec.step_weight * step_E, level="event")


@register_estimator("gae")
def _estimate_gae(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """A critic's advantages over the events of an episode, and the lambda-returns ``A + V`` it is trained towards.

    An episode cut by a limit counts as ended: there is no next state that could be valued, and limits are part of the
    task here.
    """
    if table.value_E is None:
        raise ConfigError("estimator 'gae' needs a critic's values, value_E, and the table has none; take another one")
    advantage_E = torch.zeros(table.return_E.numel())
    for events in table.episodes():
        advantage_E[events] = generalized_advantage(
            table.rewards(events), table.value_E[events], gamma=spec.gamma, gae_lambda=spec.gae_lambda
        )
    return Advantage(value=advantage_E, level="event", value_target_E=advantage_E + table.value_E.to(advantage_E))


def _from_trajectories(
    table: CreditTable, spec: AdvantageSpec, compare: Callable[[Tensor, Tensor], Tensor]
) -> Advantage:
    trajectory_M = table.key(("episode",), "row")
    num_trajectories = int(trajectory_M.max()) + 1 if trajectory_M.numel() else 0
    score_N = segment_mean(table.row_return().double(), trajectory_M, num_trajectories)
    group_N = torch.zeros(num_trajectories, dtype=torch.int64)
    group_N[trajectory_M] = table.key(spec.group_key, "row")
    return Advantage(value=compare(score_N, group_N)[trajectory_M], level="row")


def _normalize(return_N: Tensor, group_N: Tensor, spec: AdvantageSpec, trajectory_N: Tensor | None = None) -> Tensor:
    return group_relative(
        return_N,
        group_N,
        trajectory_N=trajectory_N,
        ddof=spec.ddof,
        std_floor=spec.std_floor,
        singleton=spec.singleton,
        non_finite=spec.non_finite,
    )


# --- samples ------------------------------------------------------------------------------------------------------


def _weigh(group_F: Tensor, trajectory_F: Tensor | None, num_groups: int) -> tuple[Tensor, Tensor]:
    """Return [F] weights and [G] number of samples, or of trajectories whose samples share the weight of one."""
    if trajectory_F is None:
        return torch.ones(group_F.numel(), dtype=torch.float64), torch.bincount(group_F, minlength=num_groups)
    share_S2, share_F, count_S = torch.unique(
        torch.stack([group_F, trajectory_F]), dim=1, return_inverse=True, return_counts=True
    )
    return 1.0 / count_S[share_F].double(), torch.bincount(share_S2[0], minlength=num_groups)


def _finite(return_N: Tensor, non_finite: NonFinite) -> Tensor:
    finite_N = torch.isfinite(return_N)
    if non_finite == "raise" and not bool(finite_N.all()):
        index = int((~finite_N).nonzero()[0])
        raise NonFiniteError(
            f"return {index}: expected a finite number, got {float(return_N[index])}; "
            "mend the reward, or set non_finite='exclude' to leave such samples out of their group"
        )
    return finite_N


def _scatter(value_F: Tensor, kept_N: Tensor) -> Tensor:
    scattered_N = torch.zeros(kept_N.numel(), dtype=torch.float32)
    scattered_N[kept_N] = value_F.to(torch.float32)
    return scattered_N
