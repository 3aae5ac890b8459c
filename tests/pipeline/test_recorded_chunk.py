"""Weighted means in the layers and in the loss of a pipeline: those of the batch, with
weights that layers pass on or compute.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf

CASES = [  # mesh, layout, devices, microbatches, settings of the pipeline
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


def loss_of(outputs, labels, *padding):
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
            loss = pipe.loss(loss_of, (x, weights), labels)
        else:
            outputs = x, weights
            for layer in layers:
                outputs = layer(outputs)
            loss = loss_of(outputs, labels)
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
def expected(pad):
    return results("", "", None, 1, {"pad": pad}, pipelined=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_of_layers_and_losses(case):
    want = expected(case[-1].get("pad", False))
    for y, reference in zip(results(*case), want, strict=True):
        np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-5)


def test_eagerly_too():
    for y, reference in zip(results(*CASES[0], eager=True), expected(False)):
        np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-5)
