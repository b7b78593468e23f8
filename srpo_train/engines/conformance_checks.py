"""The checks of the conformance suite, one function each; the first line of its docstring is its line in the table.

A check returns when the engine keeps the promise, raises `Broken` when it does not, `NotOffered` when the promise is
about something that the engine does not have, and `NotApplicable` when there was nothing to try it on. Requests are
those of `Bench`, which samples what several checks look at once. What is said of responses holds for their tokens; of
an engine without tokens, for their texts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_envs.records import Member
from srpo_train.batching import MemberRow
from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling, StreamingEngine
from srpo_train.engines.publishing import PublishingEngine, weights_of
from srpo_train.policies.policy import Policy

_GREEDY = Sampling(temperature=0.0)
_LIMIT = 24
_SHORT = 5
_REPLACEMENT = "\ufffd"

Feature = Literal["tokens", "token counts", "finish reasons", "seeds", "temperature"]
"""What an engine may do without: it has no token ids and log-probs; does not count sampled tokens; does not say whether
a limit cut a response; leaves random numbers, or how tokens are drawn, to what stands behind it."""

Answer = tuple[int, ...] | str
"""Tokens of a response, or its text where there are no tokens."""


class Broken(Exception):
    """The engine does not keep a promise; says which request shows it."""


class NotOffered(Exception):
    """A promise is about something that the engine is known not to have; says what."""


class NotApplicable(Exception):
    """There is nothing to try a check on; says why."""


@dataclass
class Bench:
    """An engine, what is known about its policy, and responses that several checks look at."""

    engine: Engine
    """The engine under test."""
    policy: Policy | None
    """The policy whose weights it samples; None for an engine without a model."""
    decode: Callable[[Sequence[int]], str]
    """Text of tokens."""
    eos_ids: Sequence[int]
    """Tokens that end a response."""
    prompts: Sequence[str]
    """At least one, in words the policy knows."""
    stops: Sequence[tuple[str, ...]]
    """Stop texts that random responses contain now and then, alone or several at once."""
    tolerance: float
    """Largest difference of a log-probability that is taken for floating-point noise."""
    lacks: Collection[Feature] = ()
    """What the engine does without."""
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    """Makes request ids unique."""

    def request(
        self, seed: int, *, limit: int = _LIMIT, stop: tuple[str, ...] = (), prompt: str = ""
    ) -> GenerationRequest:
        """Return a request of its own id; without a prompt, the seed picks one."""
        text = prompt or self.prompts[seed % len(self.prompts)]
        member = Member(index=seed, agent=f"solver_{seed}", role="solver", prompt=text, max_new_tokens=limit, stop=stop)
        return GenerationRequest(
            request_id=f"conformance/{next(self.numbers)}",
            prompt=text,
            max_new_tokens=limit,
            seed=seed,
            stop=stop,
            member=member,
        )

    def needs(self, feature: Feature) -> None:
        """Go on with a check only on an engine that has something.

        Raises:
            NotOffered: it does not.
        """
        if feature in self.lacks:
            raise NotOffered(f"no {feature}")

    def answer(self, generation: Generation) -> Answer:
        """Return what responses are compared by."""
        return generation.text if "tokens" in self.lacks else generation.token_ids

    def spell(self, token_ids: tuple[int, ...]) -> Answer:
        """Return the answer that consists of some tokens."""
        return self.decode(token_ids) if "tokens" in self.lacks else token_ids

    def sample(self, requests: Sequence[GenerationRequest], sampling: Sampling | None = None) -> list[Generation]:
        """Answer requests, and check that each has its answer in its place."""
        generations = self.engine.generate(requests, sampling or Sampling())
        expect(
            [g.request_id for g in generations] == [r.request_id for r in requests],
            f"{len(requests)} requests, {len(generations)} generations, not one for each in request order",
        )
        return generations

    def answers(self, requests: Sequence[GenerationRequest], sampling: Sampling | None = None) -> list[Answer]:
        """Answer requests with nothing but their answers."""
        return [self.answer(generation) for generation in self.sample(requests, sampling)]

    @cached_property
    def free(self) -> list[Generation]:
        """Responses to seeds 0 to 59, without stop texts."""
        return self.sample([self.request(seed) for seed in range(60)])

    @cached_property
    def short(self) -> list[Generation]:
        """Responses to the same requests with a smaller limit."""
        return self.sample([self.request(seed, limit=_SHORT) for seed in range(60)])

    @property
    def model(self) -> Policy:
        """The policy.

        Raises:
            NotApplicable: there is none.
        """
        if self.policy is None:
            raise NotApplicable("there is no model")
        return self.policy

    def scores(self, generation: Generation, temperature: float = 1.0) -> Tensor:
        """Return the trainer's own log-probability of each sampled token."""
        row = MemberRow(
            event_index=0,
            member_index=0,
            policy_id=self.model.policy_id,
            prompt_ids=generation.prompt_token_ids,
            token_ids=generation.token_ids,
            kept_token_ids=generation.kept_token_ids or None,
        )
        with torch.no_grad():
            return self.model.scorer(temperature=temperature)([row]).logprobs_MT[0]

    def most_likely(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Return the policy's greedy response, one forward pass a token."""
        policy, tokens = self.model, list(prompt)
        for _ in range(count):
            with policy.sampling_mode():
                ids = torch.tensor([tokens], device=policy.device)
                tokens.append(int(policy.model(input_ids=ids).logits[0, -1].argmax()))
            if tokens[-1] in policy.eos_ids:
                break
        return tuple(tokens[len(prompt) :])


def expect(is_kept: bool, problem: str) -> None:
    """Raise `Broken` unless a promise is kept."""
    if not is_kept:
        raise Broken(problem)


# --- the record ---------------------------------------------------------------------------------------------------


def answers(bench: Bench) -> None:
    """Each request is answered once and in its place, with a reason why it ended and the time it took."""
    for seed, generation in enumerate(bench.free):
        expect(generation.finish_reason in ("stop", "length"), f"seed {seed}: {generation.abort_reason}")
        expect(generation.timings.get("generate_s", -1.0) >= 0.0, f"seed {seed}: timings do not say generate_s")


def record(bench: Bench) -> None:
    """Tokens, log-probs, text and prompt of a response belong together."""
    bench.needs("tokens")
    for seed, generation in enumerate(bench.free):
        name = f"seed {seed}"
        expect(len(generation.logprobs) == len(generation.token_ids) > 0, f"{name}: not one log-prob for each token")
        expect(generation.text == bench.decode(generation.token_ids), f"{name}: text is not what the tokens say")
    if bench.policy:
        request = bench.request(0)
        (generation,) = bench.sample([request])
        expect(generation.prompt_token_ids == bench.model.encode_prompt(request.prompt), "other prompt tokens")


def nothing(bench: Bench) -> None:
    """No requests give no generations."""
    expect(bench.sample([]) == [], "generations without requests")


# --- seeds --------------------------------------------------------------------------------------------------------


def company(bench: Bench) -> None:
    """The same request gives the same response alone, in company, and in another order."""
    together = [bench.answer(generation) for generation in bench.free[:12]]
    alone = [bench.answers([bench.request(seed)])[0] for seed in range(12)]
    expect(alone == together, "a response depends on its neighbours")
    backwards = bench.answers([bench.request(seed) for seed in reversed(range(12))])
    expect(backwards[::-1] == together, "a response depends on the order of requests")


def crowd(bench: Bench) -> None:
    """More prompt tokens at once than a batch holds: each request is answered as alone."""
    # Prompts that differ from the first token on have nothing in common that could be computed once.
    requests = [bench.request(seed, prompt=f"{seed}{_long(bench)}") for seed in range(100)]
    together = bench.answers(requests)
    alone = [bench.answers([request])[0] for request in requests[::25]]
    expect(alone == together[::25], "a response depends on how much there is to do")


def samples(bench: Bench) -> None:
    """Samples: n of one prompt with n seeds differ, and the same seeds repeat them."""
    bench.needs("seeds")
    requests = [bench.request(seed, prompt=bench.prompts[0]) for seed in (*range(16), 2**62, 2**63 - 1)]
    first, again = bench.answers(requests), bench.answers(requests)
    expect(len(set(first)) > len(first) // 2, f"{len(set(first))} different responses to {len(first)} seeds")
    expect(first == again, "a second call gives other responses")


def _long(bench: Bench) -> str:
    """A prompt of several blocks of a cache."""
    return max(bench.prompts, key=len) * 4


# --- ends ---------------------------------------------------------------------------------------------------------


def limits(bench: Bench) -> None:
    """Max tokens: a smaller limit gives the beginning of the response."""
    least = bench.sample([bench.request(seed, limit=1) for seed in range(60)])
    for limit, shorter in ((1, least), (_SHORT, bench.short)):
        for free, cut in zip(bench.free, shorter, strict=True):
            expect(_is_beginning(bench, cut, free, limit), f"limit {limit}: {cut.text!r} of {free.text!r}")
        expect(_size(bench, shorter) < _size(bench, bench.free), f"limit {limit}: no response is shorter")


def counts(bench: Bench) -> None:
    """Token counts: each response says how many tokens were sampled, and a limit bounds them."""
    bench.needs("token counts")
    for free, cut in zip(bench.free, bench.short, strict=True):
        expect(0 < free.num_tokens <= _LIMIT, f"{free.num_tokens} tokens of at most {_LIMIT}")
        expected = min(free.num_tokens, _SHORT)
        expect(cut.num_tokens == expected, f"{cut.num_tokens} tokens at a limit of {_SHORT}, expected {expected}")


def reasons(bench: Bench) -> None:
    """Finish reason: length where the limit cut a response, and that of the whole one otherwise."""
    bench.needs("finish reasons")
    for free, cut in zip(bench.free, bench.short, strict=True):
        is_same = bench.answer(cut) == bench.answer(free)
        if is_same and "token counts" in bench.lacks:
            continue  # the limit may have cut an eos, which has no text
        expected = free.finish_reason if is_same and cut.num_tokens == free.num_tokens else "length"
        expect(cut.finish_reason == expected, f"{cut.finish_reason}, expected {expected}")


def _is_beginning(bench: Bench, cut: Generation, free: Generation, limit: int) -> bool:
    """Whether a response is what a limit leaves of another one."""
    if "tokens" in bench.lacks:
        return free.text.startswith(cut.text.rstrip(_REPLACEMENT))
    return cut.token_ids == free.token_ids[:limit]


def _size(bench: Bench, generations: Sequence[Generation]) -> int:
    return sum(len(bench.answer(generation)) for generation in generations)


def ends(bench: Bench) -> None:
    """End of sequence: every listed token ends a response, and is its last token."""
    bench.needs("tokens")
    eos = bench.eos_ids
    seen = set()
    for generation in bench.free:
        places = [place for place, token in enumerate(generation.token_ids) if token in eos]
        is_end = places == [len(generation.token_ids) - 1]
        if generation.finish_reason == "stop":
            expect(is_end, "a response that stopped does not end with its only eos")
            seen.add(generation.token_ids[-1])
        else:
            expect(not places, "a response goes on after an eos")
    if seen != set(eos):
        raise NotApplicable("not every such token was sampled")


def stop_texts(bench: Bench) -> None:
    """Stop strings: the response is the first beginning that contains one, which stays in it."""
    num_stopped = 0
    for stop in bench.stops:
        held = bench.sample([bench.request(seed, stop=stop) for seed in range(60)])
        for free, generation in zip(bench.free, held, strict=True):
            expected = _stopped(bench, free, stop)
            is_stopped = any(text in free.text for text in stop)
            expect(bench.answer(generation) == expected, f"{stop}: {generation.text!r} of {free.text!r}")
            if not isinstance(expected, str):
                expect(generation.text == bench.decode(expected), f"{stop}: the text is {generation.text!r}")
            expect(generation.finish_reason == ("stop" if is_stopped else free.finish_reason), f"{stop}: wrong reason")
            num_stopped += is_stopped
    if num_stopped < 3:
        raise NotApplicable("no response contains a stop text")


def _stopped(bench: Bench, free: Generation, stop: Sequence[str]) -> Answer:
    """What stop texts leave of a response: its first tokens whose text contains one, or its text up to the first."""
    if "tokens" in bench.lacks:
        ends = [free.text.index(text) + len(text) for text in stop if text in free.text]
        return free.text[: min(ends, default=None)]
    beginnings = (free.token_ids[:count] for count in range(1, len(free.token_ids) + 1))
    reached = (tokens for tokens in beginnings if any(text in bench.decode(tokens) for text in stop))
    return next(reached, free.token_ids)


def empty(bench: Bench) -> None:
    """Empty completion: an eos at once gives one token and no text, and is an answer."""
    for prompt in bench.prompts:
        for generation in bench.sample([bench.request(seed, prompt=prompt, limit=2) for seed in range(200)]):
            expect(generation.finish_reason != "abort", generation.abort_reason)
            if _is_empty(bench, generation):
                expect(generation.finish_reason == "stop", f"it ended by {generation.finish_reason}")
                return
    raise NotApplicable("no response began with an eos")


def _is_empty(bench: Bench, generation: Generation) -> bool:
    if "tokens" in bench.lacks:
        return generation.text == ""
    if len(generation.token_ids) != 1 or generation.token_ids[0] not in bench.eos_ids:
        return False
    expect(generation.text == bench.decode(generation.token_ids), f"text {generation.text!r}")
    expect(len(generation.logprobs) == 1, "no log-prob for the eos")
    return True


def cut_character(bench: Bench) -> None:
    """Unicode: characters come through, and a response cut within one keeps all before it and shows U+FFFD."""
    is_tried = False
    for seed, free in enumerate(bench.free):
        if free.text.isascii():
            continue
        limits = range(1, _LIMIT)
        shorter = bench.sample([bench.request(seed, limit=limit) for limit in limits])
        for limit, cut in zip(limits, shorter, strict=True):
            expect(_is_beginning(bench, cut, free, limit), f"limit {limit}: {cut.text!r} of {free.text!r}")
            if "tokens" not in bench.lacks:
                expect(cut.text == bench.decode(cut.token_ids), f"text {cut.text!r}")
                expect(len(cut.logprobs) == len(cut.token_ids), "a log-prob is missing")
            is_tried |= cut.text.endswith(_REPLACEMENT)
        if is_tried:
            return
    raise NotApplicable("no response holds a character of several tokens")


def overlong_prompts(bench: Bench) -> None:
    """Over-long prompts: given up alone and for good; near the context's end a response is cut."""
    policy = bench.model
    if policy.context_length is None:
        raise NotApplicable("the model names no limit")
    text = bench.prompts[0]
    while len(policy.encode_prompt(text)) < policy.context_length:
        text += bench.prompts[0]
    fine, long = bench.request(0), bench.request(1, prompt=text)
    answered, aborted = bench.sample([fine, long])
    is_same = bench.answer(answered) == bench.answer(bench.free[0])
    expect(is_same, "a neighbour of an over-long prompt is answered otherwise")
    expect((aborted.finish_reason, aborted.token_ids, aborted.text) == ("abort", (), ""), aborted.finish_reason)
    expect(aborted.is_hopeless and str(policy.context_length) in aborted.abort_reason, aborted.abort_reason)
    while len(policy.encode_prompt(text)) >= policy.context_length:
        text = text[:-1]
    room = policy.context_length - len(policy.encode_prompt(text))
    near = bench.sample([bench.request(seed, prompt=text, limit=room + 5) for seed in range(8)])
    expect(all(generation.finish_reason != "abort" for generation in near), "a prompt that fits is given up")
    expect(all(generation.num_tokens <= room for generation in near), "a response leaves the context")
    full = [generation for generation in near if len(generation.token_ids) == room]
    expect(all(g.finish_reason == "length" or g.token_ids[-1] in policy.eos_ids for g in full), "wrong finish reason")


# --- log-probs ----------------------------------------------------------------------------------------------------


def greedy(bench: Bench) -> None:
    """Temperature 0 takes the most likely token."""
    bench.needs("temperature")
    requests = [bench.request(seed) for seed in range(3)]
    for request, answer in zip(requests, bench.answers(requests, _GREEDY), strict=True):
        expected = bench.spell(bench.most_likely(bench.model.encode_prompt(request.prompt), _LIMIT))
        expect(answer == expected, f"{answer!r}, expected {expected!r}")


def logprobs(bench: Bench) -> None:
    """Log-probs equal the trainer's at any temperature; at 0 they are those of temperature 1."""
    for sampling in (Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.5), _GREEDY):
        _compare(bench, sampling)


def truncated_logprobs(bench: Bench) -> None:
    """Under top-k and top-p each token comes with what it was drawn from, and its log-prob is that within it."""
    for sampling in (
        Sampling(top_k=5, top_p=0.9, with_kept=True),
        Sampling(top_k=40, top_p=0.7, temperature=0.8, with_kept=True),
        Sampling(top_k=1, with_kept=True),
    ):
        _compare(bench, sampling)
    (plain,) = bench.sample([bench.request(0)], Sampling(top_k=5))
    expect(plain.kept_token_ids == (), "kept tokens that nobody asked for")


def _compare(bench: Bench, sampling: Sampling) -> None:
    bench.needs("tokens")
    for generation in bench.sample([bench.request(seed) for seed in range(20)], sampling):
        _close(bench, generation, sampling.temperature or 1.0)
        if sampling.with_kept:
            _check_kept(generation, sampling.top_k)


def _check_kept(generation: Generation, top_k: int) -> None:
    kept = generation.kept_token_ids
    expect(len(kept) == len(generation.token_ids), f"{len(generation.token_ids)} tokens, {len(kept)} kept sets")
    for token, left in zip(generation.token_ids, kept, strict=True):
        expect(token in left and list(left) == sorted(set(left)), f"token {token} was drawn from {left}")
        expect(len(left) <= top_k + 1, f"{len(left)} tokens were left by top-k {top_k}")


def _close(bench: Bench, generation: Generation, temperature: float) -> None:
    expected = bench.scores(generation, temperature)
    difference = (torch.tensor(generation.logprobs) - expected.cpu()).abs().max().item()
    expect(difference <= bench.tolerance, f"differs by {difference:.2g} at temperature {temperature:g}")


# --- streaming ----------------------------------------------------------------------------------------------------


def streaming(bench: Bench) -> None:
    """Submitted one after the other, requests are answered as in one batch."""
    engine = _streaming(bench)
    requests = [bench.request(seed) for seed in range(24)]
    engine.submit(requests[:8], Sampling())
    done = engine.poll(0.0)
    engine.submit(requests[8:], Sampling())
    done += _drain(engine, len(requests) - len(done))
    answers = {generation.request_id: bench.answer(generation) for generation in done}
    expected = {request.request_id: bench.answer(bench.free[seed]) for seed, request in enumerate(requests)}
    expect(answers == expected, "other responses than in a batch")


def cancelled(bench: Bench) -> None:
    """Cancelled requests never come back as answers, and the others are not disturbed."""
    engine = _streaming(bench)
    requests = [bench.request(seed) for seed in range(16)]
    engine.submit(requests, Sampling())
    given_up = {request.request_id for request in requests[::2]}
    engine.cancel([*given_up, "no such request"])
    done = [generation for generation in _drain(engine, 8, given_up) if generation.request_id not in given_up]
    expected = [bench.answer(bench.free[seed]) for seed in range(1, 16, 2)]
    order = {request.request_id: place for place, request in enumerate(requests)}
    done.sort(key=lambda generation: order[generation.request_id])
    expect([bench.answer(generation) for generation in done] == expected, "the others changed")
    late = engine.poll(0.0)
    expect(all(generation.finish_reason == "abort" for generation in late), "a cancelled request came back")
    engine.submit(requests[:1], Sampling())  # its id is free again
    (again,) = _drain(engine, 1)
    expect(bench.answer(again) == bench.answer(bench.free[0]), "a cancelled request cannot be asked again")


def _streaming(bench: Bench) -> StreamingEngine:
    if not isinstance(bench.engine, StreamingEngine):
        raise NotApplicable("it answers in batches")
    return bench.engine


def _drain(engine: StreamingEngine, count: int, ignored: Collection[str] = ()) -> list[Generation]:
    done: list[Generation] = []
    for _ in range(10_000):
        done += [generation for generation in engine.poll(0.05) if generation.request_id not in ignored]
        if len(done) >= count:
            return done
    raise Broken(f"{len(done)} of {count} responses came back")


# --- weights ------------------------------------------------------------------------------------------------------


def publication(bench: Bench) -> None:
    """After an update, greedy decoding follows the new weights, and the version is theirs."""
    bench.needs("tokens")
    # The long prompt fills blocks of a prefix cache, which must not outlive the weights they were computed with.
    requests = [*(bench.request(seed) for seed in range(3)), bench.request(0, prompt=_long(bench))]
    before = bench.answers(requests, _GREEDY)
    with _other_weights(bench):
        after = bench.sample(requests, _GREEDY)
        for generation in after:
            expected = bench.most_likely(generation.prompt_token_ids, _LIMIT)
            expect(generation.token_ids == expected, "not what the new weights say")
            expect(generation.policy_version == bench.model.version, f"version {generation.policy_version}")
            _close(bench, generation, 1.0)
        expect([g.token_ids for g in after] != before, "the responses are those of the old weights")
    expect(bench.answers(requests, _GREEDY) == before, "the old weights do not come back")


def whole_publication(bench: Bench) -> None:
    """Weights that lack a tensor, or hold one of another shape, are refused, and the old ones go on."""
    engine, policy = _publishing(bench), bench.model
    before = bench.answers([bench.request(0)], _GREEDY)
    weights = dict(weights_of(policy))
    first = next(iter(weights))
    partial = {name: tensor for name, tensor in weights.items() if name != first}
    wrong = [partial, {**weights, "model.unknown": torch.zeros(1)}, {**weights, first: weights[first][:-1]}]
    for pushed in wrong:
        try:
            engine.publish(policy.version + 1, pushed.items())
        except EngineError:
            continue
        raise Broken("incomplete weights were taken")
    expect(engine.published_version == policy.version, "the version rose although nothing was published")
    expect(bench.answers([bench.request(0)], _GREEDY) == before, "a refused push changed the weights")


def publication_under_way(bench: Bench) -> None:
    """What is under way when weights are published never passes for an answer of the new ones."""
    _publishing(bench)
    engine = _streaming(bench)
    engine.submit([bench.request(seed, prompt=_long(bench)) for seed in range(8)], Sampling())
    done = engine.poll(0.0)
    with _other_weights(bench):
        late = engine.poll(0.0)
        expect(all(generation.finish_reason == "abort" for generation in late), "an answer of two versions")
        expect(len(done) + len(late) == 8, f"{8 - len(done) - len(late)} requests are lost")
        engine.submit([bench.request(0, prompt=_long(bench))], _GREEDY)
        (fresh,) = _drain(engine, 1)
        expected = bench.most_likely(fresh.prompt_token_ids, _LIMIT)
        expect(fresh.token_ids == expected, "the first answer afterwards is not that of the new weights")


def _publishing(bench: Bench) -> PublishingEngine:
    bench.needs("tokens")  # nothing that is trained samples without them
    if not isinstance(bench.engine, PublishingEngine):
        raise NotApplicable("it holds no copy of the weights")
    return bench.engine


@contextlib.contextmanager
def _other_weights(bench: Bench) -> Iterator[None]:
    """Change the policy's weights in the body, publish them where the engine has a copy, and take them back."""
    policy = bench.model
    own = policy.share.parameters() if policy.share else list(policy.model.parameters())
    kept = [parameter.detach().clone() for parameter in own]
    with torch.no_grad():
        for number, parameter in enumerate(own):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            size = 0.3 * (parameter.float().std().item() or 0.1)  # a fresh adapter is 0 in one of its factors
            parameter.add_((size * noise).to(parameter))
    try:
        _publish(bench)
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(own, kept, strict=True):
                parameter.copy_(before)
        _publish(bench)


def _publish(bench: Bench) -> None:
    bench.model.version += 1
    if isinstance(bench.engine, PublishingEngine):
        bench.engine.publish(bench.model.version, weights_of(bench.model))


def closing(bench: Bench) -> None:
    """Close may be called twice."""
    bench.engine.close()
    bench.engine.close()


CHECKS: tuple[Callable[[Bench], None], ...] = (
    answers,
    nothing,
    company,
    crowd,
    samples,
    limits,
    counts,
    reasons,
    stop_texts,
    empty,
    cut_character,
    overlong_prompts,
    greedy,
    streaming,
    cancelled,
    record,
    ends,
    logprobs,
    truncated_logprobs,
    publication,
    whole_publication,
    publication_under_way,
    closing,
)
"""All checks, in the order of the table: those that hold for texts too, those about tokens and the weights that are
trained on them, and the end, which leaves the engine unusable."""
