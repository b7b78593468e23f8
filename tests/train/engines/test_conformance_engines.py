"""The suite finds what it is there to find: engines that break one promise each."""

from __future__ import annotations

import dataclasses

import pytest
from conformance_table import documented, found

from srpo_envs.errors import ConfigError, ConformanceError
from srpo_train.engines import Sampling, ScriptedEngine
from srpo_train.engines.conformance import ENGINES, check_engine, format_table, main
from srpo_train.engines.conformance_checks import CHECKS, answers, company, counts, publication, record
from srpo_train.engines.conformance_endpoint import cut_at_stop
from srpo_train.engines.conformance_policy import conformance_policy
from srpo_train.engines.transformers import TransformersEngine


@pytest.fixture(scope="module")
def policy():
    return conformance_policy()


@pytest.fixture(scope="module")
def reports():
    return [ENGINES[name]() for name in ("scripted", "transformers", "background", "openai", "agent")]


def broken(report) -> set[str]:
    return {result.name for result in report.results if result.outcome == "broken"}


def test_the_engines_of_this_package_keep_every_promise(reports):
    for report in reports:
        report.require()


def test_every_check_bites_on_some_engine(reports):
    kept = {result.name for report in reports for result in report.results if result.outcome == "kept"}
    # Those left need an engine with a copy of the weights, as `make test-vllm` has them.
    assert {check.__name__ for check in CHECKS} - kept == {"whole_publication", "publication_under_way"}


def test_the_table_of_the_documentation_says_what_the_suite_finds(reports):
    for report in reports:
        assert documented(f"`{report.engine}`") == found(report)


class Altered(TransformersEngine):
    """The transformers engine, with something done to its answers."""

    def __init__(self, policy, alter) -> None:
        super().__init__(policy)
        self._alter = alter

    def generate(self, requests, sampling):
        return [self._alter(generation, requests) for generation in super().generate(requests, sampling)]


def change(**changes):
    """An alteration of fields, by value or by a function of the generation."""
    return lambda generation, requests: dataclasses.replace(
        generation, **{name: value(generation) if callable(value) else value for name, value in changes.items()}
    )


ALTERATIONS = {
    "record": change(text=lambda g: g.text + " "),
    "logprobs": change(logprobs=lambda g: tuple(value - 0.001 for value in g.logprobs)),
    "reasons": change(finish_reason=lambda g: "stop" if g.finish_reason == "length" else g.finish_reason),
    "company": lambda g, requests: dataclasses.replace(g, text=g.text, token_ids=g.token_ids[: len(requests)]),
    "overlong_prompts": change(is_hopeless=False),
    "cut_character": change(text=lambda g: g.text.rstrip("\ufffd")),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_engine_that_breaks_a_promise_is_found_out(policy, name):
    checks = [check for check in CHECKS if check.__name__ == name]
    report = check_engine(lambda: Altered(policy, ALTERATIONS[name]), policy, checks=checks)
    assert broken(report) == {name}
    with pytest.raises(ConformanceError, match="Altered: 1 promises are broken"):
        report.require()


class SharedRandomness(TransformersEngine):
    """Numbers its requests, whatever their seeds."""

    def generate(self, requests, sampling):
        numbered = [dataclasses.replace(request, seed=number) for number, request in enumerate(requests)]
        return super().generate(numbered, sampling)


class Copy(TransformersEngine):
    """Samples from a copy that no publication reaches."""

    def __init__(self, policy) -> None:
        super().__init__(conformance_policy())


class Dropping(TransformersEngine):
    """Loses its last answer."""

    def generate(self, requests, sampling):
        return super().generate(requests, sampling)[:-1]


@pytest.mark.parametrize(
    ("engine", "check"),
    [(SharedRandomness, company), (Copy, publication), (Dropping, answers)],
    ids=lambda x: x.__name__,
)
def test_a_faulty_engine_is_found_out(policy, engine, check):
    assert broken(check_engine(lambda: engine(policy), policy, checks=[check])) == {check.__name__}


class Texts(TransformersEngine):
    """The transformers engine without its tokens, as an endpoint would have it."""

    def generate(self, requests, sampling):
        generations = super().generate(requests, sampling)
        return [self.text_of(*pair) for pair in zip(generations, requests, strict=True)]

    def text_of(self, generation, request):
        text, stop = cut_at_stop(generation.text, request.stop)
        count = len(generation.token_ids)
        return dataclasses.replace(
            generation, text=text + (stop or ""), token_ids=(), logprobs=(), num_unseen_tokens=count
        )


class AlteredTexts(Texts):
    """The same, with something done to requests and sampling before, and to texts afterwards."""

    def __init__(self, policy, *, ask=None, say=None, sampling=None) -> None:
        super().__init__(policy)
        self._ask, self._say, self._sampling = ask or {}, say, sampling

    def generate(self, requests, sampling):
        asked = [dataclasses.replace(request, **self._ask) for request in requests]
        return super().generate(asked, self._sampling or sampling)

    def text_of(self, generation, request):
        text = super().text_of(generation, request)
        return dataclasses.replace(text, **self._say(text, request)) if self._say else text


def give_up_what_is_empty(generation, request):
    return {} if generation.text else {"finish_reason": "abort", "abort_reason": "no content"}


FAULTY_TEXTS = {
    "the limit is ignored": ("limits", {"ask": {"max_new_tokens": 24}}),
    "a short text is another one": (
        "limits",
        {"say": lambda g, request: {"text": g.text[1:] if request.max_new_tokens < 24 else g.text}},
    ),
    "one token too many": ("counts", {"say": lambda g, _: {"num_unseen_tokens": g.num_unseen_tokens + 1}}),
    "nothing is ever cut": ("reasons", {"say": lambda *_: {"finish_reason": "stop"}}),
    "the stop text is lost": ("stop_texts", {"say": lambda g, r: {"text": g.text.removesuffix((*r.stop, "")[0])}}),
    "the stop text is ignored": ("stop_texts", {"ask": {"stop": ()}}),
    "no text is no answer": ("empty", {"say": give_up_what_is_empty}),
    "a character is lost": (
        "cut_character",
        {"say": lambda g, r: {"text": g.text if r.max_new_tokens == 24 else g.text.encode("ascii", "ignore").decode()}},
    ),
    "one seed for all": ("samples", {"ask": {"seed": 0}}),
    "the temperature is ignored": ("greedy", {"sampling": Sampling()}),
    "an over-long prompt is to be asked again": ("overlong_prompts", {"say": lambda *_: {"is_hopeless": False}}),
}


@pytest.mark.parametrize("fault", FAULTY_TEXTS)
def test_a_faulty_engine_of_texts_is_found_out(policy, fault):
    name, changes = FAULTY_TEXTS[fault]
    checks = [check for check in CHECKS if check.__name__ == name]
    report = check_engine(lambda: AlteredTexts(policy, **changes), policy, lacks=["tokens"], checks=checks)
    assert broken(report) == {name}


def test_an_engine_of_texts_that_has_no_fault_is_found_to_have_none(policy):
    report = check_engine(lambda: Texts(policy), policy, lacks=["tokens"])
    report.require()
    kept = {result.name for result in report.results if result.outcome == "kept"}
    assert kept >= {name for name, _ in FAULTY_TEXTS.values()}


def test_what_an_engine_does_without_is_said_and_not_ticked(policy):
    lacks = ["tokens", "token counts"]
    report = check_engine(lambda: Texts(policy), policy, lacks=lacks, checks=[record, counts])
    assert [result.sign for result in report.results] == ["no tokens", "no token counts"]
    assert format_table([report]).splitlines()[2].endswith("| no tokens |")
    report.require()


def test_the_suite_leaves_the_policy_as_it_was(policy):
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    check_engine(lambda: TransformersEngine(policy), policy, checks=[publication])
    assert all(tensor.equal(before[name]) for name, tensor in policy.model.state_dict().items())


def test_without_a_policy_the_suite_must_be_told_how_to_read_tokens():
    with pytest.raises(ConfigError, match="decode and eos_ids"):
        check_engine(lambda: ScriptedEngine("demo", {"": "4"}), None)


def test_the_command_prints_the_table_and_says_what_was_not_tried(capsys):
    assert main(["scripted"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("| promise | `ScriptedEngine` |")
    assert "not tried, there is no model" in printed.err


def test_an_unknown_engine_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'transformer'.*transformers"):
        main(["transformer"])
