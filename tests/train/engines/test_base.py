from __future__ import annotations

import math

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.engines import GenerationRequest, Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", math.nan), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -1)],
)
def test_sampling_refuses_values_out_of_range_and_names_them(name, value):
    with pytest.raises(ConfigError, match=name):
        Sampling(**{name: value})


def test_a_request_without_tokens_to_sample_is_refused():
    with pytest.raises(ConfigError, match=r"'ep/e0/1'.*max_new_tokens"):
        GenerationRequest(request_id="ep/e0/1", prompt="a", max_new_tokens=0, seed=0)


def test_an_empty_stop_text_is_refused():
    with pytest.raises(ConfigError, match="empty stop text"):
        GenerationRequest(request_id="r", prompt="a", max_new_tokens=4, seed=0, stop=("x", ""))
