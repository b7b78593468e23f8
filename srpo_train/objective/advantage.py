"""Advantages: pure functions from returns to one number per event or per member row (SRPO eq. 6).

Every estimator is a function of the same table of facts, so that a baseline is a name and a group key. Statistics are
taken in float64 over the rows of the table and nothing else: drop what must not count *before* (`CreditTable.select`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, NonFiniteError, ShapeError, UnknownIdError, near_miss
from srpo_train.objective.spec import AdvantageSpec, NonFinite, Singleton

# Returns nearer than float32 can tell apart are equal: their spread is rounding, and dividing by it would be noise.
_RELATIVE_RESOLUTION = 4 * torch.finfo(torch.float32).eps


@dataclass(frozen=True, kw_only=True)
class CreditTable:
    """The facts estimators may read: columns over E events and M member rows.

    Identifiers are integers chosen by the caller; only their equality matters. Optional columns are needed by the
    estimators that say so.

    Example:
        Two rollouts of question 7, each one event of two members:
        ``CreditTable(return_E=tensor([1., 0.]), group_E=tensor([7, 7]), event_of_row_M=tensor([0, 0, 1, 1]))``
    """

    return_E: Tensor
    """[E] downstream team return R_e."""
    group_E: Tensor
    """[E] the prompt, that is the rollout group of the episode."""
    event_of_row_M: Tensor
    """[M] the event of each member row, in [0, E)."""
    event_type_E: Tensor | None = None
    """[E] kind of event, such as drafting or verification."""
    turn_E: Tensor | None = None
    """[E] turn of the episode the event belongs to."""
    episode_E: Tensor | None = None
    """[E] the episode (trajectory)."""
    step_E: Tensor | None = None
    """[E] position of the event in its episode; rises by time."""
    cardinality_E: Tensor | None = None
    """[E] announced number of members."""
    agent_M: Tensor | None = None
    """[M] the agent that played the member."""
    return_M: Tensor | None = None
    """[M] a row's own score, where it differs from its event's return (a penalty for this row only)."""
    reward_E: Tensor | None = None
    """[E] reward received at the event itself."""
    value_E: Tensor | None = None
    """[E] a critic's value of the pre-action state."""
    bootstrap_E: Tensor | None = None
    """[E] a critic's value of the state after the event; read at the last event of an episode, 0 when absent."""

    def __post_init__(self) -> None:
        """Check the length of every column."""
        sizes = {"E": self.return_E.numel(), "M": self.event_of_row_M.numel()}
        for name, column in self._columns().items():
            if list(column.shape) != [sizes[name[-1]]]:
                raise ShapeError(f"credit column {name}: expected [{sizes[name[-1]]}], got {list(column.shape)}")

    def row_return(self) -> Tensor:
        """Return the [M] scores of the rows: their own where given, else their event's."""
        return self.return_E[self.event_of_row_M] if self.return_M is None else self.return_M

    def key(self, names: tuple[str, ...], level: Literal["event", "row"]) -> Tensor:
        """Number the combinations of the named columns, without suffix: [E] or [M] int64 group numbers.

        Raises:
            ConfigError: a name is no column, is absent, or exists per row while events are grouped.
        """
        columns = [self._key_column(name, level) for name in names]
        if not columns:
            return torch.zeros_like(self.event_of_row_M if level == "row" else self.group_E)
        number_N: Tensor = torch.unique(torch.stack(columns), dim=1, return_inverse=True)[1]
        return number_N

    def select(self, events: Tensor) -> CreditTable:
        """Keep these events (int64 indices, in this order) with their rows, and renumber."""
        position_E = torch.full_like(self.group_E, -1)
        position_E[events] = torch.arange(events.numel())
        rows = (position_E[self.event_of_row_M] >= 0).nonzero().squeeze(1)
        kept = {name: column[events if name[-1] == "E" else rows] for name, column in self._columns().items()}
        kept["event_of_row_M"] = position_E[self.event_of_row_M[rows]]
        return replace(self, **kept)

    def _columns(self) -> dict[str, Tensor]:
        present = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: column for name, column in present.items() if column is not None}

    def _key_column(self, name: str, level: Literal["event", "row"]) -> Tensor:
        columns = self._columns()
        if level == "row" and f"{name}_M" in columns:
            return columns[f"{name}_M"]
        if f"{name}_E" in columns:
            column_E = columns[f"{name}_E"]
            return column_E if level == "event" else column_E[self.event_of_row_M]
        raise ConfigError(f"group key {name!r}: not a column of this credit table for {level}s; fill it or regroup")


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """Advantages with the level they were computed at; the other level is a view.

    Example:
        >>> Advantage(value=torch.tensor([2.0]), level="event").on_rows(torch.tensor([0, 0])).tolist()
        [2.0, 2.0]
    """

    value: Tensor
    """[E] or [M] float32."""
    level: Literal["event", "row"]
    """Whether a value belongs to an event or to a member row."""

    def on_rows(self, event_of_row_M: Tensor) -> Tensor:
        """Return [M]: every member carries its event's scalar."""
        return self.value if self.level == "row" else self.value[event_of_row_M]

    def on_events(self, event_of_row_M: Tensor, num_events: int) -> Tensor:
        """Return [E]: the mean over an event's members where they differ."""
        return self.value if self.level == "event" else _segment_mean(self.value, event_of_row_M, num_events)


AdvantageEstimator = Callable[[CreditTable, AdvantageSpec], Advantage]

ESTIMATORS: dict[str, AdvantageEstimator] = {}


def register_estimator(name: str) -> Callable[[AdvantageEstimator], AdvantageEstimator]:
    """Register a function of (table, spec) under a name that recipes and presets may use."""

    def register(estimator: AdvantageEstimator) -> AdvantageEstimator:
        ESTIMATORS[name] = estimator
        return estimator

    return register


def estimate_advantage(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """Run the estimator a spec names.

    Raises:
        UnknownIdError: no estimator of that name is registered.
        ConfigError: the table lacks a column the estimator or the group key needs.
        NonFiniteError: a return is NaN or infinite and the spec says ``raise``.
    """
    if spec.estimator not in ESTIMATORS:
        raise UnknownIdError(f"no advantage estimator {spec.estimator!r}{near_miss(spec.estimator, ESTIMATORS)}")
    return ESTIMATORS[spec.estimator](table, spec)


# --- pure functions over one vector of samples --------------------------------------------------------------------


def group_relative(
    return_N: Tensor,
    group_N: Tensor,
    *,
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
        ddof: 1 for the sample, 0 for the population standard deviation.
        std_floor: the epsilon of eq. 6.
        singleton: advantage of a group of one: 0, or the return itself over ``1 + eps``.
        non_finite: what a NaN or infinite return does; ``exclude`` gives it 0 and takes it out of its group.

    Returns:
        [N] float32, no gradient. Equal returns give exactly 0; each group sums to 0 up to rounding.
    """
    finite_N = _finite(return_N, non_finite)
    group_F, value_F = torch.unique(group_N[finite_N], return_inverse=True)[1], return_N[finite_N].double()
    num_groups = int(group_F.max()) + 1 if group_F.numel() else 0
    centered_F = value_F - _segment_mean(value_F, group_F, num_groups)[group_F]
    size_G = torch.bincount(group_F, minlength=num_groups)
    square_G = _segment_sum(centered_F.square(), group_F, num_groups)
    std_G = (square_G / (size_G - ddof).clamp(min=1)).sqrt()
    advantage_F = centered_F / (std_G[group_F] + std_floor)
    advantage_F = torch.where(_is_constant(value_F, group_F, num_groups)[group_F], 0.0, advantage_F)
    if singleton == "raw":
        advantage_F = torch.where(size_G[group_F] == 1, value_F / (1.0 + std_floor), advantage_F)
    return _scatter(advantage_F, finite_N)


def mean_relative(return_N: Tensor, group_N: Tensor, *, non_finite: NonFinite = "raise") -> Tensor:
    """Return minus the group mean, without division by the deviation (MAGRPO): [N] float32."""
    finite_N = _finite(return_N, non_finite)
    group_F, value_F = torch.unique(group_N[finite_N], return_inverse=True)[1], return_N[finite_N].double()
    num_groups = int(group_F.max()) + 1 if group_F.numel() else 0
    centered_F = value_F - _segment_mean(value_F, group_F, num_groups)[group_F]
    return _scatter(torch.where(_is_constant(value_F, group_F, num_groups)[group_F], 0.0, centered_F), finite_N)


def leave_one_out(return_N: Tensor, group_N: Tensor, *, non_finite: NonFinite = "raise") -> Tensor:
    """Return minus the mean of the *other* samples of the group (RLOO): [N] float32; a group of one gives 0.

    It equals n/(n-1) times the return minus the whole group's mean.
    """
    group_N = torch.unique(group_N, return_inverse=True)[1]
    finite_N = _finite(return_N, non_finite)
    size_N = torch.bincount(group_N[finite_N], minlength=int(group_N.max()) + 1 if group_N.numel() else 0)[group_N]
    centered_N = mean_relative(return_N, group_N, non_finite=non_finite)
    return centered_N * size_N / (size_N - 1).clamp(min=1)


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
    return Advantage(value=_normalize(table.row_return(), group_M, spec), level="row")


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


@register_estimator("gae")
def _estimate_gae(table: CreditTable, spec: AdvantageSpec) -> Advantage:
    """A critic's advantages: needs ``episode_E``, ``step_E``, ``reward_E`` and ``value_E``; not whitened."""
    if table.value_E is None:
        raise ConfigError("estimator 'gae' needs a critic's values, value_E, and the table has none; take another one")
    episode_E, step_E = table.key(("episode",), "event"), table._key_column("step", "event")
    reward_E, value_E = table._key_column("reward", "event"), table._key_column("value", "event")
    advantage_E = torch.zeros(table.return_E.numel())
    for episode in torch.unique(episode_E):
        events = (episode_E == episode).nonzero().squeeze(1)
        events = events[torch.argsort(step_E[events], stable=True)]
        bootstrap = 0.0 if table.bootstrap_E is None else float(table.bootstrap_E[events[-1]])
        advantage_E[events] = generalized_advantage(
            reward_E[events], value_E[events], gamma=spec.gamma, gae_lambda=spec.gae_lambda, bootstrap=bootstrap
        )
    return Advantage(value=advantage_E, level="event")


def _from_trajectories(
    table: CreditTable, spec: AdvantageSpec, compare: Callable[[Tensor, Tensor], Tensor]
) -> Advantage:
    trajectory_M = table.key(("episode",), "row")
    num_trajectories = int(trajectory_M.max()) + 1 if trajectory_M.numel() else 0
    score_N = _segment_mean(table.row_return().double(), trajectory_M, num_trajectories)
    group_N = torch.zeros(num_trajectories, dtype=torch.int64)
    group_N[trajectory_M] = table.key(spec.group_key, "row")
    return Advantage(value=compare(score_N, group_N)[trajectory_M], level="row")


def _normalize(return_N: Tensor, group_N: Tensor, spec: AdvantageSpec) -> Tensor:
    return group_relative(
        return_N,
        group_N,
        ddof=spec.ddof,
        std_floor=spec.std_floor,
        singleton=spec.singleton,
        non_finite=spec.non_finite,
    )


# --- segments -----------------------------------------------------------------------------------------------------


def _finite(return_N: Tensor, non_finite: NonFinite) -> Tensor:
    finite_N = torch.isfinite(return_N)
    if non_finite == "raise" and not bool(finite_N.all()):
        index = int((~finite_N).nonzero()[0])
        raise NonFiniteError(
            f"return {index}: expected a finite number, got {float(return_N[index])}; "
            "mend the reward, or set non_finite='exclude' to leave such samples out of their group"
        )
    return finite_N


def _is_constant(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Return [G]: whether the group's values cannot be told apart in float32."""
    high_G = value_N.new_zeros(num_groups).scatter_reduce(0, group_N, value_N, "amax", include_self=False)
    low_G = value_N.new_zeros(num_groups).scatter_reduce(0, group_N, value_N, "amin", include_self=False)
    return high_G - low_G <= _RELATIVE_RESOLUTION * torch.maximum(high_G.abs(), low_G.abs())


def _segment_sum(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    return value_N.new_zeros(num_groups).index_add(0, group_N, value_N)


def _segment_mean(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    size_G = torch.bincount(group_N, minlength=num_groups).clamp(min=1)
    return _segment_sum(value_N, group_N, num_groups) / size_G


def _scatter(value_F: Tensor, kept_N: Tensor) -> Tensor:
    scattered_N = torch.zeros(kept_N.numel(), dtype=torch.float32)
    scattered_N[kept_N] = value_F.to(torch.float32)
    return scattered_N
