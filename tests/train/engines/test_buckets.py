"""Buckets: every tensor in exactly one, fused ones together, and bytes that are a safetensors file."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from srpo_envs.errors import ConfigError  # noqa: E402
from srpo_train.engines.buckets import images, plan_buckets, tensors_in  # noqa: E402
from srpo_train.engines.publishing import specs_of  # noqa: E402
from srpo_train.engines.weight_stream import TensorSpec, WeightStream, group_of  # noqa: E402

NAMES = st.one_of(
    st.builds(
        "model.layers.{}.{}.{}.weight".format,
        st.integers(0, 3),
        st.sampled_from(["self_attn", "mlp"]),
        st.sampled_from(["q_proj", "k_proj", "experts.0.up", "experts.1.up"]),
    ),
    st.sampled_from(["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.2.scale"]),
)
SPECS = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn]),
)
MODELS = st.dictionaries(NAMES, SPECS, min_size=1, max_size=14)


def tensor_of(spec: TensorSpec, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, spec.shape, generator=generator).to(spec.dtype)


def state_of(specs):
    return {name: tensor_of(spec, seed) for seed, (name, spec) in enumerate(specs.items())}


def same(ours, theirs) -> bool:
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.float().equal(theirs.float())


@given(specs=MODELS, bucket_bytes=st.integers(1, 600))
def test_every_tensor_is_in_one_bucket_in_the_order_of_the_stream_and_fused_ones_are_together(specs, bucket_bytes):
    stream = WeightStream(specs, lambda name: tensor_of(specs[name], 0))
    plan = plan_buckets(stream.specs, bucket_bytes)
    assert [bucket.number for bucket in plan] == list(range(len(plan)))
    packed = [name for bucket in plan for name in bucket.specs]
    assert sorted(packed) == sorted(specs)
    begun = 0
    for bucket in plan:  # a bucket takes the next ones of the stream, in whatever order it keeps them
        assert set(bucket.specs) == set(list(stream.specs)[begun : begun + len(bucket.specs)])
        begun += len(bucket.specs)
    homes: dict[str, set[int]] = {}
    for bucket in plan:
        for name in bucket.specs:
            part_of_layer = ".".join(name.split(".")[:4])  # as in model.layers.3.mlp, whatever follows
            homes.setdefault(part_of_layer, set()).add(bucket.number)
    assert all(len(numbers) == 1 for numbers in homes.values())
    for bucket in plan:
        groups = {group_of(name) for name in bucket.specs}
        assert bucket.data_bytes <= bucket_bytes or len(groups) == 1


@given(specs=MODELS, bucket_bytes=st.integers(1, 600))
def test_what_was_put_in_comes_out_bit_for_bit_and_safetensors_reads_the_same(specs, bucket_bytes):
    state = state_of(specs)
    stream = WeightStream(specs, state.__getitem__)
    plan = plan_buckets(stream.specs, bucket_bytes)
    found = {}
    for bucket, image in zip(plan, images(plan, stream), strict=True):
        assert image.numel() == bucket.num_bytes
        found |= tensors_in(image)
        read = safetensors.load(image.numpy().tobytes())
        assert read.keys() == bucket.specs.keys()
        assert all(same(read[name], state[name]) for name in read)
    assert found.keys() == state.keys()
    assert all(same(found[name], state[name]) for name in state)


def test_as_few_buckets_as_the_size_allows():
    specs = specs_of({name: torch.zeros(size) for name, size in [("a", 2), ("b", 2), ("c", 9), ("d", 1), ("e", 3)]})
    assert [list(bucket.specs) for bucket in plan_buckets(specs, 16)] == [["a", "b"], ["c"], ["d", "e"]]


def test_one_bucket_is_held_at_a_time():
    specs = specs_of({f"t{number}": torch.zeros(4) for number in range(5)})
    made = []
    stream = WeightStream(specs, lambda name: (made.append(name), torch.ones(4))[1])
    plan = plan_buckets(stream.specs, 16)
    for number, image in enumerate(images(plan, stream), start=1):
        assert made == [f"t{index}" for index in range(number)]
        assert tensors_in(image)[f"t{number - 1}"].tolist() == [1.0] * 4


def test_what_is_left_of_a_stream_is_put_together_for_nobody():
    made = []
    stream = WeightStream(
        specs_of({name: torch.zeros(1) for name in "abc"}), lambda name: made.append(name) or torch.ones(1)
    )
    next(iter(stream))
    stream.exhaust()
    assert made == ["a", "b", "c"]
    assert list(stream) == []


def test_a_bucket_is_named_by_its_first_and_last_tensor():
    one, *_, last = plan_buckets(specs_of({name: torch.zeros(2) for name in "abc"}), 16)
    assert (str(one), str(last)) == ("bucket 0 ('a' to 'b')", "bucket 1 ('c')")


def test_sizes_and_formats_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match="bucket_bytes: expected at least 1, got 0"):
        plan_buckets(specs_of({"a": torch.zeros(1)}), 0)
    with pytest.raises(ConfigError, match=r"'a' is torch.complex64, which cannot travel"):
        plan_buckets(specs_of({"a": torch.zeros(1, dtype=torch.complex64)}), 8)
