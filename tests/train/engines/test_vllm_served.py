"""Real vLLM servers, killed and started again. Needs an environment of its own: `make test-vllm`.

The servers start together and serve the whole file, for a start takes longer than all else. So its tests build on
each other: adapters first, then whole models, beside which a server answers for no adapter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from conformance_table import documented, found

from srpo_train.collect import Collector, EpisodeJob
from srpo_train.config import AdapterConfig, EngineConfig
from srpo_train.engines import GenerationRequest, Sampling
from srpo_train.engines.conformance import check_engine
from srpo_train.engines.conformance_policy import PROMPTS, conformance_adapter, conformance_policy
from srpo_train.engines.making import make_engines
from srpo_train.engines.publishing import weights_of
from srpo_train.engines.served import ServedEngine
from srpo_train.engines.served_process import ServerOptions, ServerProcess
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy
from srpo_train.policies.shared_base import SharedBase

for package in ("vllm", "peft"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here; `make test-vllm` runs this", allow_module_level=True)

pytestmark = pytest.mark.timeout(900)  # a server takes minutes to start on a busy machine

GREEDY = Sampling(temperature=0.0)
CONTEXT = 1024
"""Of the models that play; prompts of an environment do not fit in the conformance policy's own 128 tokens."""


def make_requests(count: int = 6) -> list[GenerationRequest]:
    return [
        GenerationRequest(request_id=f"ep/e0/{seed}", prompt=PROMPTS[seed % 3], max_new_tokens=16, seed=seed)
        for seed in range(count)
    ]


def player() -> Policy:
    policy = conformance_policy()
    policy.model.config.max_position_embeddings = CONTEXT
    return policy


def change(policy: Policy, seed: int) -> None:
    """Move the weights, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.share.parameters() if policy.share else policy.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1


def expect_answers_of(engine, policy: Policy) -> None:
    """Check tokens, log-probs and version against the trainer's own model."""
    answers = engine.generate(make_requests(), GREEDY)
    expected = TransformersEngine(policy).generate(make_requests(), GREEDY)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    for ours, theirs in zip(answers, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert {answer.policy_version for answer in answers} == {policy.version}


class Place:
    """Where a server runs: it can be killed, and started again under the same address."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.server = self._start(0)
        self.url = self.server.url

    def _start(self, port: int) -> ServerProcess:
        # See `srpo_train.engines.conformance` for the template.
        extra = ("--chat-template", "{{ 'ab' }}")
        options = ServerOptions(port=port, is_cpu=True, num_adapters=4, lora_rank=4, extra=extra)
        return ServerProcess(self._model, options)

    def kill(self) -> None:
        os.killpg(self.server._process.pid, signal.SIGKILL)
        self.server.stop()

    def start_again(self) -> None:
        self.server = self._start(int(self.url.rpartition(":")[2]))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Iterator[list[Place]]:
    folder = tmp_path_factory.mktemp("model")
    player().save(folder)
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(2):
            started.append(Place(str(folder)))
            stack.callback(lambda place=started[-1]: place.server.stop())
        for place in started:
            place.server.wait_until_ready()
        yield started


def open_engines(policies, places: list[Place], **settings) -> dict[str, ServedEngine]:
    servers = {policy.policy_id: [place.url for place in places] for policy in policies}
    served = {"servers": servers, "outage_s": 600.0, **settings}
    return make_engines(policies, EngineConfig.model_validate({"kind": "served", "served": served}))


def close_all(engines) -> None:
    for engine in engines.values():
        engine.close()


def kill_at_request(engine: ServedEngine, place: Place, number: int) -> list[int]:
    """Kill a place's server just before it would get a request of an engine; return how many each server is asked."""
    counts = [0, 0]
    for index, server in enumerate(engine._fleet.servers):

        async def generate(*arguments, index=index, server=server, ask=server.generate):
            counts[index] += 1
            if server.url == place.url and counts[index] == number:
                place.kill()
            return await ask(*arguments)

        server.generate = generate
    return counts


def collect(engines, roles, num_episodes: int = 12):
    import srpo_envs

    collector = Collector(lambda: srpo_envs.make("ArithmeticSolverVerifier-v0", max_new_tokens=8), engines, roles)
    jobs = [
        EpisodeJob(episode_id=f"e{n}", group_id=f"g{n // 2}", task_index=n // 2, env_seed=n)
        for n in range(num_episodes)
    ]
    try:
        return collector.collect(jobs, Sampling())
    finally:
        collector.close()


def wait_until_fit(engine: ServedEngine, place: Place) -> None:
    end = time.monotonic() + 600
    (server,) = (server for server in engine._fleet.servers if server.url == place.url)
    while server.trouble:
        assert time.monotonic() < end, server.trouble
        time.sleep(0.1)


@pytest.fixture(scope="module")
def adapters() -> dict[str, Policy]:
    """Two adapters that differ, and the model below."""
    plain = player()
    base = SharedBase(plain.model, plain.tokenizer)
    shares = {name: base.new_adapter(name, AdapterConfig(rank=4, alpha=8.0), 0) for name in ("solver", "judge")}
    shares["frozen"] = base.alone()
    made = {
        name: Policy(policy_id=name, model=base.model, tokenizer=base.tokenizer, share=share)
        for name, share in shares.items()
    }
    change(made["solver"], 1)
    change(made["judge"], 2)
    return made


@pytest.fixture(scope="module")
def engines(adapters, places):
    opened = open_engines(adapters.values(), places)
    yield opened
    close_all(opened)


def test_adapters_over_one_served_model_follow_their_own_updates(engines, adapters):
    for name, policy in adapters.items():
        expect_answers_of(engines[name], policy)
    for seed in (3, 4):  # more versions than the servers have places
        change(adapters["solver"], seed)
        engines["solver"].publish(adapters["solver"].version, weights_of(adapters["solver"]))
        for name, policy in adapters.items():
            expect_answers_of(engines[name], policy)


def test_adapters_and_the_model_below_do_not_mix_in_a_batch(engines, adapters):
    for engine in engines.values():
        engine.submit(make_requests(), GREEDY)
    for name, engine in engines.items():
        done = []
        while len(done) < 6:
            done += engine.poll(5.0)
        done.sort(key=lambda answer: answer.request_id)
        expected = TransformersEngine(adapters[name]).generate(make_requests(), GREEDY)
        assert [answer.token_ids for answer in done] == [answer.token_ids for answer in expected], name


def test_a_name_that_was_unloaded_is_refused(engines, places):
    import httpx

    served = [model["id"] for model in httpx.get(f"{places[0].url}/v1/models").json()["data"]][1:]
    assert sorted(name.rpartition("-")[0] for name in served) == ["frozen@0", "judge@1", "solver@3"]
    old = {"model": "solver@2-00000000", "token_ids": [1], "sampling_params": {"max_tokens": 1}}
    assert httpx.post(f"{places[0].url}/inference/v1/generate", json=old).status_code == 404


def test_an_adapter_keeps_every_promise_of_an_engine(adapters, places):
    policy = conformance_adapter()
    report = check_engine(lambda: open_engines([policy], places[:1])[policy.policy_id], policy)
    report.require()
    assert documented("`ServedEngine, an adapter`") == found(report)


def test_a_rollout_of_adapters_survives_a_server_that_is_killed(engines, adapters, places):
    counts = kill_at_request(engines["solver"], places[0], 6)
    rollout = collect(engines, {"solver": "solver", "verifier": "judge", "aggregator": "frozen"})
    assert (len(rollout.episodes), rollout.failed) == (12, ())
    assert counts[0] >= 6
    assert counts[1] > 0
    versions = {
        (member.policy_id, member.policy_version)
        for episode in rollout.episodes
        for event in episode.events
        for member in event.members
    }
    assert versions == {("solver", 3), ("judge", 1), ("frozen", 0)}


def test_a_server_that_comes_back_without_adapters_gets_them_again(engines, adapters, places):
    places[0].start_again()
    for name, engine in engines.items():
        wait_until_fit(engine, places[0])
        expect_answers_of(engine, adapters[name])
    places[1].kill()  # so that what answers is the one that came back
    for name, engine in engines.items():
        expect_answers_of(engine, adapters[name])
    close_all(engines)


def test_buckets_over_one_process_group_reach_all_servers_but_one_that_dies_in_the_middle(places):
    if not places[1].server.is_healthy():
        places[1].start_again()
    policy = player()
    engine = open_engines([policy], places, transport="gloo", bucket_bytes=30_011)[policy.policy_id]
    try:
        wait_until_fit(engine, places[1])
        change(policy, 6)
        report = engine.publish(policy.version, weights_of(policy))
        assert report.num_buckets > 4
        assert report.server_s.keys() == {place.url for place in places}
        expect_answers_of(engine, policy)
        lost = engine._fleet.servers[1]

        async def load(bucket, *arguments, ask=lost.load):
            if bucket.number == 2:
                places[1].kill()
            await ask(bucket, *arguments)

        lost.load = load
        change(policy, 7)
        report = engine.publish(policy.version, weights_of(policy))
        assert (report.server_s.keys(), report.num_unfit) == ({places[0].url}, 1)
        expect_answers_of(engine, policy)
    finally:
        engine.close()


def test_a_server_that_comes_back_with_old_weights_gets_the_published_ones_and_carries_on_alone(places):
    policy = player()
    engines = open_engines([policy], places)
    engine = engines[policy.policy_id]
    try:
        change(policy, 5)
        engine.publish(policy.version, weights_of(policy))  # the second server is still away
        places[1].start_again()
        wait_until_fit(engine, places[1])
        counts = kill_at_request(engine, places[0], 6)
        rollout = collect(engines, {"*": policy.policy_id})
        assert (len(rollout.episodes), rollout.failed) == (12, ())
        assert min(counts) > 5
        expect_answers_of(engine, policy)
    finally:
        close_all(engines)


def test_a_server_keeps_every_promise_of_an_engine(places):
    policy = conformance_policy()
    report = check_engine(lambda: open_engines([policy], places[1:])[policy.policy_id], policy)
    report.require()
    assert documented("`ServedEngine`") == found(report)
