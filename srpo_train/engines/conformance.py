"""The conformance suite: what every engine promises, tried out on one.

    python -m srpo_train.engines.conformance                 # the table of docs/engines.md, of what is installed
    python -m srpo_train.engines.conformance transformers    # one engine

For an engine of your own::

    policy = conformance_policy()
    check_engine(lambda: MyEngine(policy), policy).require()
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from srpo_envs.errors import ConfigError, ConformanceError, MissingExtraError, SrpoError, near_miss
from srpo_train.engines.background import BackgroundEngine
from srpo_train.engines.base import Engine, GenerationRequest
from srpo_train.engines.conformance_checks import CHECKS, Bench, Broken, Feature, NotApplicable, NotOffered
from srpo_train.engines.conformance_policy import PROMPTS, conformance_adapter, conformance_policy
from srpo_train.engines.publishing import weights_of
from srpo_train.engines.scripted import EOS_ID, ScriptedEngine, decode_bytes
from srpo_train.policies.policy import Policy

if TYPE_CHECKING:
    from srpo_train.engines.served_process import ServerProcess

STOPS = (("a",), (">", "b"), ("b>",), ("é", "\n"), ("<think>",))
"""Stop texts for `conformance_policy`: one token, several, part of a token, several bytes, one that never comes."""

_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.05}
"""Largest difference of a log-probability by number format; bfloat16 has 8 bits, logits of 8 are off by 1/32 each."""

_SIGNS = {"kept": "yes", "broken": "**no**", "not tried": "–"}

_ADAPTER = ", an adapter"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What came of one check."""

    name: str
    """Name of the check."""
    promise: str
    """What it checks, in a line."""
    outcome: Literal["kept", "broken", "not tried", "not offered"]
    """Whether the engine keeps the promise; a check that had nothing to bite on was not tried, and one about something
    that the engine does without is not offered."""
    detail: str = ""
    """What is wrong, why it was not tried, or what the engine does without."""

    @property
    def sign(self) -> str:
        """How it stands in the table."""
        return self.detail if self.outcome == "not offered" else _SIGNS[self.outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """What came of the suite on one engine."""

    engine: str
    """Name of its class, and what it was tried with where that is not a whole model."""
    results: tuple[CheckResult, ...]
    """One for each check, in the order of the suite."""

    def outcome(self, name: str) -> str:
        """Return the outcome of a check."""
        return next(result.outcome for result in self.results if result.name == name)

    def require(self) -> None:
        """Check that no promise is broken.

        Raises:
            ConformanceError: lists those that are.
        """
        broken = [f"{result.promise} ({result.detail})" for result in self.results if result.outcome == "broken"]
        if broken:
            raise ConformanceError(f"{self.engine}: {len(broken)} promises are broken: " + "; ".join(broken))


def check_engine(
    make_engine: Callable[[], Engine],
    policy: Policy | None,
    *,
    prompts: Sequence[str] = PROMPTS,
    stops: Sequence[tuple[str, ...]] = STOPS,
    tolerance: float | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    eos_ids: Sequence[int] | None = None,
    lacks: Collection[Feature] = (),
    checks: Sequence[Callable[[Bench], None]] = CHECKS,
) -> EngineReport:
    """Try every promise on an engine.

    Args:
        make_engine: Makes the engine, which is closed at the end.
        policy: What it samples from; its weights change during the suite and are brought back. None for an engine
            without a model, on which only some checks can be tried.
        prompts: What it is asked, in words the policy knows.
        stops: Stop texts that its responses contain now and then.
        tolerance: Largest difference of a log-probability; None decides by the policy's number format.
        decode: Text of tokens; None takes the policy's.
        eos_ids: Tokens that end a response; None takes the policy's.
        lacks: What it does without, such as ``tokens``; promises about that are not offered, and without tokens the
            others are tried on texts.
        checks: What to try.

    Raises:
        ConfigError: there is neither a policy nor a way to decode.
    """
    if policy is None and (decode is None or eos_ids is None):
        raise ConfigError("without a policy, decode and eos_ids are needed to read what the engine samples")
    bench = Bench(
        engine=make_engine(),
        policy=policy,
        decode=decode or (lambda token_ids: policy.decode(list(token_ids)) if policy else ""),
        eos_ids=policy.eos_ids if eos_ids is None and policy else eos_ids or (),
        prompts=prompts,
        stops=stops,
        tolerance=_tolerance(policy) if tolerance is None else tolerance,
        lacks=lacks,
    )
    try:
        results = tuple(_try(check, bench) for check in checks)
    finally:
        bench.engine.close()
    return EngineReport(engine=type(bench.engine).__name__, results=results)


def format_table(reports: Sequence[EngineReport]) -> str:
    """Return the reports side by side as a Markdown table."""
    head = ["promise", *(f"`{report.engine}`" for report in reports)]
    rows = zip(*(report.results for report in reports), strict=True)
    lines = [head, ["---"] * len(head), *([row[0].promise, *(result.sign for result in row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tolerance(policy: Policy | None) -> float:
    return _TOLERANCES[str(policy.model.dtype).removeprefix("torch.")] if policy else 0.0


def _try(check: Callable[[Bench], None], bench: Bench) -> CheckResult:
    promise = (check.__doc__ or "").strip().removesuffix(".")
    try:
        check(bench)
    except NotOffered as reason:
        return CheckResult(name=check.__name__, promise=promise, outcome="not offered", detail=str(reason))
    except NotApplicable as reason:
        return CheckResult(name=check.__name__, promise=promise, outcome="not tried", detail=str(reason))
    except (Broken, SrpoError) as problem:
        return CheckResult(name=check.__name__, promise=promise, outcome="broken", detail=str(problem))
    return CheckResult(name=check.__name__, promise=promise, outcome="kept")


# --- the engines of this package ----------------------------------------------------------------------------------


def _check_scripted() -> EngineReport:
    def answer(request: GenerationRequest) -> str:
        return "" if request.seed % 7 == 3 else f"{request.seed % 97:x}>é\n{request.seed:b}ab"

    return check_engine(lambda: ScriptedEngine("conformance", answer), None, decode=decode_bytes, eos_ids=(EOS_ID,))


def _check_transformers() -> EngineReport:
    from srpo_train.engines.transformers import TransformersEngine

    policy = conformance_policy()
    return check_engine(lambda: TransformersEngine(policy), policy)


def _check_background() -> EngineReport:
    from srpo_train.engines.transformers import TransformersEngine

    policy = conformance_policy()
    return check_engine(lambda: BackgroundEngine(TransformersEngine(policy)), policy)


def _check_vllm() -> EngineReport:
    from srpo_train.engines.vllm import VllmEngine

    policy = conformance_policy()
    return check_engine(lambda: VllmEngine.open(policy), policy)


def _check_vllm_adapter() -> EngineReport:
    from srpo_train.engines.vllm import open_engines

    policy = conformance_adapter()
    report = check_engine(lambda: open_engines([policy])[policy.policy_id], policy)
    return replace(report, engine=report.engine + _ADAPTER)


def _check_served() -> EngineReport:
    from srpo_train.engines.served import ServedEngine

    policy = conformance_policy()
    with serve_conformance_policy() as server:
        return check_engine(lambda: ServedEngine(policy, [server.url]), policy)


def _check_served_adapter() -> EngineReport:
    from srpo_train.engines.served import ServedEngine

    policy = conformance_adapter()

    def open_engine() -> ServedEngine:
        engine = ServedEngine(policy, [server.url])
        engine.publish(policy.version, weights_of(policy))
        return engine

    with serve_conformance_policy(num_adapters=1) as server:
        report = check_engine(open_engine, policy)
    return replace(report, engine=report.engine + _ADAPTER)


def _check_openai() -> EngineReport:
    from srpo_train.engines.conformance_endpoint import MODEL, answer_in_batches, serve_texts
    from srpo_train.engines.openai import OpenAIEngine

    policy = conformance_policy()
    with answer_in_batches() as batches, serve_texts(batches, policy.context_length or 0) as url:
        engine = OpenAIEngine("conformance", url, MODEL, max_concurrent=64)
        return check_engine(lambda: engine, policy, lacks=["tokens"])


def _check_agent() -> EngineReport:
    from srpo_train.engines.agent import AgentEngine
    from srpo_train.engines.conformance_endpoint import answer_in_batches

    with answer_in_batches() as batches:
        engine = AgentEngine("conformance", batches.play, max_concurrent=64)
        lacks: list[Feature] = ["tokens", "finish reasons", "seeds", "temperature"]
        return check_engine(lambda: engine, conformance_policy(), lacks=lacks)


@contextlib.contextmanager
def serve_conformance_policy(*, num_adapters: int = 0, port: int = 0) -> Iterator[ServerProcess]:
    """Run a vLLM server with the weights of `conformance_policy` for the time of the body."""
    from srpo_train.engines.served_process import ServerOptions, ServerProcess

    policy = conformance_policy()
    options = ServerOptions(
        port=port,
        is_cpu=policy.device.type == "cpu",
        num_adapters=num_adapters,
        # At its start the server looks how a reply to an empty chat would begin, and fails at a tokenizer without
        # letters. Prompts come as tokens, so another template changes nothing.
        extra=("--chat-template", "{{ 'ab' }}"),
    )
    with tempfile.TemporaryDirectory(prefix="srpo-conformance-") as folder:
        policy.save(folder)
        with ServerProcess(folder, options) as server:
            server.wait_until_ready()
            yield server


ENGINES: dict[str, Callable[[], EngineReport]] = {
    "scripted": _check_scripted,
    "transformers": _check_transformers,
    "background": _check_background,
    "vllm": _check_vllm,
    "vllm-adapter": _check_vllm_adapter,
    "served": _check_served,
    "served-adapter": _check_served_adapter,
    "openai": _check_openai,
    "agent": _check_agent,
}
"""The suite on each engine of this package."""


def main(names: Sequence[str]) -> int:
    """Print the table of some engines, or of all that are installed, and what is broken; returns the exit status."""
    for name in names:
        if name not in ENGINES:
            raise ConfigError(f"no engine {name!r}{near_miss(name, ENGINES)}")
    reports = []
    for name in names or ENGINES:
        try:
            reports.append(ENGINES[name]())
        except MissingExtraError as error:
            if names:
                raise
            print(f"{name}: left out, {error}", file=sys.stderr)
    print(format_table(reports))
    notes = [(report.engine, result) for report in reports for result in report.results if result.detail]
    for engine, result in notes:
        print(f"{engine}: {result.promise}: {result.outcome}, {result.detail}", file=sys.stderr)
    return int(any(result.outcome == "broken" for _, result in notes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
