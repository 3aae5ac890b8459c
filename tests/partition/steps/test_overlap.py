"""Sums over devices an iteration late: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition.steps import overlap
from tests.support.stablehlo_traffic import received

LAYOUTS = {
    "data": {"axes": "data:4", "layout": "batch:data"},
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "ZeRO-1": {
        "axes": "data:4",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data",
    },
    "data and tensor": {"axes": "data:2;model:2", "layout": "batch:data;d_ff:model"},
    "padded": {"axes": "data:3;model:2", "layout": "batch:data;d_ff:model"},
}


@pytest.fixture
def overlap_on_cpus(monkeypatch):
    monkeypatch.setattr(overlap, "PLATFORMS", {"cpu"})


def step_of(mesh, layers=5, reverse=False):
    """Returns a function of training: layers of two kernels, a scale and a bias each."""
    normal = mtf.layers.initializers.normal(0.3)
    shapes = {
        "wi": f"layers:{layers};d_model:6;d_ff:8",
        "wo": f"layers:{layers};d_ff:8;d_model:6",
        "scale": f"layers:{layers};d_model:6",
    }
    variables = {
        name: mtf.Variable(mesh, shape, normal, name, dtype="float64")
        for name, shape in shapes.items()
    }
    optimizer = mtf.optimizers.AdamW(list(variables.values()), 0.01)

    @mtf.function(mesh=mesh, x="batch;d_model", step="")
    def step(x, step):
        def layer(h, weights):
            wi, wo, scale = weights
            z = mtf.tanh(mtf.einsum([h * scale, wi], "batch;d_ff"))
            return h + mtf.einsum([z, wo], "batch;d_model"), mtf.reduce_mean(z)

        xs = [v.tensor() for v in variables.values()]
        h, means = mtf.scan(layer, x, xs, "layers", reverse=reverse)
        loss = mtf.reduce_mean(mtf.square(h)) + mtf.reduce_sum(means)
        gradients = mtf.gradients([loss], list(variables.values()))
        optimizer.apply_gradients(gradients, list(variables.values()), step)
        return loss

    return step, variables


def trained(mesh, seed, **settings):
    """Returns the losses of three steps, and the variables after them."""
    with mtf.seed(3):
        step, variables = step_of(mesh, **settings)
    x = np.random.default_rng(seed).normal(size=(12, 6))
    losses = [float(step(x, np.int32(k))) for k in range(3)]
    return losses, {name: v.numpy() for name, v in variables.items()}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_are_those_of_one_device(layout, reverse, seed, overlap_on_cpus):
    want_losses, want = trained(mtf.Mesh(""), seed, reverse=reverse)
    settings = dict(LAYOUTS[layout])
    axes = settings.pop("axes")
    size = mtf.Mesh(axes).size
    mesh = mtf.Mesh(axes, devices=f"spmd:cpu:{size}", **settings)
    losses, variables = trained(mesh, seed, reverse=reverse)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-10)
    for name, value in variables.items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6, atol=1e-9)


def test_a_gpu_receives_what_is_forecast():
    mesh = mtf.Mesh("data:4", "batch:data")
    step, _ = step_of(mesh, layers=6)
    args = np.ones((12, 6)), np.int32(0)
    # In bytes of float64: all gradients of a layer, once for each of the layers and for zeros.
    layer = 6 * 8 + 8 * 6 + 6
    for platform, layers in (("", 6), ("cuda", 7)):
        module = mtf.export(step, *args, platform=platform).module
        got = received(module)["all_reduce"]
        assert got == pytest.approx(8 * layers * layer * 2 * 3 / 4, rel=0.02)
    forecast = mtf.explain(step, *args, hardware="h100", runtime="spmd")
    total = sum(x.total for x in forecast.collectives if x.kind == "all_reduce")
    assert total == pytest.approx(got)


def test_each_layer_of_gradients_is_summed_within_the_loop():
    mesh = mtf.Mesh("data:4", "batch:data", devices="abstract")
    step, _ = step_of(mesh, layers=6)
    args = np.ones((12, 6)), np.int32(0)
    behind, within = (
        mtf.explain(step, *args, hardware=hardware, runtime="spmd")
        for hardware in ("tpu_v5e", "h100")
    )
    of_weights = [x for x in within.collectives if "d_ff" in dict(x.tensor.shape)]
    assert sorted(x.times for x in of_weights) == [1, 1, 6, 6]
    assert within.memory.gradients == behind.memory.gradients
    # XLA makes one collective of those of an iteration: one latency.
    seconds = sum(x.seconds * x.times for x in within.collectives)
    assert seconds == pytest.approx(dict(within.time.collectives)["data"])


def test_what_something_else_reads_is_summed_behind_the_loop(seed, overlap_on_cpus):
    """Partial sums that are results, or that two steps read, and those of a single layer."""
    results = []
    for devices in (None, "spmd:cpu:4"):
        mesh = mtf.Mesh("data:4", "batch:data", devices=devices)

        @mtf.function(mesh=mesh, x="batch;d", w="layers;d")
        def gradients(x, w):
            h, _ = mtf.scan(lambda h, w: (mtf.tanh(h * w), None), x, w, "layers")
            loss = mtf.reduce_sum(mtf.square(h))
            (dw,) = mtf.gradients([loss], [w])
            return dw, mtf.reduce_sum(dw * 2.0), mtf.reduce_max(mtf.square(dw))

        rng = np.random.default_rng(seed)
        for layers in (1, 2, 5):
            x, w = rng.normal(size=(8, 3)), rng.normal(size=(layers, 3))
            results.append([y.numpy() for y in gradients(x, w)])
    for want, got in zip(results[:3], results[3:]):
        for y, expected in zip(got, want):
            np.testing.assert_allclose(y, expected, rtol=1e-9)
