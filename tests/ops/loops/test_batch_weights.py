"""Weights of the whole batch in the layers of a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.scalar_op import Scalar
from meshtf.ops.loops.batch_weights import degree_after, reduction_of_degree
from meshtf.ops.reductions.reduce import Reduce

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
W = RNG.normal(size=(5, 3)).astype("float32")
MASK = np.float32([1, 0, 0, 2, 1, 3, 0, 1])


def weighted(h, w, mask):
    """A layer with two weighted means over the batch: as a quotient, and by the inverse."""
    h = mtf.sin(h * w)
    count = mtf.maximum(mtf.mean_over_microbatches(mtf.reduce_sum(mask)), 1e-9)
    squares = mtf.reduce_sum(mtf.square(h), "d")
    mean = mtf.reduce_sum(squares * mask) / count
    of_features = mtf.reduce_sum(h * mask * (1.0 / count), "batch")
    return h, (mean, of_features * 2.0)


def run(layer, axes="", **settings):
    """Returns the means of all layers, and gradients of their sum."""
    mesh = mtf.Mesh(axes, "layers:stage", optional_axes="stage", **settings)
    w = mtf.Variable(mesh, "layers:5; d:3", "zeros", name="w")
    w.assign(W)

    @mtf.function(mesh=mesh, x="batch; d", mask="batch")
    def step(x, mask):
        _, (means, of_features) = mtf.scan(
            lambda h, w: layer(h, w, mask), x, w, "layers"
        )
        loss = mtf.reduce_sum(means) + mtf.reduce_sum(mtf.sin(of_features))
        return loss, mtf.gradients([loss], [w])

    loss, (dw,) = step(X, MASK)
    return float(loss), dw.numpy()


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_means_are_those_of_the_batch(microbatches, devices):
    settings = {} if devices is None else {"devices": devices}
    got = run(weighted, "stage:2", microbatches=microbatches, **settings)
    for value, expected in zip(got, run(weighted)):
        np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_a_mean_weight_is_that_of_the_batch(microbatches):
    """A sum over the mean weight is a sum, and a mean over it is a mean."""

    def layer(h, w, mask):
        weight = mtf.mean_over_microbatches(mtf.reduce_mean(mask))
        h = mtf.sin(h * w)
        return h, (mtf.reduce_sum(h) / weight, mtf.reduce_mean(h, "batch") * weight)

    got = run(layer, "stage:2", microbatches=microbatches)
    for value, expected in zip(got, run(layer)):
        np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-6)


def test_weights_of_examples_are_refused():
    def layer(h, w, mask):
        return h * mtf.mean_over_microbatches(mask) * w, (
            mtf.reduce_sum(h),
            mtf.reduce_sum(h, "batch"),
        )

    with pytest.raises(mtf.PlanError, match="of what has no examples"):
        run(layer, "stage:2", microbatches=2)


def test_a_weight_that_comes_through_the_layers_is_refused():
    def layer(h, w, mask):
        weight = mtf.mean_over_microbatches(mtf.reduce_sum(mtf.square(h)))
        return h * w, (mtf.reduce_sum(h) / weight, mtf.reduce_sum(h, "batch"))

    with pytest.raises(mtf.PlanError, match="comes through the layers"):
        run(layer, "stage:2", microbatches=2)


def test_a_result_that_is_no_mean_is_refused():
    def layer(h, w, mask):
        weight = mtf.mean_over_microbatches(mtf.reduce_sum(mask))
        return h * w, (weight, mtf.reduce_sum(h, "batch"))

    with pytest.raises(mtf.PlanError, match="depends on the weight of the batch"):
        run(layer, "stage:2", microbatches=2)


def test_degrees():
    assert degree_after(Binary("divide"), [0, 1]) == -1
    assert degree_after(Binary("multiply"), [1, -1]) == 0
    assert degree_after(Scalar("divide", 2.0, True), [1]) == -1
    assert degree_after(Scalar("multiply", 2.0), [1]) == 1
    assert degree_after(Scalar("add", 2.0), [1]) is None
    assert degree_after(Binary("add"), [0, 1]) is None
    assert degree_after(Reduce("sum", ("d",)), [-1]) == -1
    assert reduction_of_degree("sum", -1) == "mean"
    assert reduction_of_degree("sum", 0) == "sum"
    assert reduction_of_degree("mean", 1) == "sum"
    assert reduction_of_degree("mean", -1) is None
