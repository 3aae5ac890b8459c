"""What half floats round away, and the data types that optimizers and their updates
refuse.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.graph import apply, apply_all
from meshtf.ops.variables.optimizer_updates import (
    AdamUpdate,
    MomentumUpdate,
)
from tests.optimizers.test_dtypes import HALF, OPTIMIZERS, numpy_type
from tests.support.refusals import refuses


def test_decay_smaller_than_the_rounding_of_half_floats_is_not_lost_beside_the_update():
    mesh = mtf.Mesh("")
    variable = mtf.Variable(
        mesh, "a:1;b:1", lambda m, s, n: mtf.ones(m, s, "bfloat16"), "w", "bfloat16"
    )
    # 1 - 0.0015 - 0.0015 lies nearer to 1 - 2**-8 than to 1; each alone would be
    # rounded away.
    optimizer = optimizers.AdamW([variable], 0.0015, weight_decay=1.0)
    optimizer.apply_gradients(
        [mtf.ones(mesh, variable.shape, "bfloat16")],
        [variable],
        mtf.asarray(mesh, np.int32(0), ""),
    )
    assert float(variable.numpy().astype("float32")[0, 0]) == 1 - 2.0**-8


@pytest.mark.parametrize("dtype", HALF)
def test_many_microbatches_of_half_floats_are_added_in_float32(dtype):
    mesh = mtf.Mesh("data:2", "batch:data")
    v = mtf.Variable(mesh, "a:2", lambda m, s, n: mtf.ones(m, s, dtype), "w", dtype)

    @mtf.function(mesh=mesh, x="batch;a")
    def grads(x):
        return optimizers.accumulate_gradients(
            lambda examples: mtf.reduce_sum(v * examples), [v], x, "batch", 1024
        )[1][0]

    got = grads(np.ones((4096, 2), numpy_type(dtype)))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.numpy().astype("float32"), [4.0, 4.0])


def test_complex_variables_are_refused_by_name_but_by_plain_descent():
    mesh = mtf.Mesh("")
    v = mtf.Variable(
        mesh, "a:2", lambda m, s, n: mtf.ones(m, s, "complex64"), "w", "complex64"
    )
    for make, _ in OPTIMIZERS.values():
        if make is not OPTIMIZERS["sgd"][0]:
            with refuses(
                mtf.DTypeError,
                "complex numbers",
                "'w' is complex64",
                "SGD without momentum",
            ):
                make(
                    [
                        v,
                        mtf.Variable(
                            mesh, "a:2", lambda m, s, n: mtf.ones(m, s), "bias"
                        ),
                    ]
                )
    optimizers.SGD([v], 0.5).apply_gradients(
        [mtf.ones(mesh, "a:2", "complex64")],
        [v],
        mtf.asarray(mesh, np.int32(0), ""),
    )
    np.testing.assert_array_equal(v.numpy(), [0.5, 0.5])


@pytest.mark.parametrize("dtype", ["float64", *HALF])
def test_updates_of_two_data_types_are_refused_before_tensorflow_ends_the_process(
    dtype,
):
    mesh = mtf.Mesh("")
    w = mtf.Variable(mesh, "a:2", lambda m, s, n: mtf.ones(m, s, dtype), "w", dtype)
    m, v = (
        mtf.Variable(mesh, "a:2", lambda m, s, n: mtf.zeros(m, s), name)
        for name in "mv"
    )
    grad = mtf.ones(mesh, "a:2")
    rate = mtf.full(mesh, "", 0.1)
    for op in (AdamUpdate(w, m, v, 0.9, 0.999, 1e-8), MomentumUpdate(w, m, 0.9, False)):
        with refuses(mtf.DTypeError, f"'w' is {dtype} and its slot 'm' float32"):
            apply_all(op, grad, rate)
        with refuses(
            mtf.DTypeError, "computed in float32; an input of " + dtype, "mtf.cast"
        ):
            apply_all(op, mtf.ones(mesh, "a:2", dtype), rate)
        with refuses(
            mtf.DTypeError, "computed in float32; its value in " + dtype, "mtf.cast"
        ):
            apply(op.slots_update(), grad, rate, w.tensor())
