"""What is measured, under which name, and the log that keeps it.

`TABLE` is the one list of names; ``docs/metrics.md`` is generated from it, and a name outside it is refused, so a curve
never changes its meaning silently. Names under ``time/``, ``perf/`` and ``publish/`` are measured by the clock and
differ from run to run. With ``rollout.mode = "rounds"`` everything else is a function of recipe and seed, bit for bit,
also across a kill and a resume.

``metrics.jsonl`` is the truth, one line per step, on disk before the next step begins; terminal, TensorBoard and
other trackers are views of it (`srpo_train.tracking`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from srpo_envs.errors import RecordError, UnknownIdError, near_miss
from srpo_envs.records import Episode
from srpo_envs.storing import append_whole, replace_whole, storing

METRICS_FILE = "metrics.jsonl"
"""Name of the log within a run directory."""

Values = Mapping[str, float]
"""Metric name to value; counts are ints."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Example:
        ``Metric("rollout/valid_rate/{role}", "share", "Responses of a role that its parser accepted.")``
    """

    name: str
    """Stable key; ``{k}`` is a cardinality, and every other word in braces stands for a name, such as a role's."""
    unit: str
    """What one is."""
    meaning: str
    """A sentence."""


TABLE: tuple[Metric, ...] = (
    # what the team did while it was sampled from
    Metric("rollout/reward_mean", "reward", "Team reward per episode, penalties not taken off."),
    Metric(
        "rollout/reward_std", "reward", "Standard deviation of it over the episodes of the step; 0 teaches nothing."
    ),
    Metric(
        "rollout/team_return_mean",
        "reward",
        "R_e, reward from an event to the end, penalties included; mean over events.",
    ),
    Metric("rollout/penalty_mean", "reward", "Invalid-action penalties per episode."),
    Metric("rollout/accuracy", "share", "Episodes whose answer is right."),
    Metric("rollout/valid_rate/{role}", "share", "Responses of a role that its parser accepted."),
    Metric("rollout/response_length/{role}", "tokens", "Sampled tokens per response of a role."),
    Metric("rollout/cut_rate/{role}", "share", "Responses of a role that ran into its token limit."),
    Metric("rollout/cardinality/{event_type}", "members", "K_e, members per event of a type."),
    Metric(
        "rollout/event_completeness",
        "share",
        "Events whose every announced member answered; an episode whose surroundings fail is dropped whole, not here.",
    ),
    Metric("rollout/num_incomplete_events", "events", "Events dropped because a member is missing or was aborted."),
    Metric("rollout/num_episodes", "episodes", "Episodes that came to an end."),
    Metric("rollout/num_truncated_episodes", "episodes", "Episodes cut by a limit of their workflow."),
    Metric("rollout/num_failed_episodes", "episodes", "Episodes dropped, for whatever reason."),
    Metric("rollout/num_expired_episodes", "episodes", "Those of them that ran into a deadline of `[rollout]`."),
    Metric(
        "rollout/num_surplus_episodes", "episodes", "Episodes given up because their over-sampled group was complete."
    ),
    Metric(
        "rollout/num_stale_groups",
        "groups",
        "Groups sampled ahead that were given up because the weights went another way; only with `rollout.max_lag`.",
    ),
    Metric(
        "rollout/num_recollected_episodes",
        "episodes",
        "Episodes begun again: not one of their step came through, or they were under way when the checkpoint was made "
        "that the run goes on from.",
    ),
    Metric("rollout/num_stragglers", "steps", "Environment steps that missed their round and joined a later one."),
    Metric(
        "rollout/num_step_retries",
        "steps",
        "Environment steps made again because a retriever, a sandbox, a grader or a tool failed.",
    ),
    Metric(
        "rollout/num_lost_graders",
        "workers",
        "Grading workers of the ranks that ended at work since the run was last started; others graded their items.",
    ),
    Metric("rollout/num_events", "events", "Environment transitions."),
    Metric("rollout/num_tokens", "tokens", "C_tok of eq. 8: sampled tokens."),
    Metric("rollout/num_calls", "calls", "C_call of eq. 8: policy calls, the sum of cardinalities."),
    Metric("rollout/num_tool_calls", "calls", "C_tool of eq. 8: tool calls, grading not counted."),
    Metric("rollout/tokens_per_query", "tokens", "Sampled tokens per episode; absent where not all are counted."),
    Metric("rollout/calls_per_query", "calls", "Policy calls per episode."),
    Metric("rollout/tool_calls_per_query", "calls", "Tool calls per episode."),
    Metric("rollout/turns_per_query", "turns", "Turns per episode."),
    Metric("rollout/prompt_tokens_per_query", "tokens", "Prompt tokens of all members per episode."),
    Metric(
        "rollout/repeated_prompt_tokens_per_query",
        "tokens",
        "Those of them that a perfect prefix cache would hold from earlier in the episode.",
    ),
    Metric("rollout/cardinality_mean", "members", "K of section 5.6: members per event."),
    Metric("rollout/response_length_mean", "tokens", "T of section 5.6: sampled tokens per response."),
    Metric("rollout/cost_proxy", "tokens", "K * T of section 5.6, which is the sampled tokens per event."),
    Metric("rollout/out_of_budget_share", "share", "Episodes that a limit of their budget ended or cut short."),
    Metric(
        "rollout/zero_variance_groups",
        "share",
        "Questions whose episodes all have the same reward and so compare equal.",
    ),
    Metric(
        "rollout/role_recall/{role}",
        "share",
        "Responses of a role that a unigram model tells from the other roles' of the step; chance is one over roles.",
    ),
    Metric(
        "rollout/role_capture/{role}",
        "share",
        "Responses of a role that read as another's did at the run's first step.",
    ),
    Metric(
        "rollout/role_drift/{role}",
        "bits",
        "Jensen-Shannon divergence of a role's tokens from those of the run's first step; 1 when disjoint.",
    ),
    Metric("rollout/env/{metric}", "-", "What the workflow itself measures, see its page; mean over episodes."),
    # how the update behaved
    Metric(
        "train/loss",
        "-",
        "Minus the objective of eq. 7 and its KL term; mean over updates. The first leaves the entropy bonus out.",
    ),
    Metric(
        "train/grad_norm",
        "-",
        "Gradient norm before clipping; mean over updates, root of the sum of squares over policies.",
    ),
    Metric("train/grad_norm/{policy}", "-", "The same, of one policy."),
    Metric("train/lr", "-", "Learning rate of the step, as `[optim]` says."),
    Metric("train/lr/{policy}", "-", "The same of each trained policy, where they differ."),
    Metric(
        "train/clip_fraction",
        "share",
        "Units (sets, rows or tokens) whose gradient the clip cut off; mean over updates.",
    ),
    Metric(
        "train/first_clip_fraction",
        "share",
        "The same at the first update of the step, where the ratio is 1: always 0.",
    ),
    Metric("train/ratio_mean", "ratio", "Mean of the set ratio (eq. 4) just before the last update of the step."),
    Metric("train/ratio_min", "ratio", "Smallest set ratio there."),
    Metric("train/ratio_max", "ratio", "Largest set ratio there."),
    Metric("train/log_ratio_std", "nats", "Standard deviation of the set log-ratio there."),
    Metric(
        "train/effective_size",
        "share",
        "(sum rho)^2 / (n sum rho^2) there: 1 at the behavior policy, small when few units decide.",
    ),
    Metric("train/log_ratio_var/k{k}", "nats^2", "Var(L_e) there, over the events of cardinality K (eq. 5)."),
    Metric("train/log_ratio_cov/k{k}", "nats^2", "Its part that comes from covariance between members (eq. 5)."),
    Metric("train/approx_kl", "nats/token", "Estimate of KL(old || current) per sampled token."),
    Metric(
        "train/engine_gap",
        "nats/token",
        "Mean |trainer's - engine's log-prob| of the sampled tokens, before the update; with `rollout.max_lag` also by "
        "what the policy has moved since.",
    ),
    Metric("train/engine_gap_max", "nats", "Largest such difference of a token."),
    Metric(
        "train/engine_event_gap",
        "nats",
        "Mean |set log-difference| of the events: eq. 4 with the engine in the place of the old policy.",
    ),
    Metric(
        "train/engine_clip_share",
        "share",
        "Units (sets, rows or tokens) whose ratio of trainer to engine alone is outside the clip.",
    ),
    Metric(
        "train/correction_cap_share",
        "share",
        "Sampled tokens whose weight `objective.correction` cuts off at its cap; absent without a correction.",
    ),
    Metric("train/token_share/{role}", "share", "Sampled tokens of the batch that a role wrote."),
    Metric("train/entropy/{role}", "nats/token", "Entropy of the policy at the sampled tokens of a role."),
    Metric("train/perplexity/{role}", "tokens", "Its exponential: the tokens the policy hesitates between."),
    Metric("train/advantage_std/{role}", "-", "Standard deviation of the advantages of a role's rows."),
    Metric("train/ratio_mean/{role}", "ratio", "Mean ratio of a role's responses (eq. 3) before the last update."),
    Metric("train/log_ratio_std/{role}", "nats", "Standard deviation of their log-ratio there."),
    Metric("train/role_grad_norm/{role}", "-", "Norm of the gradient from a role's rows alone; measured now and then."),
    Metric("train/role_grad_share/{role}", "share", "The same over the sum of all roles' norms."),
    Metric(
        "train/member_grad_cosine/{role}",
        "-",
        "Cosine between the gradients of two members of a role in one event; mean over a few events.",
    ),
    Metric(
        "train/member_grad_amplification/{role}",
        "ratio",
        "Norm of the members' sum over that of unrelated gradients: 1 to sqrt(K); mean over a few events.",
    ),
    Metric("train/entropy", "nats/token", "Entropy of the policy at the sampled tokens."),
    Metric("train/cardinality_mean", "members", "K_e over the trained events."),
    Metric("train/num_events", "events", "Events trained on."),
    Metric("train/num_rows", "rows", "Member rows trained on."),
    Metric("train/num_tokens", "tokens", "Sampled tokens trained on."),
    Metric(
        "train/num_zero_advantage_events",
        "events",
        "Trained events with advantage 0; they count in the mean and move nothing.",
    ),
    Metric(
        "train/num_overlong_events", "events", "Events dropped because a member row exceeds `optim.max_row_tokens`."
    ),
    Metric(
        "train/num_uniform_events",
        "events",
        "Events left out because their question's advantages are all 0; only with `objective.drop_uniform`.",
    ),
    Metric("train/num_updates", "updates", "Optimiser steps taken."),
    Metric("train/num_nonfinite_steps", "updates", "Optimiser steps skipped because loss or gradient is not finite."),
    Metric(
        "train/policy_version",
        "-",
        "Weights published so far; samples of the next step carry it, or with `rollout.max_lag` an earlier one.",
    ),
    Metric(
        "train/policy_lag",
        "updates",
        "Updates between the weights that sampled and those that were trained; mean over responses; only with "
        "`rollout.max_lag`.",
    ),
    Metric("train/policy_lag_max", "updates", "The largest of them."),
    # the critic of `ppo`
    Metric("train/value_loss", "reward^2", "Clipped squared error of the critic, halved; mean over its updates."),
    Metric("train/value_mean", "reward", "The critic's mean value of the states, before its updates."),
    Metric(
        "train/value_explained_variance",
        "share",
        "Share of the targets' variance that the values explain before the updates; below 0 is worse than a constant.",
    ),
    Metric("train/value_clip_fraction", "share", "Values that have moved further than `critic.value_clip`."),
    Metric("train/value_grad_norm", "-", "Norm of the critic's gradient before it is scaled down."),
    Metric("train/value_lr", "-", "Learning rate of the critic."),
    # how the team does on questions it has not trained on
    Metric("eval/accuracy", "share", "Held-out episodes whose answer is right."),
    Metric("eval/avg_at_k", "share", "Avg@k: share right of a question's k samples; mean over questions."),
    Metric("eval/pass_at_k", "share", "Pass@k: questions with at least one right among k samples."),
    Metric("eval/utility", "per million tokens", "U_tok of eq. 9: right answers per million sampled tokens."),
    Metric("eval/reward_mean", "reward", "Team reward per episode."),
    Metric("eval/valid_rate/{role}", "share", "Responses of a role that its parser accepted."),
    Metric("eval/response_length/{role}", "tokens", "Sampled tokens per response of a role."),
    Metric("eval/num_episodes", "episodes", "Episodes that came to an end."),
    Metric(
        "eval/num_failed_episodes",
        "episodes",
        "Episodes dropped: not scored where surroundings failed, wrong where a prompt outgrew the model's context.",
    ),
    Metric("eval/num_tokens", "tokens", "Sampled tokens."),
    Metric("eval/num_calls", "calls", "Policy calls."),
    Metric("eval/num_tool_calls", "calls", "Tool calls."),
    Metric("eval/tokens_per_query", "tokens", "Sampled tokens per episode; absent where not all are counted."),
    Metric("eval/calls_per_query", "calls", "Policy calls per episode."),
    Metric("eval/tool_calls_per_query", "calls", "Tool calls per episode."),
    Metric("eval/turns_per_query", "turns", "Turns per episode."),
    Metric("eval/prompt_tokens_per_query", "tokens", "Prompt tokens of all members per episode."),
    Metric(
        "eval/repeated_prompt_tokens_per_query",
        "tokens",
        "Those of them that a perfect prefix cache would hold from earlier in the episode.",
    ),
    Metric("eval/cardinality_mean", "members", "K of section 5.6: members per event."),
    Metric("eval/response_length_mean", "tokens", "T of section 5.6: sampled tokens per response."),
    Metric("eval/cost_proxy", "tokens", "K * T of section 5.6, which is the sampled tokens per event."),
    Metric("eval/out_of_budget_share", "share", "Episodes that a limit of their budget ended or cut short."),
    Metric("eval/env/{metric}", "-", "What the workflow itself measures, see its page; mean over episodes."),
    Metric("alarm/{alarm}", "roles", "An alarm that lasts: the roles it concerns, 1 for the whole run."),
    # new weights on their way to engines that hold a copy, measured by the clock too
    Metric("publish/seconds", "s", "Publishing the step's weights, all policies one after the other."),
    Metric("publish/bytes", "bytes", "Sent to each engine or server; of an adapter its files alone."),
    Metric("publish/buckets", "buckets", "Pieces they came in."),
    Metric("publish/slowest_s", "s", "Longest that one server took, from the beginning to its word."),
    Metric("publish/unfit_servers", "servers", "Servers that do not have them yet and get no requests until they do."),
    # clocks
    Metric("time/generate_s", "s", "Generating the step's responses."),
    Metric("time/env_s", "s", "Waiting for environments with nothing to generate."),
    Metric("time/wait_s", "s", "Waiting for rollouts; without `rollout.max_lag` all of their time."),
    Metric("time/update_s", "s", "Log-probabilities, backward passes and optimiser steps."),
    Metric("time/score_s", "s", "Of the update: forward passes that only score, those of a critic or reference too."),
    Metric("time/backward_s", "s", "Of the update: forward and backward passes."),
    Metric("time/optimizer_s", "s", "Of the update: sums over ranks, clipping and optimiser steps."),
    Metric("time/publish_s", "s", "Of the update: giving engines the new weights."),
    Metric("time/checkpoint_s", "s", "Saving after the step before; 0 where nothing was saved."),
    Metric(
        "time/other_s",
        "s",
        "Of the step: what no phase of the trainer takes, such as building batches and waiting for ranks.",
    ),
    Metric("time/eval_s", "s", "Evaluation after the step."),
    Metric(
        "time/eval_latency_p50_s",
        "s",
        "Critical path of a held-out episode, slowest member of each event and tools; median.",
    ),
    Metric("time/eval_latency_p95_s", "s", "95th percentile of the same."),
    Metric("time/eval_engine_s_per_query", "s", "Generation per held-out episode, summed over members."),
    Metric("time/eval_queue_s_per_query", "s", "Waiting of its requests before that, where the engine knows."),
    Metric("time/eval_tool_s_per_query", "s", "Tool calls per held-out episode."),
    Metric("time/eval_grade_s_per_query", "s", "Grading per held-out episode."),
    Metric("time/step_s", "s", "The whole training step; evaluation and saving come on top."),
    # what happened to the processes of `srpo train --ray`, since its driver began
    Metric("cluster/num_rank_restarts", "starts", "Times a rank was started again, because it or another one died."),
    Metric("cluster/num_engine_restarts", "starts", "Copies of policies or vLLM servers started again."),
    Metric("cluster/num_env_worker_restarts", "starts", "Environment workers started again."),
    Metric("cluster/num_lost_graders", "workers", "The same as `rollout/num_lost_graders`, in environment workers."),
    Metric("cluster/num_rebuilt_episodes", "episodes", "Episodes that went on elsewhere after their worker died."),
    Metric(
        "perf/overlap_share",
        "share",
        "Seconds of the step in which rollouts went on while the trainer did not wait for them, over `time/step_s`: "
        "0 in turn, at most 1.",
    ),
    Metric("perf/tokens_per_s", "tokens/s", "Sampled tokens per second of generation."),
    Metric("perf/train_tokens_per_s", "tokens/s", "Trained tokens per second of update."),
    Metric(
        "perf/tokens_per_s/{phase}",
        "tokens/s",
        "The step's sampled tokens per second of a phase and device: the rate if the run did nothing else. Phases "
        "shorter than a thousandth of the step are left out.",
    ),
    Metric(
        "perf/mfu/update",
        "share",
        "Model-flops utilisation: operations the update's passes need, over what the devices could do in their time.",
    ),
    Metric("perf/mfu/generate", "share", "The same of generation; absent where other machines generate."),
    Metric("perf/hfu/update", "share", "As `perf/mfu/update`, with what is computed again to save memory."),
    Metric("perf/padding_share/update", "share", "Places in the tensors of the update's passes that hold padding."),
    Metric(
        "perf/padding_share/generate",
        "share",
        "The same of generation: padded prompts and rows that have ended; `transformers` engine only.",
    ),
    Metric("perf/idle_share/engine", "share", "Part of the step in which nothing was generated."),
    Metric("perf/idle_share/trainer", "share", "Part of the step in which the trainer did not compute."),
    Metric("perf/episodes_per_s", "episodes/s", "Episodes per second of the whole step."),
    Metric("perf/peak_memory_gib", "GiB", "Most accelerator memory held so far."),
)
"""Every metric there is, in the order of the docs."""

_PLACEHOLDER = re.compile(r"\\\{(\w+)\\\}")


def _pattern(name: str) -> str:
    return _PLACEHOLDER.sub(lambda hole: r"\d+" if hole[1] == "k" else r"[^/]+", re.escape(name))


_KNOWN = re.compile("|".join(f"(?:{_pattern(metric.name)})" for metric in TABLE))


def check_name(name: str) -> None:
    """Refuse a name outside the table.

    Raises:
        UnknownIdError: with the nearest known names.
    """
    if not _KNOWN.fullmatch(name):
        raise UnknownIdError(
            f"no metric {name!r}{near_miss(name, [metric.name for metric in TABLE])}; see docs/metrics.md"
        )


def metric_of(name: str) -> Metric:
    """Return the row of the table that a name stands in, whose holes may be filled.

    Raises:
        UnknownIdError: the name is not in the table.
    """
    check_name(name)
    return next(metric for metric in TABLE if re.fullmatch(_pattern(metric.name), name))


def meaning_of(name: str) -> str:
    """Return the sentence of a metric, whose holes may be filled.

    Raises:
        UnknownIdError: the name is not in the table.
    """
    return metric_of(name).meaning


def unit_of(name: str) -> str:
    """Return the unit of a metric, whose holes may be filled.

    Raises:
        UnknownIdError: the name is not in the table.
    """
    return metric_of(name).unit


def is_timing(name: str) -> bool:
    """Whether a metric is measured by the clock and so may differ between equal runs."""
    return name.startswith(("time/", "perf/", "publish/"))


def without_timing(values: Values) -> dict[str, float]:
    """Return the part of a step's values that recipe and seed decide."""
    return {name: value for name, value in values.items() if not is_timing(name)}


class Sink(Protocol):
    """Somewhere values go."""

    def write(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Take the values of one step, and the episodes it trained on; steps rise."""
        ...

    def warn(self, message: str) -> None:
        """Take a warning about the step just written."""
        ...

    def close(self) -> None:
        """Finish; safe to call more than once."""
        ...


class MetricLogger:
    """Checks names and order, keeps ``metrics.jsonl``, and hands every step on to the other sinks.

    Args:
        run_dir: Where ``metrics.jsonl`` lies.
        resume_step: Step of the checkpoint the run goes on from; later lines, and a half-written one, are removed.
            None is a run from the beginning, whose file starts empty.
        sinks: Views that get the same values after they are safely on disk.

    Example:
        >>> with MetricLogger(run_dir) as metrics:  # doctest: +SKIP
        ...     metrics.log(1, {"rollout/reward_mean": 0.25, "time/step_s": 1.2})
    """

    def __init__(self, run_dir: str | Path, resume_step: int | None = None, sinks: Iterable[Sink] = ()) -> None:
        self._path = Path(run_dir) / METRICS_FILE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_step is None else [line for line in read_metrics(self._path) if line["step"] <= resume_step]
        replace_whole(self._path, (_encode(line).encode() for line in kept))
        self._last_step = int(kept[-1]["step"]) if kept else -1
        self._file = self._path.open("ab", buffering=0)
        self._sinks = tuple(sinks)

    def log(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Write all values of one step, once; step 0 is the evaluation before training.

        Args:
            step: Number of the step.
            values: By name.
            episodes: What the step trained on, for sinks that show some of them.

        Raises:
            StorageFullError: there is no room for the line; the file is as it was.
            UnknownIdError: a name is not in the table.
            ValueError: the step does not come after the last one.
        """
        for name in values:
            check_name(name)
        if step <= self._last_step:
            raise ValueError(
                f"metrics of step {step} after those of step {self._last_step}; log each step once, in order"
            )
        with storing(self._path):
            append_whole(self._file, _encode({"step": step, **values}).encode())
        self._last_step = step
        for sink in self._sinks:
            sink.write(step, values, episodes)

    def warn(self, message: str) -> None:
        """Show a warning wherever people look."""
        for sink in self._sinks:
            sink.warn(message)

    def close(self) -> None:
        """Close file and sinks; safe to call more than once."""
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> MetricLogger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MutedMetrics:
    """Stands for the logger on ranks that are not the main one."""

    def log(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Write nothing."""

    def warn(self, message: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """Read a metrics file, or that of a run directory; every line has its ``step``.

    A last line cut short by a kill is left out. A file that is not there has no lines.

    Raises:
        RecordError: another line is damaged; names file and line.
    """
    path = Path(path)
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.exists():
        return []
    return parse_metrics(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse_metrics(text: str, where: str, first: int = 1) -> list[dict[str, float]]:
    """Read lines of metrics, of which errors say that they stand `where`, the first at line `first`.

    Raises:
        RecordError: a line other than an unfinished last one is damaged.
    """
    lines = text.split("\n")[:-1]  # what follows the last newline was never finished
    return [_decode(line, f"{where}:{number}") for number, line in enumerate(lines, start=first)]


def series(lines: Sequence[Mapping[str, float]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of one metric, for the steps that have it."""
    found = [(int(line["step"]), line[name]) for line in lines if name in line]
    return [step for step, _ in found], [value for _, value in found]


def names_below(lines: Iterable[Mapping[str, float]], prefix: str) -> list[str]:
    """Return the metric names that start with a prefix, in the order in which they first appear."""
    return list(dict.fromkeys(name for line in lines for name in line if name.startswith(prefix)))


def _encode(line: Values) -> str:
    """One JSON line; numbers that are not finite become texts, for JSON has none, and floats keep every bit."""
    plain = {name: value if math.isfinite(value) else str(float(value)) for name, value in line.items()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False) + "\n"


def _decode(line: str, where: str) -> dict[str, float]:
    try:
        values = {name: float(value) if isinstance(value, str) else value for name, value in json.loads(line).items()}
    except (ValueError, AttributeError) as error:
        raise RecordError(f"{where}: not a line of metrics ({error}); the file is damaged") from error
    if not isinstance(values.get("step"), int):
        raise RecordError(f"{where}: a line of metrics needs an integer 'step', got {values.get('step')!r}")
    return values
