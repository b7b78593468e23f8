"""Methods as researchers name them: an objective, and which policies it trains in what workflow.

A preset says what is maximised. Shared or not, one agent or several is said by a recipe's ``[env]``, ``[policies]`` and
``[roles]``; so "non-shared Dr. MAS" is the preset `dr_mas` in a recipe with a policy for each role.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from srpo_train.objective.spec import Objective

Team = Literal["any", "one agent", "shared", "per role"]

_GRPO: dict[str, Any] = {
    "preset": "grpo",
    "source": "Shao et al. 2024, arXiv:2402.03300",
    "formula": "A_i = (s_i - mean_prompt s) / (sd_prompt s + eps), s_i the mean score of episode i's rows; "
    "min(r_t A, clip(r_t) A) for every token",
    "differs": "as the baseline of Dr. MAS has it: mean over all tokens instead of over each response first, dual clip "
    "3, no divergence penalty",
}
_DR_MAS: dict[str, Any] = {
    "preset": "dr_mas",
    "source": "Feng et al. 2026, arXiv:2602.08847",
    "formula": "A_j = (s_j - mean_g s) / (sd_g s + 1e-6), g all rows of one prompt and agent, s_j the team reward less "
    "row j's own penalty; a single row: mean 0, sd 1",
    "differs": "rows are never duplicated to fill a batch, which in its code happens before advantages are taken",
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of the literature, and what makes it here.

    Example:
        >>> next(method.preset for method in METHODS if method.name == "Dr. MAS, non-shared")
        'dr_mas'
    """

    name: str
    """As papers call it."""
    preset: str
    """Key of `presets.PRESETS`; a recipe's ``objective.preset``."""
    team: Team = "any"
    """Which policies: those of ``one agent``'s workflow, one ``shared`` by all roles, one ``per role``, or ``any``."""
    source: str
    """Authors and arXiv id or DOI."""
    formula: str
    """Advantage and surrogate."""
    differs: str
    """How this project differs from the source."""


METHODS: tuple[Method, ...] = (
    Method(
        name="SRPO",
        preset="srpo",
        source="the paper this project implements",
        formula="A_e = (R_e - mean_g R) / (sd_g R + eps), g events of one prompt and type; "
        "min(rho_e A, clip(rho_e) A), log rho_e = K^(-1/2) sum_j l_ej, for every active set",
        differs="the reference; see the decisions in docs/objective.md",
    ),
    Method(
        name="SRPO, no scaling",
        preset="srpo_none",
        source="ablation of the paper, Table 3",
        formula="as SRPO with log rho_e = sum_j l_ej",
        differs="-",
    ),
    Method(
        name="SRPO, mean scaling",
        preset="srpo_mean",
        source="ablation of the paper, Table 3",
        formula="as SRPO with log rho_e = K^(-1) sum_j l_ej",
        differs="-",
    ),
    Method(name="GRPO, single agent", team="one agent", **_GRPO),
    Method(name="GRPO, shared", team="shared", **_GRPO),
    Method(name="GRPO, non-shared", team="per role", **_GRPO),
    Method(name="Dr. MAS, shared", team="shared", **_DR_MAS),
    Method(name="Dr. MAS, non-shared", team="per role", **_DR_MAS),
    Method(
        name="Dr. MAS, trajectory-weighted",
        preset="dr_mas_trajectory",
        source="variant of arXiv:2602.08847",
        formula="as Dr. MAS, where the n rows of one episode in g weigh 1/n each in mean and sd",
        differs="verl-agent (compute_mean_std_cross_steps = False) takes one row of each episode; the two agree where "
        "an episode's rows score alike",
    ),
    Method(
        name="AT-GRPO",
        preset="at_grpo",
        source="Zhao et al. 2025, arXiv:2510.11062",
        formula="as Dr. MAS with g all rows of one prompt, agent and turn; a single row gives 0",
        differs="compares parallel episodes at the same turn instead of candidates sampled from one state, of which "
        "the best goes on; team reward only, no rewards of single agents",
    ),
    Method(
        name="MAGRPO",
        preset="magrpo",
        source="Liu et al. 2025, arXiv:2508.04652",
        formula="A_e = R_e - mean_g R, g events of one prompt and turn; A_e sum_j log q(a_ej), no ratio, no clip",
        differs="the value leaves out the constant log q_old; members of one event are the joint action, whether they "
        "share a policy or not",
    ),
    Method(
        name="GSPO",
        preset="gspo",
        source="Zheng et al. 2025, arXiv:2507.18071",
        formula="A as GRPO; min(s_j A, clip(s_j) A), log s_j = l_j / n_j, for every response",
        differs="a sequence is one member's response, its advantage that of the episode",
    ),
    Method(
        name="DAPO",
        preset="dapo",
        source="Yu et al. 2025, arXiv:2503.14476",
        formula="A and surrogate as GRPO with 1 + 0.28 above, mean over all tokens, without prompts whose advantages "
        "are all 0",
        differs="built: clip-higher, token mean, leaving uniform prompts out. Not built: sampling further prompts in "
        "their place, and the penalty on long answers",
    ),
    Method(
        name="RLOO",
        preset="rloo",
        source="Ahmadian et al. 2024, arXiv:2402.14740",
        formula="A_i = s_i - mean of the prompt's other episodes; A_i sum_t log q_t for every response",
        differs="several responses of one episode share its advantage; no divergence penalty in the reward",
    ),
    Method(
        name="GiGPO",
        preset="gigpo",
        source="Feng et al. 2025, arXiv:2505.10978",
        formula="A_e = A(episode) + w A(step), w = 1: the episode's return normalised over its prompt's, and the "
        "return from e on, discounted by 0.95 per event, normalised over events with the same state",
        differs="equal states are equal replayed state ids, that is equal histories: stricter than its observations, "
        "so a state reached in two ways counts as two; statistics of episodes count each once, as in the paper and not "
        "as in its code, which counts every step; one advantage for all members of an event; dual clip 3; no "
        "divergence penalty",
    ),
    Method(
        name="REINFORCE with baseline",
        preset="reinforce",
        source="Williams 1992, doi:10.1007/BF00992696",
        formula="A_e = R_e - mean R of the batch's events; A_e sum_j log q(a_ej)",
        differs="the baseline is the batch mean, e itself included, which only scales the expected gradient of E "
        "independent events by 1 - 1/E",
    ),
    Method(
        name="PPO",
        preset="ppo",
        source="Schulman et al. 2017, arXiv:1707.06347; GAE: arXiv:1506.02438",
        formula="delta_e = r_e + gamma V(s_e') - V(s_e), A_e = delta_e + gamma lambda A_e', lambda 0.95, gamma 1, "
        "whitened over the batch; min(r_t A, clip(r_t) A) for every token; "
        "critic: clipped squared error towards A_e + V(s_e)",
        differs="a time step is an event, not a token; one critic for the team, V(s_e) the mean over the members' "
        "prompts; actor and critic share no weights",
    ),
)
"""Every method of the comparison, in the order of the docs."""

_COLUMN_WORDS = {"group": "prompt", "event_type": "event type"}


def describe(objective: Objective) -> dict[str, str]:
    """Say in a few words what an objective compares, clips and averages.

    Returns:
        Heading to words, in the order of a table's columns.
    """
    key = ", ".join(_COLUMN_WORDS.get(name, name) for name in objective.advantage.group_key)
    compared = "a critic's values" if objective.advantage.needs_critic else key or "batch"
    return {
        "advantage": objective.advantage.estimator,
        "compared within": compared,
        "ratio of": _ratio(objective),
        "clip": _clip(objective),
        "mean over": objective.reduction + "s",
    }


def _ratio(objective: Objective) -> str:
    if objective.form == "linear":
        return f"none ({objective.unit} log-probability)"
    scaling = f", {objective.scaling}" if objective.unit == "set" else ""
    return objective.unit + scaling + (", per token" if objective.length_normalized else "")


def _clip(objective: Objective) -> str:
    if objective.form == "linear":
        return "-"
    dual = "" if objective.dual_clip is None else f", dual {objective.dual_clip:g}"
    return f"-{objective.clip_low:g}, +{objective.clip_high:g}{dual}"
