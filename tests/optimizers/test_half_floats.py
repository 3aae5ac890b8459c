"""What half floats round away, also in sums over devices (`Mesh(reduce_dtype=...)`), and the data
types that optimizers and their updates refuse.
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

LAYERS = 4
ROUNDING = 2.0**-8  # of bfloat16
LAYOUTS = {
    "data": {"axes": "data:2", "layout": "batch:data"},
    "FSDP": {
        "axes": "data:2",
        "layout": "batch:data",
        "variable_layout": "d:data",
    },
    "ZeRO-1": {
        "axes": "data:2",
        "layout": "batch:data",
        "optimizer_layout": "d:data",
    },
    "data and tensor": {"axes": "data:2; model:2", "layout": "batch:data; e:model"},
}


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


def training_step(mesh, clips):
    """Returns a step of SGD with rate 1 on scanned layers and a table, and the variables."""
    normal = mtf.layers.initializers.normal(0.25)
    shapes = {"w": f"layers:{LAYERS}; d:8; e:8", "table": "ids:16; d:8"}
    variables = [
        mtf.Variable(mesh, shape, normal, name) for name, shape in shapes.items()
    ]
    optimizer = mtf.optimizers.SGD(variables, 1.0)

    @mtf.function(mesh=mesh, ids="batch", step="")
    def step(ids, step):
        w, table = (v.tensor() for v in variables)

        def layer(h, w):
            z = mtf.einsum([h, mtf.cast(w, "bfloat16")], "batch; e")
            z = mtf.tanh(z)
            y = mtf.einsum([z, mtf.cast(w, "bfloat16")], "batch; d")
            return h + y, None

        h = mtf.cast(mtf.gather(table, ids, "ids"), "bfloat16")
        h, _ = mtf.scan(layer, h, w, "layers")
        loss = mtf.reduce_sum(mtf.square(mtf.cast(h, "float32")))
        gradients = mtf.gradients([loss], variables)
        if clips:
            gradients, _ = mtf.optimizers.clip_by_global_norm(gradients, 1e6)
        optimizer.apply_gradients(gradients, variables, step)
        return loss

    return step, variables


def gradients_of(mesh, clips, seed):
    """Returns the gradients that a step has subtracted from the variables."""
    step, variables = training_step(mesh, clips)
    before = [v.numpy().astype("float64") for v in variables]
    ids = np.random.default_rng(seed).integers(0, 16, 12)
    step(ids.astype("int32"), np.int32(0))
    return [x - v.numpy() for x, v in zip(before, variables)]


@pytest.mark.sampled(4, each="layout devices clips")
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("devices", ["separate", "spmd:cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_differ_by_a_rounding(layout, devices, clips, seed):
    kwargs = dict(LAYOUTS[layout])
    axes = kwargs.pop("axes")
    kwargs["devices"] = f"{devices}:{mtf.Mesh(axes).size}"
    exact, rounded = (
        gradients_of(mtf.Mesh(axes, reduce_dtype=dtype, **kwargs), clips, seed)
        for dtype in ("float32", "bfloat16")
    )
    for x, y in zip(exact, rounded):
        # Two terms, which are rounded before, and the sum.
        assert np.abs(x - y).max() < 3 * ROUNDING * np.abs(x).max()
    assert np.any(exact[0] != rounded[0])


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("hardware", ["", "h100"])
def test_half_the_bytes_are_received(hardware, clips):
    settings = {"hardware": hardware, "runtime": "spmd"} if hardware else {}
    totals = {}
    for dtype in ("float32", "bfloat16"):
        mesh = mtf.Mesh("data:4", "batch:data", devices="abstract", reduce_dtype=dtype)
        step, _ = training_step(mesh, clips)
        forecast = mtf.explain(step, np.zeros(12, "int32"), np.int32(0), **settings)
        sums = [x for x in forecast.collectives if x.tensor.shape]
        assert {x.tensor.dtype for x in sums} == {dtype}
        totals[dtype] = sum(x.total for x in sums)
    assert totals["bfloat16"] == totals["float32"] / 2


def test_one_data_type_of_two():
    with pytest.raises(mtf.ArgumentError, match="'float32', 'bfloat16'"):
        mtf.Mesh("data:2", reduce_dtype="float16")
