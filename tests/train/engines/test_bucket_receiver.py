"""A worker's end of a push: all buckets in order, or an error that says where."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from srpo_train.engines.bucket_receiver import BucketInfo, BucketReceiver  # noqa: E402
from srpo_train.engines.buckets import images, plan_buckets  # noqa: E402
from srpo_train.engines.publishing import specs_of  # noqa: E402
from srpo_train.engines.weight_stream import WeightStream  # noqa: E402

STATE = {"a": torch.ones(4), "b": torch.zeros(2, 2), "c": torch.full((3,), 7.0)}


@pytest.fixture
def infos(tmp_path):
    stream = WeightStream(specs_of(STATE), STATE.__getitem__)
    plan = plan_buckets(stream.specs, 16)
    made = []
    for bucket, image in zip(plan, images(plan, stream), strict=True):
        path = tmp_path / str(bucket.number)
        path.write_bytes(image.numpy().tobytes())
        made.append(
            BucketInfo(
                number=bucket.number,
                num_buckets=len(plan),
                num_bytes=bucket.num_bytes,
                path=str(path),
                notes=str(tmp_path),
            )
        )
    return made


@pytest.fixture
def held():
    return {}


@pytest.fixture
def receiver(held):
    def load(weights):
        for name, tensor in weights:
            held[name] = tensor.clone()

    made = BucketReceiver(load, 3)
    made.begin()
    return made


def test_tensors_come_as_they_were_and_notes_tell_how_far(receiver, held, infos, tmp_path):
    for info in infos:
        receiver.take(info)
    receiver.finish()
    assert held.keys() == STATE.keys()
    assert all(held[name].equal(tensor) for name, tensor in STATE.items())
    assert (tmp_path / "rank-3").read_text() == "rank 3 at 'c' (1 of 1 tensors)"


def test_a_push_of_which_something_is_missing_is_not_finished(receiver, infos):
    for info in infos[:-1]:
        receiver.take(info)
    with pytest.raises(RuntimeError, match="rank 3 has 2 of 3 buckets"):
        receiver.finish()
    receiver.begin()
    with pytest.raises(RuntimeError, match="rank 3 has 0 of 0 buckets"):
        receiver.finish()


@pytest.mark.parametrize("number", [0, 2])
def test_buckets_come_in_order_and_once(receiver, infos, number):
    receiver.take(infos[0])
    with pytest.raises(RuntimeError, match=rf"rank 3 was given bucket {number} in the place of 1"):
        receiver.take(infos[number])


def test_a_tensor_that_cannot_be_loaded_is_named(receiver, infos):
    receiver._load = lambda weights: [int("x") for _ in weights]
    with pytest.raises(RuntimeError, match=r"rank 3 at 'a' \(1 of 1 tensors\) of bucket 0: invalid literal"):
        receiver.take(infos[0])


def test_what_is_under_way_is_given_up_when_asked(receiver, infos):
    receiver.take(infos[0])
    with pytest.raises(RuntimeError, match="given up, as asked"):
        receiver.take(BucketInfo(number=-1, num_buckets=0, num_bytes=0))


def test_a_worker_in_no_group_says_so(receiver):
    with pytest.raises(RuntimeError, match="rank 3 is in no group"):
        receiver.take(BucketInfo(number=0, num_buckets=1, num_bytes=8))
