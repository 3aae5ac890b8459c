"""Checkpoints: any layout to any other, whole tensors for plain TensorFlow, the newest
few kept.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.checkpoints import Manifest, step_folders
from meshtf.errors import WriteError

MESHES = {
    "one": ("", "", "", None),
    "fsdp": ("data:4", "batch:data", "d_model:data", None),
    "two axes": ("data:2;model:4", "d_ff:model;vocab:model", "d_model:data", None),
    "other names": ("x:2;y:2", "d_model:y;d_ff:x", "", "logical:4"),
}
SHAPES = {
    "decoder/w": "d_model:8;d_ff:12",
    "decoder/scale": "d_model:8",
    "step": "",
    "table": "vocab:4;d_model:8",
}
DTYPES = {"step": "int32", "decoder/scale": "bfloat16"}


def model(key, start):
    """Returns variables on a mesh; their values count on from `start`."""
    axes, layout, variable_layout, devices = MESHES[key]
    mesh = mtf.Mesh(axes, layout, variable_layout, devices=devices)

    def init(mesh, shape, name):
        values = start + np.arange(shape.size, dtype="float32").reshape(shape.sizes)
        return mtf.asarray(mesh, values, shape, DTYPES.get(name, "float32"))

    return {
        name: mtf.Variable(mesh, shape, init, name, DTYPES.get(name, "float32"))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("before", MESHES)
def test_any_layout_to_any_other(before, tmp_path):
    saved = model(before, start=1)
    path = mtf.checkpoints.save(str(tmp_path), 7, saved, extra={"seed": 3})
    for after in MESHES:
        model_state = model(after, start=-100)
        assert mtf.checkpoints.restore(path, model_state) == {"step": 7, "seed": 3}
        for name, v in model_state.items():
            np.testing.assert_array_equal(
                v.numpy(), saved[name].numpy(), err_msg=f"{name} {after}"
            )
            for a, b in zip(v.slots(), v.read(), strict=True):
                assert a.dtype == b.dtype.name == DTYPES.get(name, "float32")


@pytest.mark.parametrize("key", MESHES)
def test_plain_tensorflow_reads_whole_tensors_under_one_key(key, tmp_path):
    saved = model(key, start=1)
    path = mtf.checkpoints.save(str(tmp_path), 7, saved)
    reader = tf.train.load_checkpoint(path + "/variables")
    assert {n: tuple(s) for n, s in reader.get_variable_to_shape_map().items()} == {
        name: v.shape.sizes for name, v in saved.items()
    }
    for name, v in saved.items():
        np.testing.assert_array_equal(reader.get_tensor(name), v.numpy())
    assert reader.get_variable_to_dtype_map()["step"] == tf.int32


def test_each_different_slice_is_written_once(tmp_path, monkeypatch):
    written = []
    save = tf.raw_ops.SaveV2

    def spy(**kwargs):
        written.extend(
            zip(kwargs["tensor_names"], kwargs["shape_and_slices"], strict=True)
        )
        return save(**kwargs)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", spy)
    mtf.checkpoints.save(str(tmp_path), 1, model("two axes", start=0))
    assert len(set(written)) == len(written)
    assert dict(written)["step"] == ""
    assert sorted(spec for name, spec in written if name == "decoder/scale") == [
        "8 0,4",
        "8 4,4",
    ]
    assert len([name for name, _ in written if name == "decoder/w"]) == 8


def test_the_newest_are_kept(tmp_path):
    saved = model("one", start=0)
    for step in (1, 5, 20, 100):
        mtf.checkpoints.save(str(tmp_path), step, saved, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_00000020", "step_00000100"]
    step, path = mtf.checkpoints.latest(str(tmp_path))
    assert (step, os.path.basename(path)) == (100, "step_00000100")
    assert mtf.checkpoints.latest(str(tmp_path / "absent")) is None


def test_an_older_step_is_not_deleted_as_it_is_written(tmp_path):
    saved = model("one", start=0)
    for step in (100, 200):
        mtf.checkpoints.save(str(tmp_path), step, saved, keep=2)
    assert os.path.isdir(mtf.checkpoints.save(str(tmp_path), 50, saved, keep=2))


def test_a_step_may_be_saved_again(tmp_path):
    mtf.checkpoints.save(str(tmp_path), 1, model("one", start=0))
    path = mtf.checkpoints.save(str(tmp_path), 1, model("one", start=50))
    model_state = model("fsdp", start=0)
    mtf.checkpoints.restore(path, model_state)
    assert model_state["step"].numpy() == 50


def test_a_checkpoint_has_its_name_only_when_it_is_complete(tmp_path, monkeypatch):
    saved = model("one", start=0)
    mtf.checkpoints.save(str(tmp_path), 1, saved)

    def fail(*args, **kwargs):
        assert mtf.checkpoints.latest(str(tmp_path))[0] == 1
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", fail)
        with pytest.raises(WriteError, match="step 2 could not be written(.|\n)*full"):
            mtf.checkpoints.save(str(tmp_path), 2, saved)
    assert os.listdir(tmp_path) == ["step_00000001"]
    mtf.checkpoints.save(str(tmp_path), 2, saved)
    assert mtf.checkpoints.latest(str(tmp_path))[0] == 2


def test_folders_of_other_programs_are_not_changed(tmp_path):
    (tmp_path / "step_abc").mkdir()
    (tmp_path / "logs").mkdir()
    for step in (1, 2, 3):
        mtf.checkpoints.save(str(tmp_path), step, model("one", start=0), keep=1)
    assert sorted(os.listdir(tmp_path)) == ["logs", "step_00000003", "step_abc"]


def test_keeping_all(tmp_path):
    saved = model("one", start=0)
    for step in range(3):
        mtf.checkpoints.save(str(tmp_path), step, saved, keep=10)
    assert [step for step, _ in step_folders.all_steps(str(tmp_path))] == [0, 1, 2]


def test_a_part_of_a_model_is_read_from_a_checkpoint_of_all_of_it(tmp_path):
    saved = model("fsdp", start=1)
    path = mtf.checkpoints.save(str(tmp_path), 7, saved)
    model_state = model("two axes", start=-100)
    subset = {name: model_state[name] for name in ("decoder/w", "step")}
    with pytest.raises(mtf.CheckpointError, match="not in model"):
        mtf.checkpoints.restore(path, subset)
    assert mtf.checkpoints.restore(path, subset, partly=True) == {"step": 7}
    for name, v in model_state.items():
        expected = saved[name] if name in subset else model("one", start=-100)[name]
        np.testing.assert_array_equal(v.numpy(), expected.numpy())


def test_a_part_must_be_there_and_fit(tmp_path):
    path = mtf.checkpoints.save(str(tmp_path), 7, model("one", start=1))
    model_state = model("one", start=-100)
    mesh = mtf.Mesh("")
    wider = mtf.Variable(mesh, "d_model:9;d_ff:12", mtf.layers.initializers.zeros, "w")
    with pytest.raises(mtf.CheckpointError) as caught:
        mtf.checkpoints.restore(
            path,
            {
                "encoder/scale": model_state["decoder/scale"],
                "decoder/w": wider,
                "table": model_state["table"],
            },
            partly=True,
        )
    text = str(caught.value)
    assert "encoder/scale [d_model:8] (close: decoder/scale)" in text
    assert "decoder/w: [d_model:8 d_ff:12] saved, [d_model:9 d_ff:12] now" in text
    assert "not in model" not in text
    assert model_state["table"].numpy()[0, 0] == -100  # nothing was read


def test_a_folder_of_checkpoints_is_not_one(tmp_path):
    variable = mtf.Variable(mtf.Mesh(""), "d:2", "ones", "w")
    path = mtf.checkpoints.save(str(tmp_path), 3, {"w": variable})
    with pytest.raises(
        mtf.CheckpointError, match=f"(?s)not one of them.*newest: {path}"
    ):
        mtf.checkpoints.restore(str(tmp_path), {"w": variable})
    with pytest.raises(mtf.CheckpointError, match="the folder does not exist"):
        mtf.checkpoints.restore(str(tmp_path / "step_00000004"), {"w": variable})


@pytest.mark.parametrize("stacked", ["layers:8;a:8;b:8", "layers:8;a:6;b:4"])
def test_slots_of_other_dimensions_of_a_variable_are_refused(stacked, tmp_path):
    def state(stacked_dims):
        mesh = mtf.Mesh("")
        w = mtf.Variable(mesh, stacked, "zeros", "w", stacked_dims=stacked_dims)
        optimizer = mtf.optimizers.Adafactor([w], min_dim_size_to_factor=4)
        return {v.name: v for v in (w, *optimizer.variables)}

    # Means over rows of all layers, as Adafactor had them before it knew of stacks.
    path = mtf.checkpoints.save(str(tmp_path), 1, state(""))
    mtf.checkpoints.restore(path, state(""))
    with pytest.raises(mtf.CheckpointError, match="adafactor/w/column: .*saved.*now"):
        mtf.checkpoints.restore(path, state("layers"))


def test_dimensions_of_a_variable_and_its_slots_may_be_renamed(tmp_path):
    def state(name):
        w = mtf.Variable(mtf.Mesh(""), f"{name}:4;b:4", "zeros", "w")
        optimizer = mtf.optimizers.Adafactor([w], min_dim_size_to_factor=4)
        return {v.name: v for v in (w, *optimizer.variables)}

    path = mtf.checkpoints.save(str(tmp_path), 1, state("a"))
    assert mtf.checkpoints.restore(path, state("d_model"))["step"] == 1
