"""Weights as files that a server can read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from srpo_train.engines.served_weights import write_weights  # noqa: E402


def read(folder):
    files = sorted(folder.iterdir())
    return [safetensors.load_file(path) for path in files], [path.name for path in files]


def test_tied_tensors_are_written_under_both_names_and_views_as_they_are(tmp_path):
    table = torch.arange(12.0).reshape(3, 4)
    weights = {"embed": table, "head": table, "column": table[:, 1], "half": table.to(torch.bfloat16)}
    write_weights(tmp_path / "v1", weights)
    ((found,), names) = read(tmp_path / "v1")
    assert names == ["model-00000.safetensors"]
    assert found.keys() == weights.keys()
    assert all(found[name].equal(tensor) and found[name].dtype == tensor.dtype for name, tensor in weights.items())


def test_large_models_are_split_at_tensors(tmp_path):
    weights = {name: torch.full((size,), float(size)) for name, size in [("a", 2), ("b", 2), ("c", 9), ("d", 1)]}
    write_weights(tmp_path / "v1", weights, shard_bytes=16)  # four numbers
    shards, names = read(tmp_path / "v1")
    assert [sorted(shard) for shard in shards] == [["a", "b"], ["c"], ["d"]]
    assert names == [f"model-0000{number}.safetensors" for number in range(3)]


def test_a_folder_that_was_cut_short_is_begun_again(tmp_path):
    (tmp_path / "v1.partial").mkdir()
    (tmp_path / "v1.partial" / "model-00007.safetensors").write_bytes(b"half")
    write_weights(tmp_path / "v1", {"a": torch.ones(1)})
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["model-00000.safetensors"]


def test_gradients_do_not_travel(tmp_path):
    write_weights(tmp_path / "v1", {"a": torch.nn.Parameter(torch.ones(2))})
    assert read(tmp_path / "v1")[0][0]["a"].equal(torch.ones(2))
