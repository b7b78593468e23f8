"""vLLM servers as an engine, against small ones on this machine that fail in every way that was thought of."""

from __future__ import annotations

import copy
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from fake_vllm import FakeVllm  # noqa: E402
from json_server import Answer  # noqa: E402

from srpo_envs.errors import ConfigError, EngineError  # noqa: E402
from srpo_train.engines.base import GenerationRequest, Sampling  # noqa: E402
from srpo_train.engines.conformance import check_engine  # noqa: E402
from srpo_train.engines.conformance_checks import (  # noqa: E402
    CHECKS,
    crowd,
    cut_character,
    empty,
    ends,
    limits,
    stop_texts,
)
from srpo_train.engines.conformance_policy import conformance_policy  # noqa: E402
from srpo_train.engines.served import ServedEngine  # noqa: E402
from srpo_train.engines.transformers import TransformersEngine  # noqa: E402
from srpo_train.policies import Policy  # noqa: E402

GENERATE = "/inference/v1/generate"


def request(prompt="abc", *, name="ep/e0/0", limit=8, seed=7, stop=()):
    return GenerationRequest(request_id=name, prompt=prompt, max_new_tokens=limit, seed=seed, stop=stop)


def requests(number, prompt="abc", **settings):
    return [request(prompt, name=f"r{index}", seed=index, **settings) for index in range(number)]


@pytest.fixture
def policy(tiny_policy):
    """A policy whose weights a test may change."""
    return Policy(policy_id="team", model=copy.deepcopy(tiny_policy.model), tokenizer=tiny_policy.tokenizer)


@pytest.fixture
def served(policy, tmp_path):
    """Start servers with the policy's weights and an engine that asks them."""
    opened = []

    def serve(num_servers=1, *, max_model_len=128, **settings):
        servers = [FakeVllm(policy, max_model_len=max_model_len) for _ in range(num_servers)]
        defaults = {"weights_dir": tmp_path, "timeout_s": 10.0, "outage_s": 10.0, "probe_s": 0.02}
        engine = ServedEngine(policy, [server.url for server in servers], **{**defaults, **settings})
        opened.extend([engine, *servers])
        return engine, *servers

    yield serve
    for thing in opened:
        (thing.stop if isinstance(thing, FakeVllm) else thing.close)()


def answer(engine, *asked, sampling=None):
    return engine.generate(list(asked) or [request()], sampling or Sampling())


def change(policy, amount=0.3, seed=0):
    """Move the weights, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator))
    policy.version += 1


def publish(engine, policy):
    engine.publish(policy.version, policy.model.state_dict().items())


def wait_until(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


# --- the contract -------------------------------------------------------------------------------------------------


def test_it_answers_as_the_engine_in_this_process_does(served, policy):
    engine, _ = served()
    asked = [
        *requests(6),
        request("0123", name="stop", limit=40, stop=("</a>", "b>")),
        request("é… ?", name="cut", limit=3),
        request("abc", name="long", limit=60, seed=99),
    ]
    ours = {generation.request_id: generation for generation in answer(engine, *asked)}
    for expected in TransformersEngine(policy).generate(asked, Sampling()):
        got = ours[expected.request_id]
        assert (got.text, got.token_ids, got.finish_reason) == (
            expected.text,
            expected.token_ids,
            expected.finish_reason,
        )
        assert got.prompt_token_ids == expected.prompt_token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert got.policy_version == 0


def test_what_servers_are_asked(served, policy):
    engine, server = served()
    answer(engine, request(seed=2**63 + 5, stop=("b>",)), sampling=Sampling(temperature=0.5, top_p=0.9, top_k=4))
    (asked,) = [asked for asked in server.asked if asked.path == GENERATE]
    assert asked.body == {
        "token_ids": list(policy.encode_prompt("abc")),
        "sampling_params": {
            "max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 5, "stop": ["b>"],
            "stop_token_ids": list(policy.eos_ids), "ignore_eos": True, "logprobs": 0, "detokenize": True,
        },
    }  # fmt: skip


def test_a_prompt_beyond_the_context_is_hopeless_and_is_not_sent(served):
    engine, server = served()
    (generation,) = answer(engine, request("0+" * 80))
    assert (generation.finish_reason, generation.is_hopeless, generation.token_ids) == ("abort", True, ())
    assert "the context of policy 'team' holds 128" in generation.abort_reason
    assert server.prompts() == []


def test_the_context_of_the_server_counts_where_it_is_smaller(served, policy):
    num_tokens = len(policy.encode_prompt("abc"))
    engine, _ = served(max_model_len=num_tokens + 2)
    (generation,) = answer(engine, request(limit=30, seed=99))
    assert (generation.finish_reason, len(generation.token_ids)) == ("length", 2)


def test_what_tokens_were_drawn_from_is_asked_for_and_read(served, policy):
    engine, server = served()
    publish(engine, policy)
    sampling = Sampling(top_k=3, top_p=0.9, with_kept=True)
    asked = requests(4)
    expected = TransformersEngine(policy).generate(asked, sampling)
    for got, wanted in zip(answer(engine, *asked, sampling=sampling), expected, strict=True):
        assert (got.token_ids, got.kept_token_ids) == (wanted.token_ids, wanted.kept_token_ids)
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
    assert {body.body["sampling_params"]["logprobs"] for body in server.asked if body.path == GENERATE} == {3}


def test_answers_come_one_by_one(served):
    engine, server = served()
    answer(engine)
    server.planned[GENERATE] = [Answer(None, delay_s=0.3)]
    engine.submit([request(name="slow")], Sampling())
    wait_until(lambda: not server.planned[GENERATE])
    engine.submit([request(name="fast")], Sampling())
    assert [generation.request_id for generation in engine.poll(60.0)] == ["fast"]
    assert [generation.request_id for generation in engine.poll(60.0)] == ["slow"]


def test_a_cancelled_request_never_comes_and_its_name_is_free_again(served):
    engine, server = served()
    answer(engine)
    server.delay_s = 0.2
    engine.submit(requests(2), Sampling())
    wait_until(lambda: len(server.prompts()) == 3)
    engine.cancel(["r0", "r1"])
    assert engine.poll(60.0) == []
    server.delay_s = 0.0
    engine.submit(requests(1), Sampling())
    assert [generation.request_id for generation in engine.poll(60.0)] == ["r0"]


def test_it_keeps_the_promises_of_the_conformance_suite():
    # Those that depend on the engine; what the server samples is tried out on a real one.
    policy = conformance_policy()
    sampled = {stop_texts, empty, limits, crowd, ends, cut_character}
    checks = [check for check in CHECKS if check not in sampled]
    servers = [FakeVllm(policy, max_model_len=policy.context_length) for _ in range(2)]
    try:
        urls = [server.url for server in servers]
        check_engine(lambda: ServedEngine(policy, urls), policy, checks=checks).require()
    finally:
        for server in servers:
            server.stop()


# --- who gets what ------------------------------------------------------------------------------------------------


def test_requests_of_one_prompt_go_to_one_server_and_prompts_are_spread(served, policy):
    engine, *servers = served(3)
    answer(engine, *(request(prompt, name=f"{prompt}/{index}") for prompt in ("a", "b", "c") for index in range(5)))
    owners = [set(server.prompts()) for server in servers]
    assert [len(prompts) for prompts in owners] == [1, 1, 1]
    answer(engine, *(request(prompt, name=prompt) for prompt in ("c", "b", "a")))
    assert [set(server.prompts()) for server in servers] == owners


# --- new weights --------------------------------------------------------------------------------------------------


def test_published_weights_answer_and_their_version_stands_on_every_generation(served, policy):
    engine, *servers = served(2)
    greedy = Sampling(temperature=0)
    asked = [request(prompt, name=prompt, limit=12) for prompt in ("a", "b", "c", "d")]
    before = answer(engine, *asked, sampling=greedy)
    change(policy)
    publish(engine, policy)
    after = answer(engine, *asked, sampling=greedy)
    expected = TransformersEngine(policy).generate(asked, greedy)
    assert [g.token_ids for g in after] == [g.token_ids for g in expected] != [g.token_ids for g in before]
    assert {g.policy_version for g in after} == {1} == {engine.published_version}
    assert all(server.prompts() and server.label.startswith("1-") and not server.is_paused for server in servers)


def test_the_folder_holds_the_newest_weights_only_and_nothing_at_the_end(served, policy, tmp_path):
    engine, _ = served()
    for _ in range(3):
        change(policy)
        publish(engine, policy)
    (folder,) = tmp_path.iterdir()
    assert [path.name.split("-")[0] for path in folder.iterdir()] == ["3"]
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_move_nothing(served, policy):
    engine, server = served()
    weights = dict(policy.model.state_dict())
    del weights["lm_head.weight"]
    with pytest.raises(EngineError, match=r"1 missing: 'lm_head.weight'.*nothing has moved"):
        engine.publish(1, weights.items())
    assert server.pushes() == 0
    assert answer(engine)[0].policy_version == 0


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/update_weight_version", "mark the weights as unfinished"),
        ("/pause", "pause"),
        ("/start_weight_update", "begin an update"),
        ("/update_weights", "load bucket 0 .* of 1"),
        ("/finish_weight_update", "finish the update"),
        ("/reset_prefix_cache", "clear the prefix cache"),
        ("/resume", "resume"),
    ],
)
def test_a_push_that_fails_names_server_and_step(served, policy, path, step):
    engine, good, bad = served(2)
    change(policy)
    bad.planned[path] = [Answer({"error": {"message": "out of memory"}}, status=500)] * 99
    with pytest.raises(
        EngineError, match=rf"publishing version 1 failed: {bad.url}: could not {step}: status 500: out of"
    ):
        publish(engine, policy)
    assert good.label.startswith("1-")
    assert bad.label in ("default", "unfinished")
    assert {g.policy_version for g in answer(engine, *requests(4))} == {1}
    assert bad.prompts() == []


def test_a_prefix_cache_that_is_not_cleared_fails_the_push(served, policy):
    engine, server = served()
    server.planned["/reset_prefix_cache"] = [Answer({"success": False})]
    with pytest.raises(EngineError, match="could not clear the prefix cache"):
        publish(engine, policy)


def test_a_server_that_does_not_take_the_name_fails_the_push(served, policy):
    engine, server = served()
    server.planned["/weight_info"] = [Answer({"weight_version": "default"})] * 9
    with pytest.raises(EngineError, match="it has the weights 'default' after"):
        publish(engine, policy)


def test_a_push_that_hangs_ends_in_time_and_names_server_and_step(served, policy):
    engine, _, stuck = served(2, publish_timeout_s=5.0)
    stuck.planned["/update_weights"] = [Answer(delay_s=120.0)]
    begun = time.monotonic()
    with pytest.raises(
        EngineError, match=rf"{stuck.url}: could not load bucket 0 \('.*'\) of 1: no answer within \d\.\d s"
    ):
        publish(engine, policy)
    assert time.monotonic() - begun < 60.0


def test_requests_under_way_are_given_up_when_weights_are_published(served, policy):
    engine, server = served()
    answer(engine)
    server.delay_s = 0.3
    engine.submit(requests(3), Sampling())
    wait_until(lambda: len(server.prompts()) == 4)
    change(policy)
    publish(engine, policy)
    server.delay_s = 0.0
    came = engine.poll(0.0)
    assert len(came) == 3
    assert {(g.finish_reason, g.is_hopeless) for g in came} == {("abort", False)}
    assert {generation.abort_reason for generation in came} == {"version 1 was published in the middle of it"}
    engine.submit(requests(3), Sampling())
    assert engine.poll(60.0)[0].policy_version == 1


def test_a_run_that_goes_on_publishes_under_its_own_number(served, policy):
    engine, _ = served()
    engine.publish(40, policy.model.state_dict().items())
    assert answer(engine)[0].policy_version == 40


# --- servers that go and come back --------------------------------------------------------------------------------


def test_requests_of_a_lost_server_go_to_the_others(served):
    engine, kept, lost = served(2)
    answer(engine, *(request(prompt, name=prompt) for prompt in "abcdefgh"))
    assert kept.prompts()
    assert lost.prompts()
    kept.delay_s = lost.delay_s = 0.2
    engine.submit([request(prompt, name=prompt) for prompt in "abcdefgh"], Sampling())
    wait_until(lambda: len(lost.prompts()) == 8)
    lost.stop()
    came = []
    while len(came) < 8:
        came += engine.poll(60.0)
    assert {generation.request_id for generation in came} == set("abcdefgh")
    assert {generation.finish_reason for generation in came} <= {"stop", "length"}


def test_a_server_that_comes_back_with_old_weights_gets_the_published_ones_first(served, policy):
    engine, server = served()
    change(policy)
    publish(engine, policy)
    server.restart()
    assert server.label == "default"
    (generation,) = answer(engine, request(limit=12), sampling=Sampling(temperature=0))
    (expected,) = TransformersEngine(policy).generate([request(limit=12)], Sampling(temperature=0))
    assert (generation.token_ids, generation.policy_version) == (expected.token_ids, 1)
    assert server.pushes() == 2
    assert server.label.startswith("1-")


def test_a_lost_server_gets_requests_again_once_it_has_the_weights(served, policy):
    engine, kept, lost = served(2)
    answer(engine, *(request(prompt, name=prompt) for prompt in "ab"))
    lost.stop()
    change(policy)
    publish(engine, policy)
    assert {g.policy_version for g in answer(engine, *(request(prompt, name=prompt) for prompt in "abcd"))} == {1}
    before = len(lost.prompts())
    lost.restart()
    wait_until(lambda: lost.label.startswith("1-"))
    wait_until(lambda: not engine._fleet.servers[1].trouble)
    answer(engine, *(request(prompt, name=prompt) for prompt in "efgh"))
    assert len(lost.prompts()) > before
    assert kept.prompts()


def test_weights_of_an_earlier_run_with_the_same_number_are_not_taken_for_ours(served, policy):
    engine, kept, other = served(2)
    change(policy)
    other.stop()
    publish(engine, policy)
    other.start()
    other.label = "1-0badcafe"
    wait_until(lambda: not engine._fleet.servers[1].trouble)
    assert other.label == kept.label


def test_without_servers_requests_wait_and_then_the_engine_has_failed(served):
    engine, first, second = served(2, outage_s=0.5)
    first.stop()
    second.stop()
    with pytest.raises(EngineError) as error:
        answer(engine)
    assert "no server was fit for 0.5 s" in str(error.value)
    assert first.url in str(error.value)
    assert second.url in str(error.value)


def test_an_outage_that_ends_in_time_is_only_a_pause(served):
    engine, server = served()
    answer(engine)
    server.stop()
    threading.Timer(0.3, server.start).start()
    assert answer(engine)[0].finish_reason in ("stop", "length")


def test_weights_can_be_published_to_servers_that_are_still_starting(served, policy):
    engine, server = served()
    server.stop()
    threading.Timer(0.3, server.start).start()
    change(policy)
    publish(engine, policy)
    assert server.label.startswith("1-")


def test_publishing_to_nobody_fails(served, policy):
    engine, server = served(outage_s=0.3)
    server.stop()
    with pytest.raises(EngineError, match="no server was fit"):
        publish(engine, policy)


def test_weights_that_others_left_are_refused_until_ours_are_published(served, policy):
    engine, server = served(outage_s=0.3)
    server.label = "unfinished"
    with pytest.raises(EngineError, match="it has the weights 'unfinished'; restart it, or publish first"):
        answer(engine)
    publish(engine, policy)
    assert answer(engine)[0].finish_reason in ("stop", "length")


def test_a_response_of_other_weights_is_refused_even_if_nobody_noticed_the_change(served, policy):
    engine, server = served(max_retries=0)
    answer(engine)
    server.label = "somebody else's"
    (generation,) = answer(engine)
    assert (generation.finish_reason, generation.token_ids) == ("abort", ())
    assert """sampled with the weights ["somebody else's"], not 'default\'""" in generation.abort_reason


# --- answers that are of no use -----------------------------------------------------------------------------------

GOOD = {
    "index": 0,
    "finish_reason": "stop",
    "token_ids": [1],
    "logprobs": {"content": [{"token_id": 1, "logprob": -0.5}]},
    "weight_versions": [{"version": "default", "start": 0, "end": 1}],
}


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(status=500),
        Answer(status=503),
        Answer("<html>"),
        Answer({}),
        Answer({"choices": []}),
        Answer({"choices": [{**GOOD, "logprobs": None}]}),
        Answer({"choices": [{**GOOD, "token_ids": [1, 2]}]}),
        Answer({"choices": [{**GOOD, "token_ids": [2]}]}),
        Answer({"choices": [{**GOOD, "finish_reason": "abort"}]}),
        Answer({"choices": [{**GOOD, "weight_versions": None}]}),
        Answer({"choices": [{**GOOD, "weight_versions": [{"version": "0"}, {"version": "default"}]}]}),
    ],
)
def test_trouble_is_tried_again_and_given_up_in_the_end(served, trouble):
    engine, server = served(max_retries=2)
    server.planned[GENERATE] = [trouble, trouble]
    assert answer(engine)[0].finish_reason in ("stop", "length")
    server.planned[GENERATE] = [trouble] * 3
    (generation,) = answer(engine)
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", False)
    assert generation.abort_reason.startswith(f"after 3 tries: {server.url}: ")


def test_a_response_that_takes_too_long_is_tried_elsewhere(served):
    engine, first, second = served(2, timeout_s=2.0)
    first.planned[GENERATE] = [Answer(delay_s=120.0)]
    second.planned[GENERATE] = []
    assert answer(engine)[0].finish_reason in ("stop", "length")


def test_a_refused_request_is_hopeless(served):
    engine, server = served()
    server.planned[GENERATE] = [Answer({"error": {"message": "Token id 5000 is out of vocabulary"}}, status=400)]
    (generation,) = answer(engine)
    assert (generation.finish_reason, generation.is_hopeless) == ("abort", True)
    assert "out of vocabulary" in generation.abort_reason


def test_a_server_without_the_endpoint_fails_the_engine(served):
    engine, server = served()
    server.planned[GENERATE] = [Answer({"error": {"message": "Scale-out endpoints are disabled."}}, status=403)]
    with pytest.raises(EngineError, match=r"refuses to work: .*Scale-out.*srpo serve-policy"):
        answer(engine)


def test_a_server_without_development_endpoints_says_how_to_start_it(served):
    engine, server = served(outage_s=0.2)
    server.planned["/weight_info"] = [Answer({"detail": "Not Found"}, status=404)] * 99
    with pytest.raises(
        EngineError, match=r"could not ask for its weights: status 404: Not Found; start it with `srpo serve"
    ):
        answer(engine)


@pytest.mark.parametrize("logprob", [-9999.0, float("nan")])
def test_logits_that_are_no_numbers_fail_the_engine(served, logprob):
    engine, server = served()
    content = [{"token_id": 1, "logprob": logprob}]
    server.planned[GENERATE] = [Answer({"choices": [{**GOOD, "logprobs": {"content": content}}]})]
    with pytest.raises(EngineError, match="logits are not finite"):
        answer(engine)


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", [[], ["http://a", "http://a"], ["nowhere"]])
def test_servers_that_mean_nothing_are_refused(policy, urls):
    with pytest.raises(ConfigError):
        ServedEngine(policy, urls)


def test_it_can_be_closed_twice_and_leaves_the_servers_alone(served):
    engine, server = served()
    answer(engine)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        answer(engine)
    assert server.label == "default"


# --- a whole rollout ----------------------------------------------------------------------------------------------


def test_episodes_survive_the_loss_of_a_server(served, policy):
    import srpo_envs
    from srpo_train.collect import Collector, EpisodeJob

    engine, first, second = served(2, max_model_len=4096)
    policy.model.config.max_position_embeddings = 4096
    collector = Collector(
        lambda: srpo_envs.make("ArithmeticSolverVerifier-v0", max_new_tokens=4), {"team": engine}, {"*": "team"}
    )
    jobs = [EpisodeJob(episode_id=f"e{n}", group_id=f"g{n // 2}", task_index=n // 2, env_seed=n) for n in range(6)]
    first.delay_s = second.delay_s = 0.02
    threading.Timer(0.5, second.stop).start()
    try:
        rollout = collector.collect(jobs, Sampling())
    finally:
        collector.close()
    assert len(rollout.episodes) == 6
    assert rollout.failed == ()


# --- a server that comes back elsewhere ---------------------------------------------------------------------------


def test_a_server_under_a_new_address_is_given_the_published_weights_before_it_is_asked(policy, served):
    engine, first = served()
    change(policy)
    publish(engine, policy)
    expected = answer(engine, *requests(4))
    first.stop()
    moved = FakeVllm(policy)
    try:
        engine.move_server(first.url, moved.url)
        assert [found.token_ids for found in answer(engine, *requests(4))] == [found.token_ids for found in expected]
        assert moved.pushes() == 1
        change(policy, seed=1)
        publish(engine, policy)
        assert moved.pushes() == 2
    finally:
        moved.stop()


def test_requests_under_way_at_a_server_that_is_replaced_are_made_elsewhere_at_once(policy, served):
    """A machine that is gone without a word breaks no connection: nothing but the news ends the wait."""
    engine, silent = served(timeout_s=3600.0)
    change(policy)
    publish(engine, policy)
    expected = [found.token_ids for found in answer(engine, *requests(4))]
    silent.holds = threading.Event()
    num_before = len(silent.prompts())
    engine.submit(requests(4), Sampling())
    while len(silent.prompts()) < num_before + 4:
        time.sleep(0.001)
    moved = FakeVllm(policy)
    try:
        engine.move_server(silent.url, moved.url)
        found = {}
        while len(found) < 4:
            found |= {generation.request_id: generation.token_ids for generation in engine.poll(1.0)}
        assert [found[request.request_id] for request in requests(4)] == expected
        assert len(moved.prompts()) == 4
    finally:
        silent.holds.set()
        moved.stop()
