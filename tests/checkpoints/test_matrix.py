"""Saved on one mesh and layout, restored on another: the same bits, an optimizer's
state too.
"""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf.checkpoints import Manifest, read, write
from tests.checkpoints.models import MESHES, bits, variables


@pytest.mark.parametrize("before", MESHES)
def test_every_mesh_to_every_other(before, tmp_path):
    saved = variables(before, seed=1)
    path = mtf.checkpoints.save(str(tmp_path), 3, saved)
    expected = bits(saved)
    assert len(expected) > 9 and len(set(expected.values())) == len(expected)
    for after in MESHES:  # 8 x 8 pairs
        model_state = variables(after, seed=2)
        mtf.checkpoints.restore(path, model_state)
        assert bits(model_state) == expected, after


@pytest.mark.parametrize(
    "before, after",
    [
        ("one device", "fsdp of 8"),
        ("stages", "one device"),
        ("fsdp of 8", "tensor parallel"),
        ("two axes", "tensor parallel"),
    ],
)
def test_shards_that_are_split_again(before, after, tmp_path, monkeypatch):
    monkeypatch.setattr(
        write, "MAX_CHUNK_BYTES", 40
    )  # bytes: several files, parts of rows
    monkeypatch.setattr(read, "MAX_CHUNK_BYTES", 40)
    saved = variables(before, seed=1)
    path = mtf.checkpoints.save(str(tmp_path), 3, saved)
    manifest = Manifest.read(path)
    assert len(manifest.files) > 20
    assert len(manifest.tensors["table"].boxes) > 8
    model_state = variables(after, seed=2)
    mtf.checkpoints.restore(path, model_state)
    assert bits(model_state) == bits(saved)


def test_large_slices_of_a_damaged_checkpoint_are_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "MAX_CHUNK_BYTES", 3)  # even scalars are large
    path = mtf.checkpoints.save(str(tmp_path), 3, variables("one device", seed=1))
    data = tmp_path / "step_00000003" / "variables.data-00000-of-00001"
    data.write_bytes(bytes(len(data.read_bytes())))
    for key in ("one device", "fsdp of 8"):
        model_state = variables(key, seed=2)
        with pytest.raises(mtf.checkpoints.DamageError, match="variables.data"):
            mtf.checkpoints.restore(path, model_state)
        assert [v.numpy().shape for v in model_state.values()] == [
            v.shape.sizes for v in model_state.values()
        ]
        assert (
            sum(not v.numpy().any() for v in model_state.values()) == 1
        )  # what was being read


def test_alike_positions_of_several_devices_hold_the_restored_numbers(tmp_path):
    saved = variables("one device", seed=1)
    path = mtf.checkpoints.save(str(tmp_path), 3, saved)
    model_state = variables("8 devices", seed=2)
    mtf.checkpoints.restore(path, model_state)
    for name, v in model_state.items():
        assert {slot.read().tobytes() for slot in v.slots()} == {
            saved[name].numpy().tobytes()
        }


def test_a_part_by_other_names(tmp_path):
    saved = variables("fsdp of 8", seed=1)
    path = mtf.checkpoints.save(str(tmp_path), 3, saved)
    model_state = variables("tensor parallel", seed=2)
    subset = {
        "mine/wi": model_state["first/wi"],
        "other/wi": model_state["second/wi"],
        "embedding": model_state["table"],
    }
    mtf.checkpoints.restore(
        path,
        subset,
        partly=True,
        renames={
            "mine": "first",
            "other": "third",
            "other/wi": "second/wi",
            "embedding": "table",
        },
    )
    expected = bits(saved)
    assert bits(subset) == {
        "mine/wi": expected["first/wi"],
        "other/wi": expected["second/wi"],
        "embedding": expected["table"],
    }
    with pytest.raises(
        mtf.CheckpointError, match=r"not saved +nowhere/wi \[d_model:8 d_ff:12\]"
    ):
        mtf.checkpoints.restore(path, subset, partly=True, renames={"mine": "nowhere"})


def test_dimensions_in_another_order_are_refused(tmp_path):
    def square(shape):
        return {
            "w": mtf.Variable(
                mtf.Mesh(""), shape, mtf.layers.initializers.normal(), "w"
            )
        }

    path = mtf.checkpoints.save(str(tmp_path), 3, square("a:4; b:4"))
    with pytest.raises(
        mtf.CheckpointError, match=r"w: \[a:4 b:4\] saved, \[b:4 a:4\] now"
    ):
        mtf.checkpoints.restore(path, square("b:4; a:4"))
    mtf.checkpoints.restore(path, square("a:4; c:4"))  # a name may change
