"""Batches on live meshes, of which each process reads its section."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

FEATURES = {"x": "batch; d", "y": "batch"}


def section(k, n):
    """Returns section k of n of three batches of eight examples."""
    size = 8 // n
    numbers = np.arange(3 * 8).reshape(3, n, size)[:, k]
    x = np.stack([numbers, -numbers], axis=-1).astype("float32")
    return tf.data.Dataset.from_tensor_slices({"x": x, "y": numbers})


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("layout", ["", "batch:data", "batch:model; d:data"])
def test_batches_are_those_of_the_dataset(devices, layout):
    mesh = mtf.Mesh("data:2; model:2", layout, devices=devices)
    reader = mtf.HostReader(mesh, FEATURES, 8, section)
    batches = list(reader)
    assert len(batches) == 3
    total = mtf.function(
        lambda x, y: mtf.reduce_sum(x) + mtf.cast(mtf.reduce_sum(y), "float32")
    )
    for i, batch in enumerate(batches):
        numbers = np.arange(i * 8, i * 8 + 8)
        np.testing.assert_array_equal(batch["y"].numpy(), numbers)
        np.testing.assert_array_equal(batch["x"].numpy()[:, 1], -numbers)
        assert batch["x"].placement == mesh.place(batch["x"].shape)[0]
        assert float(total(batch["x"], batch["y"])) == numbers.sum()


def test_a_layout_that_cannot_shard_the_examples_is_refused():
    mesh = mtf.Mesh("data:2", "batch:data", devices="spmd:cpu")
    with pytest.raises(mtf.LayoutError, match="batch"):
        mtf.HostReader(mesh, FEATURES, 7, section)
