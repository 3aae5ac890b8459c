"""Sums by several kernels are those of NumPy, in as many ops as is worth it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.common.sum_kernels import sum_over


@pytest.mark.parametrize("shape", [(16, 9, 12, 11), (2, 3, 4, 5), (4, 8192)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_every_choice_of_axes(shape, dtype, seed):
    x = np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)
    for number in range(len(shape) + 1):
        for axes in itertools.permutations(range(len(shape)), number):
            y = sum_over(tf.constant(x), axes)
            assert y.dtype == dtype
            np.testing.assert_array_equal(
                y, x.sum(axes)
            )  # small integers: no order matters


@pytest.mark.parametrize(
    "shape, axes, ops",
    [
        ((16, 128, 64), [0, 1], ["BiasAddGrad"]),
        ((16, 8, 64, 128), [0, 2], ["Sum", "BiasAddGrad"]),
        ((16, 128, 64), [2], ["Sum"]),
        ((16, 128, 64), [0, 1, 2], ["Sum"]),
        ((4, 8192), [0], ["Sum"]),
        ((16, 16), [0], ["Sum"]),
    ],
)
def test_the_kernel_that_is_taken(shape, axes, ops):
    found = (
        tf.function(lambda x: sum_over(x, axes))
        .get_concrete_function(tf.TensorSpec(shape))
        .graph.get_operations()
    )
    assert [op.type for op in found if op.type in ("Sum", "BiasAddGrad")] == ops


def test_xla_sums_the_last_dimension_by_itself():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = np.random.default_rng(0).standard_normal((8, 64, 128)).astype("float32")

    @mtf.function(mesh=mesh, jit=True, x="batch;length;d_model")
    def total(x):
        return mtf.reduce_sum(mtf.square(x), "batch;length")

    np.testing.assert_allclose(total(x).numpy(), np.square(x).sum((0, 1)), rtol=1e-5)
    ((compiled, _),) = total._compiled.values()
    library = [callee.definition for callee in compiled.executable.graph_functions]
    (segment,) = [
        [n.op for n in f.node_def]
        for f in library
        if any(n.op == "Square" for n in f.node_def)
    ]
    assert segment.count("Sum") == 2 and "XlaOptimizationBarrier" in segment
