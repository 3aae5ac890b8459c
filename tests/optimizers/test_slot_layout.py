"""The data type in which devices add up gradients: `Mesh(reduce_dtype=...)`."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

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


def step_of(mesh, clips):
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
    step, variables = step_of(mesh, clips)
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
        step, _ = step_of(mesh, clips)
        forecast = mtf.explain(step, np.zeros(12, "int32"), np.int32(0), **settings)
        sums = [x for x in forecast.collectives if x.tensor.shape]
        assert {x.tensor.dtype for x in sums} == {dtype}
        totals[dtype] = sum(x.total for x in sums)
    assert totals["bfloat16"] == totals["float32"] / 2


def test_one_data_type_of_two():
    with pytest.raises(mtf.ArgumentError, match="'float32', 'bfloat16'"):
        mtf.Mesh("data:2", reduce_dtype="float16")
