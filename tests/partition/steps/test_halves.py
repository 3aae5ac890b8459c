"""Layers in two halves of the batch: the same numbers, masks and bytes."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import Program, build
from meshtf.partition.steps import overlap
from meshtf.partition.steps.halves import with_halves
from tests.support.stablehlo_traffic import received

LAYOUTS = {
    "tensor": {"axes": "model:2", "layout": "d_ff:model"},
    "data and tensor": {"axes": "data:2;model:2", "layout": "batch:data;d_ff:model"},
    "FSDP and tensor": {
        "axes": "data:2;model:2",
        "layout": "batch:data;d_ff:model",
        "variable_layout": "d_model:data",
    },
    "tensor along two axes": {"axes": "a:2;b:2", "layout": "d_ff:a;d_hidden:b"},
}
LAYERS = 3


@pytest.fixture
def overlap_on_cpus(monkeypatch):
    monkeypatch.setattr(overlap, "PLATFORMS", {"cpu"})


def step_of(mesh, dropout=0.3, reverse=False, recompute=False):
    """Returns a function of training: scanned layers with two sums along a tensor axis, dropout,
    a tensor with the batch from outside, a mean over it and stacked outputs.
    """
    normal = mtf.layers.initializers.normal(0.3)
    shapes = {
        "wi": f"layers:{LAYERS};d_model:6;d_ff:8;d_hidden:2",
        "wo": f"layers:{LAYERS};d_ff:8;d_hidden:2;d_model:6",
        "bias": f"layers:{LAYERS};d_model:6",
    }
    variables = {
        name: mtf.Variable(mesh, shape, normal, name, dtype="float64")
        for name, shape in shapes.items()
    }
    optimizer = mtf.optimizers.AdamW(list(variables.values()), 0.01)

    @mtf.function(mesh=mesh, x="batch;length;d_model", weights="batch", step="")
    def step(x, weights, step):
        def layer(h, xs):
            wi, wo, bias = xs
            for name in ("first", "second"):
                z = mtf.einsum([h, wi], "batch;length;d_ff;d_hidden")
                y = mtf.einsum([mtf.tanh(z), wo], "batch;length;d_model")
                y = mtf.dropout(y + bias, dropout, name=name) if dropout else y + bias
                h = h + mtf.tanh(y) * weights
            return h, (mtf.reduce_mean(z), h)

        body = mtf.recompute(layer) if recompute else layer
        xs = [v.tensor() for v in variables.values()]
        with mtf.seed(step):
            h, (means, hs) = mtf.scan(body, x, xs, "layers", reverse=reverse)
        loss = mtf.reduce_mean(mtf.square(h)) + mtf.reduce_sum(means)
        loss = loss + mtf.reduce_mean(hs * hs)
        gradients = mtf.gradients([loss], list(variables.values()))
        optimizer.apply_gradients(gradients, list(variables.values()), step)
        return loss, hs

    return step, variables


def arguments(seed, batch=8):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, 3, 6)), rng.uniform(size=batch)


def trained(mesh, seed, **settings):
    """Returns the results of two steps, and the variables after them."""
    with mtf.seed(3):
        step, variables = step_of(mesh, **settings)
    results = [step(*arguments(seed), np.int32(k)) for k in range(2)]
    values = [y.numpy() for result in results for y in result]
    return values + [v.numpy() for v in variables.values()]


def planned(layout, batch=8, **settings):
    """Returns the planned program of a training step, on a mesh without devices."""
    kwargs = dict(LAYOUTS[layout])
    mesh = mtf.Mesh(kwargs.pop("axes"), devices="abstract", **kwargs)
    step, _ = step_of(mesh, **settings)
    recorded = step.record_call((*arguments(0, batch), np.int32(0)), {}).recorded
    return build(recorded.nodes, recorded.results, mesh)


def turns(body: Program) -> list[int]:
    """Returns which half computes, in the order of the steps of a body, without repetitions."""
    result: list[int] = []
    for step in body.steps:
        half = step.computation.batch_half if step.computation is not None else None
        if half is not None and result[-1:] != [half.half_index]:
            result.append(half.half_index)
    return result


@pytest.mark.sampled(5, each="layout settings")
@pytest.mark.parametrize(
    "settings", [{}, {"reverse": True}, {"recompute": True}], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_are_those_of_one_device(layout, settings, seed, overlap_on_cpus):
    want = trained(mtf.Mesh(""), seed, **settings)
    kwargs = dict(LAYOUTS[layout])
    axes = kwargs.pop("axes")
    devices = f"spmd:cpu:{mtf.Mesh(axes).size}"
    mesh = mtf.Mesh(axes, devices=devices, two_batch_overlap=True, **kwargs)
    for got, expected in zip(trained(mesh, seed, **settings), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_halves_take_turns_at_each_sum(layout):
    program = with_halves(planned(layout))
    forward, backward = (step.loop.body for step in program.steps if step.loop)
    # Two sums in a layer make three chunks.
    assert turns(forward) == [0, 1] * 3
    assert len(turns(backward)) >= len(turns(forward))
    assert "halves of 'batch' in mtf.scan" in program.overlap[0]


def test_what_cannot_be_halved_stays():
    program = planned("data and tensor", batch=6)  # three examples on a device
    rewritten = with_halves(program)
    assert rewritten.steps == program.steps
    assert "no loop" in rewritten.notes[-1]


@pytest.mark.parametrize("batch", [8, 12])
def test_a_gpu_receives_the_same_bytes(batch):
    totals = []
    for overlap_of_halves in (False, True):
        mesh = mtf.Mesh(
            "data:2;model:2",
            "batch:data;d_ff:model",
            two_batch_overlap=overlap_of_halves,
        )
        step, _ = step_of(mesh)
        args = (*arguments(0, batch), np.int32(0))
        module = mtf.export(step, *args, platform="cuda").module
        forecast = mtf.explain(step, *args, hardware="h100", runtime="spmd")
        reduced = [x.total for x in forecast.collectives if x.kind == "all_reduce"]
        assert sum(reduced) == pytest.approx(received(module)["all_reduce"])
        totals.append(sum(reduced))
    assert totals[0] == pytest.approx(totals[1])
