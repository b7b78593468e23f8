"""Which server gets a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError
from srpo_train.engines.routing import PrefixRouter


def test_a_known_prompt_goes_where_it_was():
    router = PrefixRouter()
    assert router.pick("p", {"a": 1, "b": 0}) == "b"
    assert router.pick("p", {"a": 0, "b": 9}) == "b"


def test_a_new_prompt_goes_to_the_least_busy_server_the_first_of_equals():
    router = PrefixRouter()
    assert router.pick("p", {"a": 2, "b": 1, "c": 1}) == "b"


def test_a_known_prompt_is_worth_some_wait_and_not_more():
    router = PrefixRouter(slack=3)
    router.pick("p", {"a": 0, "b": 1})
    assert router.pick("p", {"a": 4, "b": 1}) == "a"  # 3 more than the other
    assert router.pick("p", {"a": 5, "b": 1}) == "b"  # 4 more
    assert router.pick("p", {"a": 0, "b": 1}) == "b"  # it has moved


def test_a_server_that_takes_nothing_loses_its_prompts():
    router = PrefixRouter()
    router.pick("p", {"a": 0, "b": 1})
    assert router.pick("p", {"b": 1}) == "b"


def test_what_a_server_knew_can_be_forgotten():
    router = PrefixRouter()
    router.pick("p", {"a": 0, "b": 1})
    router.pick("q", {"a": 1, "b": 0})
    router.forget("a")
    assert router.pick("p", {"a": 1, "b": 0}) == "b"
    assert router.pick("q", {"a": 0, "b": 9}) == "b"


def test_the_prompts_of_long_ago_are_forgotten():
    router = PrefixRouter(memory=2)
    router.pick("p", {"a": 0, "b": 1})
    router.pick("q", {"a": 0, "b": 1})
    router.pick("p", {"a": 0, "b": 1})
    router.pick("r", {"a": 0, "b": 1})  # q is the oldest now
    assert router.pick("p", {"a": 1, "b": 0}) == "a"
    assert router.pick("q", {"a": 1, "b": 0}) == "b"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60), st.integers(0, 4))
def test_loads_never_drift_apart_by_more_than_the_slack(steps, slack):
    """Requests come with prompts and leave in any order: no server is chosen far beyond the least busy one."""
    router = PrefixRouter(slack=slack)
    loads = {"a": 0, "b": 0, "c": 0}
    for prompt, leaving in steps:
        chosen = router.pick(prompt, loads)
        assert loads[chosen] <= min(loads.values()) + slack
        loads[chosen] += 1
        name = "abc"[leaving]
        loads[name] = max(loads[name] - 1, 0)


@pytest.mark.parametrize("settings", [{"slack": -1}, {"memory": 0}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError):
        PrefixRouter(**settings)
