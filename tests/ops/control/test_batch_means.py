"""Weighted means in microbatches and pipelines are those of the batch, however weights are
distributed.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.support.refusals import refuses

CASES = [  # mesh, layout, devices
    ("", "", None),
    ("x:2;y:2", "batch:x;d:y", None),
    ("x:2", "length:x", None),
    ("x:2", "batch:x", "spmd:cpu"),
]


def arrays():
    """Returns x, labels of which some are ignored, and weights that are 0 in many examples."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 5, (8, 6)).astype("int32")
    labels[3] = -1
    labels[1, 2:] = -100
    weights = np.zeros((8, 6), "float32")
    weights[0] = 1
    weights[1, :1] = 1
    weights[5, :3] = 0.5
    return rng.normal(size=(8, 6, 8)).astype("float32"), labels, weights


def model(mesh):
    return mtf.layers.Dense(mesh, "d:8", "c:5", name="dense")


def several_means(dense, x, labels, weights):
    """Means over weighted labels, over labels that count, and over weighted positions."""
    logits = dense(x)
    sizes = mtf.reduce_sum(mtf.square(logits), "c")
    return mtf.add_n(
        [
            mtf.layers.softmax_cross_entropy(logits, labels, "c", weights=weights),
            mtf.layers.softmax_cross_entropy(logits, labels, "c", z_loss=0.1) * 2.0,
            mtf.layers.weighted_mean(sizes, weights) * 0.1,
        ]
    )


def gradients(loss_of, case, microbatches, eager=False, scale=1.0):
    """Returns the loss and the gradients of a dense layer."""
    axes, layout, devices = case
    settings = {} if devices is None else {"devices": devices}
    mesh = mtf.Mesh(axes, layout, seed=1, **settings)
    dense = model(mesh)

    def run(x, labels, weights):
        loss, grads = mtf.optimizers.accumulate_gradients(
            lambda examples: loss_of(dense, *examples),
            dense.trainable_variables,
            (x, labels, weights),
            "batch",
            microbatches,
        )
        return [loss, *(dx for dx in grads if dx is not None)]

    x, labels, weights = arrays()
    args = [
        mtf.asarray(mesh, x, "batch;length;d"),
        mtf.asarray(mesh, labels, "batch;length"),
        mtf.asarray(mesh, weights * scale, "batch;length"),
    ]
    return [y.numpy() for y in (run if eager else mtf.function(run))(*args)]


@functools.cache
def expected():
    return gradients(several_means, CASES[0], 1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("microbatches, eager", [(2, False), (8, False), (4, True)])
def test_several_means_with_weights_of_their_own(case, microbatches, eager):
    got = gradients(several_means, case, microbatches, eager)
    for y, reference in zip(got, expected(), strict=True):
        np.testing.assert_allclose(y, reference, rtol=1e-5, atol=1e-6)


def test_all_weights_zero():
    def loss_of(dense, x, labels, weights):
        return mtf.layers.softmax_cross_entropy(dense(x), labels, "c", weights=weights)

    for y in gradients(loss_of, CASES[0], 4, scale=0.0):
        assert not y.any()


def test_weights_of_inner_loops():
    """A weight that an inner loop only reads is known before the loop; one that it computes
    is refused.
    """

    def read(dense, x, labels, weights):
        def body(total, row):
            sizes = mtf.reduce_sum(mtf.square(dense(row)), "c")
            per_example = mtf.reduce_sum(weights, "length")
            return total + mtf.layers.weighted_mean(sizes, per_example), None

        return mtf.scan(body, mtf.zeros(x.mesh, "", "float32"), x, dim="length")[0]

    want = gradients(read, CASES[0], 1)
    for y, reference in zip(gradients(read, CASES[1], 4), want, strict=True):
        np.testing.assert_allclose(y, reference, rtol=1e-5, atol=1e-6)

    def computed(dense, x, labels, weights):
        def body(total, entries):
            row, row_weights = entries
            sizes = mtf.reduce_sum(mtf.square(dense(row)), "c")
            return total + mtf.layers.weighted_mean(sizes, row_weights), None

        zero = mtf.zeros(x.mesh, "", "float32")
        return mtf.scan(body, zero, (x, weights), dim="length")[0]

    with refuses(mtf.PlanError, "what a loop or branch in the", "return both sums"):
        gradients(computed, CASES[0], 4)


def test_microbatches_of_microbatches():
    def loss_of(dense, *examples):
        loss, _ = mtf.optimizers.accumulate_gradients(
            lambda inner: several_means(dense, *inner), [], examples, "batch", 2
        )
        return loss

    got = gradients(loss_of, CASES[0], 4)
    np.testing.assert_allclose(got[0], expected()[0], rtol=1e-5)


def test_weights_alone_are_computed_before():
    """The program has no second forward pass: the matmuls are those without weights."""
    mesh = mtf.Mesh("x:2", "batch:x")
    dense = model(mesh)
    x, labels, weights = arrays()

    def flops(loss_of):
        @mtf.function(mesh=mesh, x="batch;length;d", labels="batch;length")
        def step(x, labels, weights):
            return mtf.optimizers.accumulate_gradients(
                lambda examples: loss_of(dense, *examples),
                dense.trainable_variables,
                (x, labels, weights),
                "batch",
                4,
            )

        weights_of = mtf.asarray(mesh, weights, "batch;length")
        return mtf.explain(step, x, labels, weights_of).flops()

    def mean(dense, x, labels, weights):
        return mtf.reduce_mean(mtf.cross_entropy(dense(x), labels, "c"))

    def weighted(dense, x, labels, weights):
        return mtf.layers.softmax_cross_entropy(dense(x), labels, "c", weights=weights)

    assert flops(weighted) < 1.1 * flops(mean)


def test_own_divisors_are_warned_of():
    def loss_of(dense, x, labels, weights):
        losses = mtf.cross_entropy(dense(x), labels, "c")
        return mtf.reduce_sum(losses * weights) / (mtf.reduce_sum(weights) + 1.0)

    with pytest.warns(mtf.MicrobatchWarning, match="weighted_mean"):
        gradients(loss_of, CASES[0], 2)

    def exact(dense, x, labels, weights):
        losses = mtf.cross_entropy(dense(x), labels, "c")
        weight = mtf.mean_over_microbatches(mtf.reduce_sum(weights))
        return mtf.reduce_sum(losses * weights) / weight

    want = gradients(exact, CASES[0], 1)
    for y, reference in zip(gradients(exact, CASES[0], 4), want, strict=True):
        np.testing.assert_allclose(y, reference, rtol=1e-5, atol=1e-6)


def test_weights_that_are_trained_are_refused():
    def loss_of(dense, x, labels, weights):
        logits = dense(x)
        losses = mtf.cross_entropy(logits, labels, "c")
        return mtf.layers.weighted_mean(losses, mtf.reduce_max(logits, "c"))

    with refuses(mtf.PlanError, "depends on 'dense/", "stop_gradient"):
        gradients(loss_of, CASES[0], 2)


def test_the_whole_batch_has_its_own_mean():
    mesh = mtf.Mesh("")
    x = mtf.asarray(mesh, np.float32(3), "")
    assert mtf.mean_over_microbatches(x) is x
    with pytest.raises(mtf.DTypeError, match="floats"):
        mtf.mean_over_microbatches(mtf.cast(x, "int32"))


PIPELINES = [  # mesh, layout, devices, microbatches, settings of the pipeline
    ("", "", None, 4, {}),
    ("stage:2", "", None, 4, {"chunks": 2, "recompute": True}),
    ("stage:2;data:2", "batch:data", None, 2, {"schedule": "gpipe", "pad": True}),
    ("stage:2;data:2", "batch:data", "spmd:cpu", 4, {"pad": True}),
]


class Layer(mtf.Module):
    """Takes and returns the state, weights, and the means so far of layers' losses."""

    def __init__(self, mesh, index):
        super().__init__(f"layer_{index}")
        with self.scope():
            self.dense = mtf.layers.FeedForward(mesh, "d:8", "d_ff:16", name="ff")
        self.index = index

    def __call__(self, inputs):
        x, weights, *losses = inputs
        y = x + self.dense(x)
        if self.index == 1:  # the weights of later layers are computed here
            weights = weights * 0.5 + mtf.maximum(weights - 0.25, 0.0)
        loss = mtf.layers.weighted_mean(mtf.square(y), weights)
        return y, weights, *losses, loss


def loss_of_pipeline(outputs, labels, *padding):
    y, weights, *losses = outputs
    if padding:
        weights = weights * padding[0]
    # Labels to be ignored, padding among them, do not count.
    labels_without_padding = labels
    if padding:
        is_padding = mtf.broadcast(padding[0], labels.shape) <= 0.0
        labels_without_padding = mtf.where(is_padding, -1, labels)
    terms = [
        mtf.layers.softmax_cross_entropy(y, labels, "d", weights=weights),
        mtf.layers.softmax_cross_entropy(y, labels_without_padding, "d"),
        *losses,
    ]
    return mtf.add_n(terms)


def results(axes, layout, devices, microbatches, settings, pipelined=True, eager=False):
    """Returns the loss, and the gradients of input, weights and variables."""
    mesh_settings = {} if devices is None else {"devices": devices}
    mesh = mtf.Mesh(axes, layout, seed=1, **mesh_settings)
    layers = [Layer(mesh, index) for index in range(4)]
    variables = [v for layer in layers for v in layer.trainable_variables]
    if pipelined:
        pipe = mtf.pipeline.GPipe(layers, 2, microbatches, **settings)

    def step(x, labels, weights):
        if pipelined:
            loss = pipe.loss(loss_of_pipeline, (x, weights), labels)
        else:
            outputs = x, weights
            for layer in layers:
                outputs = layer(outputs)
            loss = loss_of_pipeline(outputs, labels)
        return [loss, *mtf.gradients([loss * 2.0], [x, weights, *variables])]

    rng = np.random.default_rng(3)
    size = 6 if settings.get("pad") else 8
    labels = rng.integers(0, 8, (size, 4)).astype("int32")
    labels[2] = -1
    weights = np.zeros((size, 4), "float32")
    weights[0] = 1
    weights[1, :1] = 1
    weights[5, :3] = 0.5
    args = [
        mtf.asarray(mesh, rng.normal(size=(size, 4, 8)).astype("float32"), "batch;l;d"),
        mtf.asarray(mesh, labels, "batch;l"),
        mtf.asarray(mesh, weights, "batch;l"),
    ]
    program = step if eager else mtf.function(step, mesh=mesh)
    return [y.numpy() for y in program(*args)]


@functools.cache
def without_pipeline(pad):
    return results("", "", None, 1, {"pad": pad}, pipelined=False)


@pytest.mark.parametrize("case", PIPELINES, ids=str)
def test_weights_of_layers_and_losses_of_pipelines(case):
    want = without_pipeline(case[-1].get("pad", False))
    for y, reference in zip(results(*case), want, strict=True):
        np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-5)


def test_pipelines_eagerly():
    for y, reference in zip(
        results(*PIPELINES[0], eager=True), without_pipeline(False)
    ):
        np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-5)
