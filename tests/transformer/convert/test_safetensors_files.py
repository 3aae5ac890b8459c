"""Folders of safetensors files: one file, shards and their index, and errors."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshtf as mtf
from transformer.convert.safetensors_files import TensorFiles, new_folder, write_tensors


@pytest.fixture
def arrays(rng):
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in [("b", (3, 4)), ("a", (5,)), ("c.weight", (2, 1, 6))]
    }


def same(tensors, arrays):
    """Returns whether all names, shapes and bits are the same."""
    return (
        list(tensors) == sorted(arrays)
        and len(tensors) == len(arrays)
        and all(
            tensors.shape(n) == a.shape and tensors[n].tobytes() == a.tobytes()
            for n, a in arrays.items()
        )
    )


def test_one_file(tmp_path, arrays):
    write_tensors(tmp_path, arrays)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    assert same(TensorFiles(tmp_path), arrays)


def test_transposed_arrays_are_written_as_they_read(tmp_path, arrays):
    write_tensors(tmp_path, {"b": arrays["b"].T})
    np.testing.assert_array_equal(TensorFiles(tmp_path)["b"], arrays["b"].T)


def test_several_files_hold_what_fits_and_the_index_says_where(tmp_path, arrays):
    write_tensors(tmp_path, arrays, shard_bytes=70)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / names[-1]).read_text())
    assert index["metadata"]["total_size"] == (12 + 5 + 12) * 4
    assert index["weight_map"] == {"b": names[0], "a": names[0], "c.weight": names[1]}
    assert set(load_file(tmp_path / names[0])) == {"a", "b"}
    assert same(TensorFiles(tmp_path), arrays)


def test_a_tensor_larger_than_a_file_has_one_by_itself(tmp_path, arrays):
    write_tensors(tmp_path, arrays, shard_bytes=10)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert same(TensorFiles(tmp_path), arrays)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_floats_come_as_float32(tmp_path, arrays, dtype):
    halves = {name: array.astype(dtype) for name, array in arrays.items()}
    save_file(halves, tmp_path / "model.safetensors")
    tensors = TensorFiles(tmp_path)
    assert same(tensors, {n: a.astype(np.float32) for n, a in halves.items()})


def test_integers_are_no_weights(tmp_path):
    save_file(
        {"n": np.arange(3), "x": np.ones(2, np.float32)}, tmp_path / "model.safetensors"
    )
    tensors = TensorFiles(tmp_path)
    assert tensors["x"].sum() == 2
    with pytest.raises(mtf.CheckpointError, match="'n' has data type I64"):
        tensors["n"]


@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "none"),
        ({"pytorch_model.bin": b"x"}, "pytorch_model.bin"),
        ({"model.safetensors": b"nonsense"}, "cannot be read"),
        ({"model.safetensors.index.json": b"{}"}, "weight_map"),
        (
            {
                "model.safetensors.index.json": b'{"weight_map": {"a": "lost.safetensors"}}'
            },
            "lost",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    with pytest.raises(mtf.CheckpointError, match=message) as error:
        TensorFiles(tmp_path if files else tmp_path / "absent")
    assert "It must have model.safetensors" in str(error.value)


def test_an_index_that_names_what_its_file_lacks(tmp_path, arrays):
    write_tensors(tmp_path, arrays)
    index = {"weight_map": {"other": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(mtf.CheckpointError, match="other"):
        TensorFiles(tmp_path)


def test_a_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "new" / "out") as folder:
        (folder / "file").write_text("text")
        assert not (tmp_path / "new" / "out").exists()
    assert (tmp_path / "new" / "out" / "file").read_text() == "text"
    with pytest.raises(mtf.CheckpointError, match="is not overwritten"):
        with new_folder(tmp_path / "new" / "out"):
            pass


def test_an_error_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("half")
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
