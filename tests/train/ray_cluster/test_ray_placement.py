"""Which places a recipe needs, and what is said where a cluster lacks them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError
from srpo_train.cluster.placement import Fit, Group, Node, fit, plan_groups
from srpo_train.config import load_recipe

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"


def recipe(*overrides):
    return load_recipe(RECIPE, overrides)


def group(kind="rank", count=1, cpus=1.0, gpus=0, strategy="PACK", policy_ids=()):
    return Group(kind=kind, count=count, cpus=cpus, gpus=gpus, strategy=strategy, policy_ids=policy_ids)


def node(name, cpus, gpus=0):
    return Node(name=name, cpus=cpus, gpus=gpus)


def test_a_recipe_without_the_section_needs_two_cores():
    assert plan_groups(recipe()) == (group(), group("environments", strategy="SPREAD"))


def test_places_follow_the_section():
    overrides = ["num_ranks=8", "gpus_per_rank=1", "cpus_per_rank=4", "strategy=STRICT_PACK", "num_env_workers=0"]
    overrides += ["engines_per_policy=2", "gpus_per_engine=2"]
    assert plan_groups(recipe(*(f"ray.{text}" for text in overrides))) == (
        group(count=8, cpus=4.0, gpus=1, strategy="STRICT_PACK"),
        group("engine", count=2, gpus=2, policy_ids=("team",)),
    )
    assert group("engine", gpus=2, policy_ids=("team",)).bundles == [{"CPU": 1.0, "GPU": 2.0}]
    assert group("engine", policy_ids=("team",)).seat(3) == "engine of team 3"


SEVERAL = (
    "policies={a={model='m',adapter={rank=4}},b={model='m',adapter={rank=8}},c={model='m',trainable=false},"
    "d={model='m'},e={model='n',trainable=false}}",
    "roles={router='a',solver='b',verifier='c',aggregator='d','*'='e'}",
    "ray.engines_per_policy=1",
)


def test_adapters_over_one_model_share_servers_and_copies_do_not():
    served = plan_groups(recipe(*SEVERAL, "engine.kind=served", "engine.served={}"))
    assert [group.policy_ids for group in served[1:-1]] == [("a", "b", "c"), ("d",), ("e",)]
    copies = plan_groups(recipe(*SEVERAL))
    assert [group.policy_ids for group in copies[1:-1]] == [("a",), ("b",), ("c",), ("d",), ("e",)]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["engine.kind=vllm"], 'use "served" with'),
        (["ray.engines_per_policy=1", "rollout.mode=asynchronous"], "sample whole batches"),
    ],
)
def test_engines_that_cannot_be_apart_are_refused(overrides, complaint):
    with pytest.raises(ConfigError, match=complaint):
        plan_groups(recipe(*overrides))


def test_a_cluster_that_is_large_enough_lacks_nothing():
    groups = [group(count=2), group("environments", count=3, cpus=0.5, strategy="SPREAD")]
    layout = fit(groups, [node("a", 2), node("b", 2)])
    assert layout == Fit(nodes=(("a", "a"), ("b", "b", "b")), missing=())


def test_spread_places_take_turns():
    layout = fit([group(count=4, strategy="SPREAD")], [node("a", 4), node("b", 4)])
    assert sorted(layout.nodes[0]) == ["a", "a", "b", "b"]


def test_gpu_places_come_first_and_leave_their_cores():
    groups = [group("environments", count=1, cpus=4), group(count=1, cpus=1, gpus=1)]
    layout = fit(groups, [node("gpu", 4, 1), node("cpu", 4)])
    assert layout.nodes == (("cpu",), ("gpu",))


def test_what_is_missing_is_named():
    assert fit([group(count=4, cpus=2, gpus=1)], [node("a", 16, 2)]).missing == (
        "rank: no room for 2 of 4 places of 2 CPU and 1 GPU; 4 CPU and 2 GPU are missing (a has 12 CPU left)",
    )
    too_small = fit([group("engine", cpus=1, gpus=8, policy_ids=("team",))], [node("a", 16, 4), node("b", 16, 4)])
    assert "no machine of the cluster is as large as one place" in too_small.missing[0]
    assert "engine of team: no room for 1 of 1 places of 1 CPU and 8 GPU" in too_small.missing[0]
    strict = fit([group(count=3, cpus=1, strategy="STRICT_PACK")], [node("a", 2), node("b", 2)])
    assert "no machine has room for all 3 places" in strict.missing[0]
    assert fit([group()], []).missing[0].endswith("(it has no machine)")


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.integers(0, 2)), max_size=5),
    machines=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=4),
    strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK"]),
)
def test_no_machine_is_ever_given_more_than_it_has(sizes, machines, strategy):
    groups = [group(count=count, cpus=cpus, gpus=gpus, strategy=strategy) for count, cpus, gpus in sizes]
    nodes = [node(str(number), cpus, gpus) for number, (cpus, gpus) in enumerate(machines)]
    layout = fit(groups, nodes)
    for machine in nodes:
        placed = [g for g, names in zip(groups, layout.nodes, strict=True) for name in names if name == machine.name]
        assert sum(g.cpus for g in placed) <= machine.cpus
        assert sum(g.gpus for g in placed) <= machine.gpus
    complete = [len(names) == g.count for g, names in zip(groups, layout.nodes, strict=True)]
    assert len(layout.missing) == complete.count(False)


def test_servers_come_from_the_recipe_or_from_ray():
    by_name = ["engine.kind=served", "engine.served.servers={team=['http://a:1']}"]
    with pytest.raises(ConfigError, match="leave one of them out"):
        recipe(*by_name, "ray.engines_per_policy=1")
    with pytest.raises(ConfigError, match="only one has 'team'"):
        recipe("engine.kind=served", "engine.served={}")
    with pytest.raises(ConfigError, match="set engines_per_policy"):
        recipe("ray.gpus_per_engine=1")
