"""The checks of the conformance suite, one function each; the first line of its docstring is its line in the table.

A check returns when the engine keeps the promise, raises `Broken` when it does not, and `NotApplicable` when there was
nothing to try it on. Requests are those of `Bench`, which samples what several checks look at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from srpo_envs.errors import EngineError
from srpo_train.batching import MemberRow
from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling, StreamingEngine
from srpo_train.engines.publishing import PublishingEngine, weights_of
from srpo_train.policies.policy import Policy

_GREEDY = Sampling(temperature=0.0)
_LIMIT = 24
_REPLACEMENT = "\ufffd"


class Broken(Exception):
    """The engine does not keep a promise; says which request shows it."""


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
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    """Makes request ids unique."""

    def request(
        self, seed: int, *, limit: int = _LIMIT, stop: tuple[str, ...] = (), prompt: str = ""
    ) -> GenerationRequest:
        """Return a request of its own id; without a prompt, the seed picks one."""
        text = prompt or self.prompts[seed % len(self.prompts)]
        name = f"conformance/{next(self.numbers)}"
        return GenerationRequest(request_id=name, prompt=text, max_new_tokens=limit, seed=seed, stop=stop)

    def sample(self, requests: Sequence[GenerationRequest], sampling: Sampling | None = None) -> list[Generation]:
        """Answer requests, and check that each has its answer in its place."""
        generations = self.engine.generate(requests, sampling or Sampling())
        expect(
            [g.request_id for g in generations] == [r.request_id for r in requests],
            f"{len(requests)} requests, {len(generations)} generations, not one for each in request order",
        )
        return generations

    def tokens(self, requests: Sequence[GenerationRequest], sampling: Sampling | None = None) -> list[tuple[int, ...]]:
        """Answer requests with their tokens alone."""
        return [generation.token_ids for generation in self.sample(requests, sampling)]

    @cached_property
    def free(self) -> list[Generation]:
        """Responses to seeds 0 to 59, without stop texts."""
        return self.sample([self.request(seed) for seed in range(60)])

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


def record(bench: Bench) -> None:
    """Tokens, log-probs, text and prompt of a response belong together."""
    for seed, generation in enumerate(bench.free):
        name = f"seed {seed}"
        expect(len(generation.logprobs) == len(generation.token_ids) > 0, f"{name}: not one log-prob for each token")
        expect(generation.finish_reason in ("stop", "length"), f"{name}: {generation.abort_reason}")
        expect(generation.text == bench.decode(generation.token_ids), f"{name}: text is not what the tokens say")
        expect(generation.timings.get("generate_s", -1.0) >= 0.0, f"{name}: timings do not say generate_s")
    if bench.policy:
        request = bench.request(0)
        (generation,) = bench.sample([request])
        expect(generation.prompt_token_ids == bench.model.encode_prompt(request.prompt), "other prompt tokens")


def nothing(bench: Bench) -> None:
    """No requests give no generations."""
    expect(bench.sample([]) == [], "generations without requests")


# --- seeds --------------------------------------------------------------------------------------------------------


def company(bench: Bench) -> None:
    """The same request gives the same tokens alone, in company, and in another order."""
    together = [generation.token_ids for generation in bench.free[:12]]
    alone = [bench.tokens([bench.request(seed)])[0] for seed in range(12)]
    expect(alone == together, "a response depends on its neighbours")
    backwards = bench.tokens([bench.request(seed) for seed in reversed(range(12))])
    expect(backwards[::-1] == together, "a response depends on the order of requests")


def crowd(bench: Bench) -> None:
    """More prompt tokens at once than a batch holds: each request is answered as alone."""
    # Prompts that differ from the first token on have nothing in common that could be computed once.
    requests = [bench.request(seed, prompt=f"{seed}{_long(bench)}") for seed in range(100)]
    together = bench.tokens(requests)
    alone = [bench.tokens([request])[0] for request in requests[::25]]
    expect(alone == together[::25], "a response depends on how much there is to do")


def samples(bench: Bench) -> None:
    """Samples: n of one prompt with n seeds differ, and the same seeds repeat them."""
    requests = [bench.request(seed, prompt=bench.prompts[0]) for seed in (*range(16), 2**62, 2**63 - 1)]
    first, again = bench.tokens(requests), bench.tokens(requests)
    expect(len(set(first)) > len(first) // 2, f"{len(set(first))} different responses to {len(first)} seeds")
    expect(first == again, "a second call gives other tokens")


def _long(bench: Bench) -> str:
    """A prompt of several blocks of a cache."""
    return max(bench.prompts, key=len) * 4


# --- ends ---------------------------------------------------------------------------------------------------------


def limits(bench: Bench) -> None:
    """Max tokens: a smaller limit gives a prefix and finishes with length."""
    for limit in (1, 5):
        for free, cut in zip(
            bench.free, bench.sample([bench.request(seed, limit=limit) for seed in range(60)]), strict=True
        ):
            expect(cut.token_ids == free.token_ids[:limit], f"limit {limit}: not a prefix of the longer response")
            is_cut = len(free.token_ids) > limit
            expect(
                cut.finish_reason == ("length" if is_cut else free.finish_reason), f"limit {limit}: {cut.finish_reason}"
            )


def ends(bench: Bench) -> None:
    """End of sequence: every listed token ends a response, and is its last token."""
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
    """Stop strings: the response is the first prefix that contains one, which stays in it."""
    num_stopped = 0
    for stop in bench.stops:
        held = bench.sample([bench.request(seed, stop=stop) for seed in range(60)])
        for free, generation in zip(bench.free, held, strict=True):
            prefixes = [free.token_ids[:count] for count in range(1, len(free.token_ids) + 1)]
            reached = [prefix for prefix in prefixes if any(text in bench.decode(prefix) for text in stop)]
            expected = reached[0] if reached else free.token_ids
            expect(
                generation.token_ids == expected, f"{stop}: {generation.text!r}, expected {bench.decode(expected)!r}"
            )
            expect(generation.text == bench.decode(expected), f"{stop}: the text is {generation.text!r}")
            expect(generation.finish_reason == ("stop" if reached else free.finish_reason), f"{stop}: wrong reason")
            num_stopped += bool(reached)
    if num_stopped < 3:
        raise NotApplicable("no response contains a stop text")


def empty(bench: Bench) -> None:
    """Empty completion: an eos at once gives one token and no text."""
    for prompt in bench.prompts:
        requests = [bench.request(seed, prompt=prompt) for seed in range(200)]
        for generation in bench.sample(requests):
            if generation.finish_reason == "stop" and len(generation.token_ids) == 1:
                expect(generation.text == bench.decode(generation.token_ids), f"text {generation.text!r}")
                expect(len(generation.logprobs) == 1, "no log-prob for the eos")
                return
    raise NotApplicable("no response began with an eos")


def cut_character(bench: Bench) -> None:
    """Unicode: a response cut within a character keeps its tokens and shows U+FFFD."""
    for seed, free in enumerate(bench.free):
        for count in range(1, len(free.token_ids)):
            if bench.decode(free.token_ids[:count]).endswith(_REPLACEMENT):
                (cut,) = bench.sample([bench.request(seed, limit=count)])
                expect(cut.token_ids == free.token_ids[:count], "other tokens")
                expect(cut.text == bench.decode(free.token_ids[:count]), f"text {cut.text!r}")
                expect(len(cut.logprobs) == count, "a log-prob is missing")
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
    expect(answered.token_ids == bench.free[0].token_ids, "a neighbour of an over-long prompt is answered otherwise")
    expect((aborted.finish_reason, aborted.token_ids, aborted.text) == ("abort", (), ""), aborted.finish_reason)
    expect(aborted.is_hopeless and str(policy.context_length) in aborted.abort_reason, aborted.abort_reason)
    while len(policy.encode_prompt(text)) >= policy.context_length:
        text = text[:-1]
    room = policy.context_length - len(policy.encode_prompt(text))
    near = bench.sample([bench.request(seed, prompt=text, limit=room + 5) for seed in range(8)])
    expect(all(len(generation.token_ids) <= room for generation in near), "a response leaves the context")
    full = [generation for generation in near if len(generation.token_ids) == room]
    expect(all(g.finish_reason == "length" or g.token_ids[-1] in policy.eos_ids for g in full), "wrong finish reason")


# --- log-probs ----------------------------------------------------------------------------------------------------


def logprobs(bench: Bench) -> None:
    """Log-probs equal the trainer's, at other temperatures too."""
    for sampling in (Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.5)):
        _compare(bench, sampling)


def truncated_logprobs(bench: Bench) -> None:
    """Log-probs under top-k and top-p are those of the whole distribution."""
    for sampling in (Sampling(top_k=5, top_p=0.9), Sampling(top_p=0.7, temperature=0.8)):
        _compare(bench, sampling)


def greedy(bench: Bench) -> None:
    """Temperature 0 takes the most likely token, with log-probs of temperature 1."""
    for generation in bench.sample([bench.request(seed) for seed in range(3)], _GREEDY):
        expected = bench.most_likely(generation.prompt_token_ids, _LIMIT)
        expect(generation.token_ids == expected, f"{generation.token_ids}, expected {expected}")
        _close(bench, generation, 1.0)


def _compare(bench: Bench, sampling: Sampling) -> None:
    for generation in bench.sample([bench.request(seed) for seed in range(20)], sampling):
        _close(bench, generation, sampling.temperature)


def _close(bench: Bench, generation: Generation, temperature: float) -> None:
    expected = bench.scores(generation, temperature)
    difference = (torch.tensor(generation.logprobs) - expected.cpu()).abs().max().item()
    expect(difference <= bench.tolerance, f"differs by {difference:.2g} at temperature {temperature:g}")


# --- streaming ----------------------------------------------------------------------------------------------------


def streaming(bench: Bench) -> None:
    """Submitted one after the other, requests give the tokens of one batch."""
    engine = _streaming(bench)
    requests = [bench.request(seed) for seed in range(24)]
    engine.submit(requests[:8], Sampling())
    done = engine.poll(0.0)
    engine.submit(requests[8:], Sampling())
    done += _drain(engine, len(requests) - len(done))
    tokens = {generation.request_id: generation.token_ids for generation in done}
    expected = {request.request_id: bench.free[seed].token_ids for seed, request in enumerate(requests)}
    expect(tokens == expected, "other tokens than in a batch")


def cancelled(bench: Bench) -> None:
    """Cancelled requests never come back as answers, and the others are not disturbed."""
    engine = _streaming(bench)
    requests = [bench.request(seed) for seed in range(16)]
    engine.submit(requests, Sampling())
    given_up = {request.request_id for request in requests[::2]}
    engine.cancel([*given_up, "no such request"])
    done = [generation for generation in _drain(engine, 8, given_up) if generation.request_id not in given_up]
    expected = [bench.free[seed].token_ids for seed in range(1, 16, 2)]
    order = {request.request_id: place for place, request in enumerate(requests)}
    done.sort(key=lambda generation: order[generation.request_id])
    expect([generation.token_ids for generation in done] == expected, "the others changed")
    late = engine.poll(0.0)
    expect(all(generation.finish_reason == "abort" for generation in late), "a cancelled request came back")
    engine.submit(requests[:1], Sampling())  # its id is free again
    (again,) = _drain(engine, 1)
    expect(again.token_ids == bench.free[0].token_ids, "a cancelled request cannot be asked again")


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
    # The long prompt fills blocks of a prefix cache, which must not outlive the weights they were computed with.
    requests = [*(bench.request(seed) for seed in range(3)), bench.request(0, prompt=_long(bench))]
    before = bench.tokens(requests, _GREEDY)
    with _other_weights(bench):
        after = bench.sample(requests, _GREEDY)
        for generation in after:
            expected = bench.most_likely(generation.prompt_token_ids, _LIMIT)
            expect(generation.token_ids == expected, "not what the new weights say")
            expect(generation.policy_version == bench.model.version, f"version {generation.policy_version}")
            _close(bench, generation, 1.0)
        expect([g.token_ids for g in after] != before, "the responses are those of the old weights")
    expect(bench.tokens(requests, _GREEDY) == before, "the old weights do not come back")


def whole_publication(bench: Bench) -> None:
    """Weights that lack a tensor, or hold one of another shape, are refused, and the old ones go on."""
    engine, policy = _publishing(bench), bench.model
    before = bench.tokens([bench.request(0)], _GREEDY)
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
    expect(bench.tokens([bench.request(0)], _GREEDY) == before, "a refused push changed the weights")


def publication_under_way(bench: Bench) -> None:
    """What is under way when weights are published never passes for an answer of the new ones."""
    engine = _streaming(bench)
    _publishing(bench)
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
    record,
    nothing,
    company,
    crowd,
    samples,
    limits,
    ends,
    stop_texts,
    empty,
    cut_character,
    overlong_prompts,
    logprobs,
    truncated_logprobs,
    greedy,
    streaming,
    cancelled,
    publication,
    whole_publication,
    publication_under_way,
    closing,
)
"""All checks, in the order of the table; the last one leaves the engine unusable."""
