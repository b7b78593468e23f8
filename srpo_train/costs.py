"""What episodes cost: tokens, calls and tool calls (SRPO eq. 8), utility (eq. 9), prompt tokens, engine time, latency.

Everything is read from stored episodes, so a rollout, an evaluation and a file of samples are measured alike::

    cost = episode_cost(episode)
    cost.num_tokens, cost.num_calls, cost.latency_s       # 412, 5, 1.83
    summarize_costs(episodes)["utility"]                  # right answers per million sampled tokens

What was not measured is None in a `Cost` and absent from a summary, never 0. ``docs/costs.md`` says what each figure
means.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.budget import exhausted_limit
from srpo_envs.records import Episode, Event, MemberRecord, ToolCall

GENERATE = "generate_s"
"""Key of `MemberRecord.timings`: seconds an engine worked on an output, from when it took the request up to its end."""
QUEUE = "queue_s"
"""Key of `MemberRecord.timings`: seconds a request waited before that, where its engine knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one episode cost.

    Example:
        ``Cost(num_tokens=90, num_calls=5, num_events=3, latency_s=0.8, ...)``
    """

    num_tokens: int
    """C_tok (eq. 8): sampled tokens of all members of all events."""
    num_uncounted: int
    """Outputs that do not say how many tokens they have; `num_tokens` is too small where there are any."""
    num_calls: int
    """C_call (eq. 8): policy calls, the sum of cardinalities."""
    num_tool_calls: int
    """C_tool (eq. 8): tool calls, grading not counted."""
    num_events: int
    """Environment transitions."""
    num_turns: int
    """Turns."""
    num_prompt_tokens: int | None
    """Prompt tokens of all members; None where a prompt is not known as tokens."""
    num_repeated_prompt_tokens: int | None
    """Those that a perfect prefix cache would hold from earlier in the episode, see `repeated_prompt_tokens`."""
    engine_s: float | None
    """Seconds of generation summed over members, as if one ran after the other."""
    queue_s: float | None
    """Seconds that requests waited to be taken up, summed over members; None where an engine does not say."""
    tool_s: float
    """Seconds of tool calls."""
    grade_s: float
    """Seconds of grading, which nobody pays for outside of training and evaluation."""
    latency_s: float | None
    """Seconds along the critical path, see `episode_latency`."""
    is_out_of_budget: bool = False
    """Whether a limit of the environment's budget ended it or kept its workflow from going on."""


def episode_cost(episode: Episode) -> Cost:
    """Return what an episode cost, finished or not."""
    members = list(_members(episode))
    has_prompts = all(member.prompt_token_ids for member in members)
    return Cost(
        num_tokens=episode.num_tokens,
        num_uncounted=sum(not member.token_mask for member in members),
        num_calls=episode.num_calls,
        num_tool_calls=episode.num_tool_calls,
        num_events=len(episode.events),
        num_turns=episode.num_turns,
        num_prompt_tokens=sum(len(m.prompt_token_ids) for m in members) if has_prompts else None,
        num_repeated_prompt_tokens=repeated_prompt_tokens(members) if has_prompts else None,
        engine_s=_total(member.timings.get(GENERATE) for member in members),
        queue_s=_total(member.timings.get(QUEUE) for member in members),
        tool_s=_seconds(_calls(episode), "tool"),
        grade_s=_seconds(_calls(episode), "grade"),
        latency_s=episode_latency(episode),
        is_out_of_budget=bool(exhausted_limit(episode)),
    )


# --- latency ------------------------------------------------------------------------------------------------------


def event_latency(event: Event) -> float | None:
    """Return the seconds of one transition: its slowest member, then its tools; None where a member has no time.

    The members of a set answer at the same time, so the slowest decides. Tool calls are made by the schedule one after
    the other; what a schedule sends off together, such as the queries of one set, is timed as the one request it is.
    """
    times = [member.timings.get(GENERATE) for member in event.members]
    known = [time for time in times if time is not None]
    return max(known, default=0.0) + _seconds(event.tool_calls, "tool") if len(known) == len(times) else None


def episode_latency(episode: Episode) -> float | None:
    """Return the seconds along the critical path: the events one after the other, and tools before the first.

    Waiting for a seat in an engine and grading are not on it. None where an output has no time.
    """
    events = _total(event_latency(event) for event in episode.events)
    return None if events is None else _seconds(episode.setup_tool_calls, "tool") + events


# --- prompts ------------------------------------------------------------------------------------------------------


def repeated_prompt_tokens(members: Iterable[MemberRecord]) -> int:
    """Return how many prompt tokens repeat the beginning of something their policy read or wrote before.

    For each prompt that is the longest prefix it shares with an earlier prompt of the same policy or with one and its
    response. A prefix cache that holds whole prefixes of any length, knows only these members and forgets nothing
    would save exactly these; a real one works in blocks and evicts, but also sees other episodes.

    Args:
        members: In the order in which they were asked.
    """
    seen: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    repeated = 0
    for member in members:
        known, prompt = seen[member.policy_id], member.prompt_token_ids
        place = bisect.bisect(known, prompt)  # in sorted order the longest shared prefix is a neighbour's
        repeated += max((_shared_prefix(prompt, other) for other in known[max(place - 1, 0) : place + 1]), default=0)
        bisect.insort(known, prompt + member.token_ids)
    return repeated


def _shared_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the longest common prefix; comparing slices is far faster than a loop over tokens."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# --- many episodes ------------------------------------------------------------------------------------------------


def summarize_costs(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return what episodes cost together and on average; see `mean_costs`."""
    return mean_costs([episode_cost(episode) for episode in episodes])


def mean_costs(costs: Sequence[Cost]) -> dict[str, float]:
    """Return totals, means per trajectory, the proxy of section 5.6 and percentiles of the latency, by name.

    A figure that some trajectory does not have is absent.
    """
    values = {
        "num_tokens": float(sum(cost.num_tokens for cost in costs)),
        "num_calls": float(sum(cost.num_calls for cost in costs)),
        "num_tool_calls": float(sum(cost.num_tool_calls for cost in costs)),
    }
    if not costs:
        return values
    has_counts = not any(cost.num_uncounted for cost in costs)
    means = {
        "tokens_per_query": _mean([cost.num_tokens for cost in costs]) if has_counts else None,
        "calls_per_query": _mean([cost.num_calls for cost in costs]),
        "tool_calls_per_query": _mean([cost.num_tool_calls for cost in costs]),
        "turns_per_query": _mean([cost.num_turns for cost in costs]),
        "prompt_tokens_per_query": _mean([cost.num_prompt_tokens for cost in costs]),
        "repeated_prompt_tokens_per_query": _mean([cost.num_repeated_prompt_tokens for cost in costs]),
        **_proxy(costs, has_counts),
        "out_of_budget_share": _mean([cost.is_out_of_budget for cost in costs]),
        "engine_s_per_query": _mean([cost.engine_s for cost in costs]),
        "queue_s_per_query": _mean([cost.queue_s for cost in costs]),
        "tool_s_per_query": _mean([cost.tool_s for cost in costs]),
        "grade_s_per_query": _mean([cost.grade_s for cost in costs]),
        **_percentiles([cost.latency_s for cost in costs]),
    }
    return values | {name: value for name, value in means.items() if value is not None}


def token_utility(avg_at_k: Mapping[str, float], costs: Mapping[str, Sequence[Cost]]) -> float | None:
    """Return U_tok = 1e6 * sum_x Avg@k(x) / sum_x C_tok(x) (SRPO eq. 9): successes per million sampled tokens.

    C_tok(x) is the mean over the samples of a query, as Avg@k(x) is.

    Args:
        avg_at_k: Share of correct samples by query.
        costs: Costs of the finished samples by query.

    Returns:
        The utility; None where not all outputs are counted, or nobody sampled a token.
    """
    if any(cost.num_uncounted for samples in costs.values() for cost in samples):
        return None
    spent = sum(sum(cost.num_tokens for cost in samples) / len(samples) for samples in costs.values() if samples)
    return 1e6 * sum(avg_at_k.values()) / spent if spent else None


def without_clocks(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the part of a summary that episodes decide, and not the machine they ran on."""
    return {name: value for name, value in costs.items() if not _is_clock(name)}


def clocks(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the part of a summary that was measured by the clock."""
    return {name: value for name, value in costs.items() if _is_clock(name)}


def _is_clock(name: str) -> bool:
    return name.endswith(("_s", "_s_per_query"))


def _proxy(costs: Sequence[Cost], has_counts: bool) -> dict[str, float | None]:
    """K, T and K * T of section 5.6: mean active-set size and mean response length."""
    num_calls, num_events = sum(cost.num_calls for cost in costs), sum(cost.num_events for cost in costs)
    if not num_events:
        return {}
    cardinality = num_calls / num_events
    length = sum(cost.num_tokens for cost in costs) / num_calls if has_counts else None
    return {
        "cardinality_mean": cardinality,
        "response_length_mean": length,
        "cost_proxy": None if length is None else cardinality * length,
    }


def _percentiles(latencies: Sequence[float | None]) -> dict[str, float]:
    """Median and 95th percentile with linear interpolation between the two nearest, numpy's default."""
    known = [latency for latency in latencies if latency is not None]
    if not known or len(known) < len(latencies):
        return {}
    median, high = np.percentile(known, [50, 95])
    return {"latency_p50_s": float(median), "latency_p95_s": float(high)}


def _members(episode: Episode) -> Iterator[MemberRecord]:
    return (member for event in episode.events for member in event.members)


def _calls(episode: Episode) -> list[ToolCall]:
    return [*episode.setup_tool_calls, *(call for event in episode.events for call in event.tool_calls)]


def _seconds(calls: Iterable[ToolCall], kind: str) -> float:
    return sum((call.duration_s for call in calls if call.kind == kind), start=0.0)


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of them is."""
    total = _total(values)
    return None if total is None else total / len(values)
