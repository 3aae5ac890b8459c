"""Padding costs nothing where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from tests.support.stablehlo_traffic import text_of

LAYOUTS = {
    "data and tensor": "batch:data;d:model",
    "two axes": "batch:data+model",
    "width": "d:data",
}


def step(x, w, ids):
    """Ops of all roles: mapped, summed, statistics, windows, sorts, scans, gathers, numbers
    that are drawn, merged and split dimensions.
    """
    h = mtf.einsum([x, w], "batch;t;d")
    h = mtf.layer_norm(h, "d") + mtf.softmax(h, "t") + mtf.cumsum(h, "t")
    h = h + mtf.roll(h, "t", 1) + mtf.shift(h, "batch", 2) + mtf.sort(h, "d")
    h = mtf.dropout(h, 0.1, seed=1)
    h = mtf.unflatten(mtf.flatten(h, "t;d", "td"), "td", "t:4;d:8")
    total = mtf.reduce_logsumexp(h, "d") + mtf.reduce_max(h, "d")
    picked = mtf.gather(h, ids, "t") * mtf.reduce_mean(h, "t")
    loss = mtf.reduce_sum(total) + mtf.reduce_sum(picked)
    return [loss, mtf.top_k(h, "d", "k:2")[0], *mtf.gradients([loss], [x, w])]


def program_text(layout: str, strict: bool) -> str:
    """Returns the StableHLO of the program of a device."""
    mesh = mtf.Mesh("data:2;model:2", layout, strict=strict)
    program = mtf.function(step, mesh=mesh, x="batch;t;c", w="c;d", ids="batch")
    x = np.ones((8, 4, 4), "float32")
    w = np.ones((4, 8), "float32")
    return text_of(mtf.export(program, x, w, np.zeros(8, "int32")).module)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_programs_are_those_of_a_strict_mesh_where_axes_divide_sizes(layout):
    assert program_text(layout, strict=False) == program_text(layout, strict=True)


@pytest.mark.parametrize("rules", ["", "d:data", "d:data+model"])
def test_infinite_elements_stay_infinite_beside_padding(rules):
    """The largest finite number, in place of infinity, would be larger than -inf."""
    mesh = mtf.Mesh("data:2;model:2", rules)
    x = mtf.asarray(mesh, np.full(5, -np.inf, "float32"), "d")
    assert mtf.reduce_max(x, "d").numpy() == -np.inf
    assert mtf.reduce_min(-x, "d").numpy() == np.inf
    assert mtf.reduce_logsumexp(x, "d").numpy() == -np.inf
    assert np.isnan(mtf.softmax(x, "d").numpy()).all()
    np.testing.assert_array_equal(mtf.math.cummax(x, "d").numpy(), x.numpy())


def inverse(x):
    """The inverse of a matrix: TensorFlow has none of a matrix of zeros."""
    return mtf.slicewise(tf.linalg.inv, [x], shardable="batch")


def weighted_inverse(x):
    """The gradient of a weight that all elements of a batch share."""
    w = mtf.ones(x.mesh, "i:2;j:2")
    y = mtf.slicewise(lambda x, w: tf.linalg.inv(x) * w, [x, w], shardable="batch")
    dx, dw = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x, w])
    return dx * dw


def looked_up(x):
    """Elements of a table, which refuses other indices."""
    ids = mtf.cast(x, "int32")
    table = np.arange(100, dtype="int32")
    return mtf.slicewise(lambda i: tf.gather(table, i), [ids], shardable="batch")


def whole(x):
    """Integers from 1 on."""
    return mtf.cast(x, "int32")


# Functions whose kernels refuse some values, none of which is among the elements.
REFUSE_VALUES = {
    "floordiv": lambda x: 100 // whole(x),
    "floormod": lambda x: whole(x) % whole(x + 2.0),
    "pow": lambda x: whole(x) ** whole(x),
    "slicewise": looked_up,
    "inverse": inverse,
    "gradient": weighted_inverse,
}


@pytest.mark.sampled(12, each="name")
@pytest.mark.parametrize("name", REFUSE_VALUES)
@pytest.mark.parametrize("size", [7, 4])  # shards of 3, 3, 1 and of 2, 2, 0 elements
@pytest.mark.parametrize("devices", [None, "spmd:cpu:3"])
@pytest.mark.parametrize("poison", [0, 1, 3])
def test_kernels_do_not_meet_values_that_only_padding_has(name, size, devices, poison):
    function = REFUSE_VALUES[name]
    x = np.arange(1, 4 * size + 1, dtype="float32").reshape(size, 2, 2)
    x[:, 0, 0] += 1
    want = function(mtf.asarray(mtf.Mesh(""), x, "batch;i;j")).numpy()
    mesh = mtf.Mesh("data:3", "batch:data", devices=devices)
    with poisoned_padding(poison):
        have = [
            function(mtf.asarray(mesh, x, "batch;i;j")).numpy(),
            mtf.function(function, mesh=mesh, x="batch;i;j")(x).numpy(),
        ]
    for y in have:
        np.testing.assert_allclose(y, want, rtol=1e-4)
