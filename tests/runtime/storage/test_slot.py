"""Slots: what variables and checkpoints know of storage, in any form."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.checkpoints.write import chunks_of
from meshtf.runtime.storage.slot import Slot

SHAPE = "d_model:4;d_ff:6"


def counting(mesh, shape, name):
    """An initializer whose values tell elements apart."""
    values = np.arange(shape.size, dtype="float32").reshape(shape.sizes)
    return mtf.asarray(mesh, values, shape)


def variable(devices="logical:4"):
    """Returns a variable in four different shards."""
    mesh = mtf.Mesh("x:2;y:2", "d_model:x;d_ff:y", devices=devices)
    return mtf.Variable(mesh, SHAPE, counting, "v")


class ArraySlot:
    """A slot in memory of NumPy's, whose device TensorFlow does not know."""

    host = "/device:CPU:0"

    def __init__(self, array: np.ndarray, device: str) -> None:
        self.array = array.copy()
        self.device = device
        self.shape = array.shape
        self.dtype = array.dtype.name

    def read(self):
        return self.array.copy()

    def value_on(self, device):
        with tf.device(device):
            return tf.constant(self.array)

    def assign(self, value):
        assert tuple(value.shape) == self.shape
        self.array = np.array(value)

    def snapshot(self):
        array = self.array  # `assign` takes another one
        return lambda: tf.constant(array)

    def free(self):
        self.array = np.zeros([0], self.dtype)


def in_arrays(v: mtf.Variable) -> mtf.Variable:
    """Lets slots of the other form hold a variable."""
    slots: list[Slot | None] = [
        ArraySlot(slot.read(), f"array:{k}") for k, slot in enumerate(v.slots())
    ]
    v.use_slots(slots)
    return v


@pytest.mark.parametrize("form", [lambda v: v, in_arrays])
def test_a_slot_reads_and_assigns(form):
    slot = form(variable()).slots()[1]
    np.testing.assert_array_equal(slot.read(), [[3, 4, 5], [9, 10, 11]])
    assert slot.shape == (2, 3) and slot.dtype == "float32"
    read = slot.read()
    slot.assign(read * 2)
    np.testing.assert_array_equal(slot.read(), read * 2)
    np.testing.assert_array_equal(slot.value_on(slot.host), read * 2)


@pytest.mark.parametrize("form", [lambda v: v, in_arrays])
def test_a_snapshot_stays_while_values_change(form):
    slot = form(variable()).slots()[2]
    before = slot.read()
    snapshot = slot.snapshot()
    slot.assign(before + 1)
    np.testing.assert_array_equal(snapshot(), before)
    np.testing.assert_array_equal(slot.read(), before + 1)


def test_a_freed_slot_takes_only_a_value_of_its_shape():
    slot = variable().slots()[0]
    slot.free()
    assert slot.value_on(slot.device).shape == [0] and slot.shape == (2, 3)
    with pytest.raises(mtf.ShapeError, match=r"\(4, 3\).*\(2, 3\)"):
        slot.assign(np.zeros([4, 3], "float32"))
    slot.assign(np.ones([2, 3]))  # float64: taken as the variable's type
    assert slot.read().dtype == np.float32 and slot.read().all()


def test_reading_copies():
    slot = variable(None).slots()[0]
    read = slot.read()
    read[:] = 0
    assert slot.read().any()


def test_slots_know_their_devices():
    v = variable()
    assert [slot.device[-5:] for slot in v.slots()] == [f"CPU:{k}" for k in range(4)]
    assert {slot.host[-5:] for slot in v.slots()} == {"CPU:0"}


def test_variables_lie_in_any_form_of_slots():
    v = in_arrays(variable())
    np.testing.assert_array_equal(v.numpy(), np.arange(24).reshape(4, 6))
    np.testing.assert_array_equal((v + 1.0).numpy(), v.numpy() + 1)
    v.load(lambda region: v.numpy()[region] * 2)
    np.testing.assert_array_equal(v.numpy(), 2 * np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("before", [lambda v: v, in_arrays])
@pytest.mark.parametrize("after", [lambda v: v, in_arrays])
def test_checkpoints_know_no_form_of_slots(before, after, tmp_path):
    saved = before(variable())
    restored = after(variable())
    path = mtf.checkpoints.save(str(tmp_path), 3, {"v": saved})
    restored.load(lambda region: np.zeros([2, 3], "float32"))
    mtf.checkpoints.restore(path, {"v": restored})
    np.testing.assert_array_equal(restored.numpy(), saved.numpy())


def test_asynchronous_saves_take_snapshots_of_any_form(tmp_path):
    v = in_arrays(variable())
    before = v.numpy()
    chunks = chunks_of({"v": v}, snapshot=True)
    v.load(lambda region: np.zeros([2, 3], "float32"))
    for chunk in chunks:
        region = tuple(slice(start, start + size) for start, size in chunk.box)
        np.testing.assert_array_equal(chunk.value(), before[region])
