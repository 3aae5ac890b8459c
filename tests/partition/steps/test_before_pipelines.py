"""What pipelines wait for: sums that would else keep large tensors alive through the ticks."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.memory.xla_order import in_xla_order

LAYERS, BATCH, WIDTH, CLASSES = 4, 64, 8, 4


def arrays():
    """Returns x[batch, d], w[layers, d, e], v[d, classes]."""
    rng = np.random.default_rng(0)
    shapes = ((BATCH, WIDTH), (LAYERS, WIDTH, WIDTH), (WIDTH, CLASSES))
    return [rng.normal(size=shape).astype("float32") * 0.3 for shape in shapes]


def step(x, w, v):
    """Returns the loss of scanned layers and a classifier, and the gradients."""

    def layer(x, w):
        return mtf.rename(mtf.tanh(mtf.einsum([x, w], "batch;e")), "e", "d"), None

    y = mtf.scan(layer, x, w, dim="layers")[0]
    loss = mtf.reduce_mean(mtf.square(mtf.einsum([y, v], "batch;classes")))
    return [loss, *mtf.gradients([loss], [x, w, v])]


def function(axes, layout, devices=None):
    mesh = mtf.Mesh(axes, layout, devices=devices, optional_axes="stage;data")
    return mtf.function(step, mesh=mesh, x="batch;d", w="layers;d;e", v="d;classes")


def loops(program):
    return [x.loop for x in program.steps if x.loop is not None]


def awaited(program):
    return [[repr(x.spec.shape) for x in loop.waits_for] for loop in loops(program)]


def test_the_backward_pipeline_waits_for_products_that_it_does_not_read():
    program = function("stage:4;data:2", "layers:stage;batch:data").lower(*arrays())
    forward, backward = awaited(program.program)
    assert not forward
    assert f"[d:{WIDTH} classes:{CLASSES}]" in backward
    # Only sums: the loss, and the gradient of the classifier.
    assert set(backward) <= {f"[d:{WIDTH} classes:{CLASSES}]", "[]"}


def test_other_loops_wait_for_nothing():
    program = function("data:2", "batch:data").lower(*arrays())
    assert awaited(program.program) == [[], []]


def test_xla_runs_what_is_waited_for_before_the_pipeline():
    def before(axes, layout):
        program = function(axes, layout).lower(*arrays()).program
        steps = in_xla_order(program.steps, program.results)
        pipeline = max(i for i, x in enumerate(steps) if x.loop is not None)
        return [
            index < pipeline
            for index, x in enumerate(steps)
            if x.computation is not None and "classes" in repr(x.outputs[0].spec.shape)
            if x.title == "einsum" and "batch" not in repr(x.outputs[0].spec.shape)
        ]

    assert before("stage:4;data:2", "layers:stage;batch:data") == [True]


@pytest.mark.parametrize("devices", [None, "spmd:cpu:8"])
def test_numbers_are_those_of_one_device(devices):
    pipeline = function("stage:4;data:2", "layers:stage;batch:data", devices)
    expected = function("", "")(*arrays())
    for y, z in zip(pipeline(*arrays()), expected, strict=True):
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=2e-5, atol=1e-6)
