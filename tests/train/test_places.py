"""Where the parts of a run are, when nobody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from srpo_envs.errors import ConfigError
from srpo_train.config import load_recipe
from srpo_train.places import Here
from srpo_train.tracking.terminal import TerminalSink

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-arithmetic.toml"


def here(*overrides):
    return Here(load_recipe(RECIPE, overrides))


def test_everything_is_in_this_process_but_named_servers():
    places = here()
    assert not places.is_sampling_elsewhere
    assert here("engine.kind=served", "engine.served.servers={team=['http://a:1']}").is_sampling_elsewhere
    assert places.metrics() == {}
    assert places.num_engines == 0
    assert here("engine.kind=served", "engine.served.servers={team=['http://a:1','http://b:1']}").num_engines == 2
    assert isinstance(places.watcher(0), TerminalSink)


def test_environments_are_those_of_the_section():
    recipe = load_recipe(RECIPE)
    make = Here(recipe).worlds(recipe.eval_env)
    env = make()
    assert env is not make()
    assert env.env_kwargs["split"] == "test"


def test_servers_that_only_ray_would_start_are_refused():
    with pytest.raises(ConfigError, match="srpo train --ray"):
        here("engine.kind=served", "engine.served={}", "ray.engines_per_policy=1")
