"""Sums over devices an iteration late: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition.steps import overlap

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
