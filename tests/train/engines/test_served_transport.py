"""New weights on their way to several servers: what arrives, and what happens when somebody drops out."""

from __future__ import annotations

import asyncio
import copy
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from fake_vllm import FakeVllm  # noqa: E402
from json_server import Answer  # noqa: E402

from srpo_envs.errors import ConfigError, EngineError  # noqa: E402
from srpo_train.engines.base import GenerationRequest, Sampling  # noqa: E402
from srpo_train.engines.buckets import images, plan_buckets, tensors_in  # noqa: E402
from srpo_train.engines.publishing import push_metrics, specs_of, weights_of  # noqa: E402
from srpo_train.engines.served import ServedEngine  # noqa: E402
from srpo_train.engines.served_weights import WeightFolder  # noqa: E402
from srpo_train.engines.transformers import TransformersEngine  # noqa: E402
from srpo_train.engines.weight_stream import WeightStream  # noqa: E402
from srpo_train.policies import Policy  # noqa: E402

BUCKET_BYTES = 8_003
"""An odd size that cuts the tiny policy into several buckets."""
GREEDY = Sampling(temperature=0)
both = pytest.mark.parametrize("transport", ["file", "gloo"])


@pytest.fixture
def policy(tiny_policy):
    """A policy whose weights a test may change."""
    return Policy(policy_id="team", model=copy.deepcopy(tiny_policy.model), tokenizer=tiny_policy.tokenizer)


@pytest.fixture
def serve(policy, tmp_path):
    opened = []

    def start(num_servers, transport, **settings):
        servers = [FakeVllm(policy) for _ in range(num_servers)]
        opened.extend(server.stop for server in servers)
        defaults = {"bucket_bytes": BUCKET_BYTES, "outage_s": 20.0, "probe_s": 0.02, "publish_timeout_s": 20.0}
        engine = ServedEngine(
            policy,
            [server.url for server in servers],
            transport=transport,
            weights_dir=tmp_path / "weights",
            **{**defaults, **settings},
        )
        opened.insert(0, engine.close)
        return engine, *servers

    yield start
    for close in opened:
        close()


def change(policy, seed=0):
    """Move the weights, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1


def publish(engine, policy):
    return engine.publish(policy.version, weights_of(policy))


def has(server, policy) -> bool:
    """Whether a server has the policy's weights, bit for bit, and says so."""
    held = server.policy.model.state_dict()
    same = all(held[name].equal(tensor) for name, tensor in policy.model.state_dict().items())
    return same and server.label.startswith(f"{policy.version}-")


def at_bucket(server, number, act):
    """Let a server answer once with what `act` returns when it is given a bucket."""
    answer, done = server.answer, []

    def reply(asked):
        if asked.path == "/update_weights" and asked.body["update_info"]["number"] == number and not done:
            done.append(True)
            return act()
        return answer(asked)

    server.answer = reply


def hang_up(server):
    """End a server in the middle of a request, as a crash does."""

    def act():
        server._receiver.leave()
        threading.Thread(target=server.stop).start()
        return Answer(None)

    return act


def wait_until(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


# --- what arrives -------------------------------------------------------------------------------------------------


@both
def test_all_servers_get_every_tensor_bit_for_bit_version_after_version(serve, policy, transport):
    engine, *servers = serve(3, transport)
    for seed in (1, 2):
        change(policy, seed)
        report = publish(engine, policy)
        assert all(has(server, policy) for server in servers)
    state = policy.model.state_dict()
    plan = plan_buckets(specs_of(state), BUCKET_BYTES)
    assert len(plan) > 3
    assert {tuple(server.buckets()) for server in servers} == {tuple(range(len(plan))) * 2}
    assert (report.num_buckets, report.num_unfit) == (len(plan), 0)
    assert report.num_bytes == sum(bucket.num_bytes for bucket in plan)
    assert report.server_s.keys() == {server.url for server in servers}
    metrics = push_metrics([report])
    assert metrics["publish/bytes"] == report.num_bytes
    assert 0 < metrics["publish/slowest_s"] == max(report.server_s.values()) <= metrics["publish/seconds"]
    asked = [GenerationRequest(request_id=f"r{n}", prompt="abc"[n], max_new_tokens=8, seed=n) for n in range(3)]
    answers = engine.generate(asked, GREEDY)
    assert [a.token_ids for a in answers] == [a.token_ids for a in TransformersEngine(policy).generate(asked, GREEDY)]
    assert {answer.policy_version for answer in answers} == {2}


@both
def test_the_folder_holds_the_newest_version_only(serve, policy, transport, tmp_path):
    engine, _ = serve(1, transport)
    for seed in (1, 2):
        change(policy, seed)
        publish(engine, policy)
    (own,) = (tmp_path / "weights").iterdir()
    (version,) = own.iterdir()
    assert version.name.startswith("2-")
    engine.close()
    assert not own.exists()


@both
def test_a_bucket_is_put_together_while_the_one_before_is_with_the_servers(serve, policy, transport):
    engine, server = serve(1, transport)
    change(policy)
    state = policy.model.state_dict()
    plan = plan_buckets(specs_of(state), BUCKET_BYTES)
    last = list(plan[-1].specs)[-1]
    seen = []

    def whole(name):
        if name == last:  # the last one is not there yet, and the first is
            wait_until(lambda: server.buckets())
            seen.append(True)
        return state[name]

    engine.publish(policy.version, WeightStream(specs_of(state), whole))
    assert seen
    assert has(server, policy)


# --- who drops out ------------------------------------------------------------------------------------------------


@both
def test_a_server_that_dies_in_the_middle_is_set_aside_and_gets_them_when_it_is_back(serve, policy, transport):
    engine, lost, second, third = serve(3, transport)  # in the group's tree the third one waits for the first
    change(policy)
    at_bucket(lost, 1, hang_up(lost))
    report = publish(engine, policy)
    assert has(second, policy)
    assert has(third, policy)
    assert lost.label == "unfinished"
    assert report.server_s.keys() == {second.url, third.url}
    assert report.num_unfit == 1
    wait_until(lambda: lost._server is None)
    lost.restart()
    wait_until(lambda: not engine._fleet.servers[0].trouble)
    assert has(lost, policy)


@both
def test_a_server_that_comes_late_gets_the_newest_version(serve, policy, transport):
    engine, first, late = serve(2, transport)
    late.stop()
    for seed in (1, 2):
        change(policy, seed)
        publish(engine, policy)
    late.start()
    wait_until(lambda: not engine._fleet.servers[1].trouble)
    assert has(late, policy)
    assert first.pushes() == 2
    assert late.pushes() == 1


@both
def test_a_server_that_hangs_is_named_with_bucket_and_rank_in_time_and_the_others_go_on(serve, policy, transport):
    engine, stuck, second, third = serve(3, transport, publish_timeout_s=4.0)
    change(policy)
    at_bucket(stuck, 1, lambda: Answer(delay_s=120.0))
    begun = time.monotonic()
    where = r"rank 0 at 'model.*' \(\d+ of \d+ tensors\)" if transport == "file" else r"rank 1 loads bucket 0"
    with pytest.raises(EngineError, match=rf"{stuck.url}: could not load bucket 1 \('model.*\) of \d+: no .*{where}"):
        publish(engine, policy)
    assert time.monotonic() - begun < 60.0
    assert has(second, policy)
    assert has(third, policy)
    assert stuck.label == "unfinished"


@both
def test_tensors_that_do_not_fit_into_a_server_are_named_and_the_others_go_on(serve, policy, transport):
    engine, good, bad = serve(2, transport)
    change(policy)
    load = bad._receiver._load

    def refuse(weights):
        for name, tensor in weights:
            if "layers.1." in name:
                raise ValueError(f"{name} is [1] here")
            load([(name, tensor)])

    bad._receiver._load = refuse
    with pytest.raises(
        EngineError, match=rf"{bad.url}: could not load bucket .*rank 0 at 'model.layers.1..* is \[1\] here"
    ):
        publish(engine, policy)
    assert has(good, policy)
    assert bad.label == "unfinished"


@both
def test_an_update_that_somebody_left_behind_is_given_up_first(serve, policy, transport):
    engine, server = serve(1, transport)
    server._is_updating = True
    change(policy)
    publish(engine, policy)
    assert has(server, policy)


@both
def test_weights_that_cannot_be_put_together_leave_servers_unfinished_and_the_next_ones_repair_that(
    serve, policy, transport
):
    engine, server = serve(1, transport, publish_timeout_s=20.0)
    change(policy)
    state = policy.model.state_dict()

    def whole(name):
        if "layers.1." in name:
            wait_until(lambda: server.buckets())
            raise RuntimeError("a rank was lost")
        return state[name]

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="a rank was lost"):
        engine.publish(policy.version, WeightStream(specs_of(state), whole))
    assert time.monotonic() - begun < 10.0
    assert server.label == "unfinished"
    change(policy, 5)
    publish(engine, policy)
    assert has(server, policy)


def test_a_stream_of_other_shapes_is_refused_before_anything_moves(serve, policy):
    engine, server = serve(1, "file")
    specs = specs_of(policy.model.state_dict())
    name = list(specs)[3]
    specs[name] = specs[next(iter(specs))]
    with pytest.raises(EngineError, match=rf"'{name}' is .*expected .*nothing has moved"):
        engine.publish(1, WeightStream(specs, lambda name: pytest.fail("put together")))
    assert server.buckets() == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_is_refused(serve):
    with pytest.raises(ConfigError, match='"nccl" needs a GPU'):
        serve(1, "nccl")


# --- the folder ---------------------------------------------------------------------------------------------------


def test_readers_follow_a_folder_that_is_being_written_and_come_late(tmp_path):
    state = {name: torch.full((4,), float(number)) for number, name in enumerate("abc")}
    stream = WeightStream(specs_of(state), state.__getitem__)
    folder = WeightFolder(tmp_path / "v1", plan_buckets(stream.specs, 16))

    async def read():
        return [tensors_in(await folder.image(bucket)) for bucket in folder.buckets]

    async def follow():
        early = asyncio.create_task(read())
        for image in images(folder.buckets, stream):
            await asyncio.sleep(0)
            await folder.add(image)
        return await early, await read()

    early, late = asyncio.run(follow())
    assert [list(tensors) for tensors in early] == [["a"], ["b"], ["c"]]
    assert [tensors[name].tolist() for tensors in late for name in tensors] == [t.tolist() for t in state.values()]
    assert not list(tmp_path.rglob("*.partial"))


def test_readers_of_what_will_never_come_are_told(tmp_path):
    folder = WeightFolder(tmp_path / "v1", plan_buckets(specs_of({"a": torch.zeros(1)}), 16))

    async def follow():
        reading = asyncio.create_task(folder.path(folder.buckets[0]))
        await asyncio.sleep(0)
        await folder.end()
        await reading

    with pytest.raises(LookupError, match="gave up"):
        asyncio.run(follow())
