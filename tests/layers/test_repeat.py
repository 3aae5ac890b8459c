"""Repeated layers: the numbers of layers one by one, in every layout, as one traced
body.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition import Compute, walk

LAYOUTS = [
    ("", ""),
    ("batch:x;d_ff:y", ""),
    ("batch:x;d_ff:y", "d:x"),
    ("d:x", "layers:y"),
]


class Block(mtf.Module):
    """A residual feed-forward layer with dropout."""

    def __init__(self, mesh, rate=0.0, name="block"):
        super().__init__(name)
        with self.scope():
            self.norm = mtf.layers.LayerNorm(mesh, "d:8", name="norm")
            self.ff = mtf.layers.FeedForward(mesh, "d:8", "d_ff:16", name="ff")
            self.dropout = mtf.layers.Dropout(rate, name="dropout")

    def __call__(self, x, scale=1.0):
        return x + self.dropout(self.ff(self.norm(x)), training=True) * scale


def repeated(layout, variable_layout, seed, rate=0.0, recomputed=False):
    """Returns what a deep network and its gradients are, and its variables."""
    mesh = mtf.Mesh(
        "x:2;y:2", layout=layout, variable_layout=variable_layout, seed=seed
    )
    net = mtf.layers.Repeat(
        lambda: Block(mesh, rate), "layers:4", recomputed, name="net"
    )

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        with mtf.seed(seed):
            y = net(x, scale=0.5)
        loss = mtf.reduce_mean(y * y)
        return [loss, *mtf.gradients([loss], net.trainable_variables)]

    x = np.random.default_rng(seed).normal(size=(4, 8)).astype("float32")
    return [y.numpy() for y in step(x)], net, step.lower(x), x


def one_by_one(net, x):
    """The same network as layers of their own, with the rows of its variables."""
    mesh = mtf.Mesh("")
    blocks = [Block(mesh) for _ in range(net.dim.size)]
    for i, block in enumerate(blocks):
        for variable, rows in zip(block.variables, net.layer.variables, strict=True):
            assert (
                rows.path == f"net/{variable.path}" and rows.shape.names[0] == "layers"
            )
            variable.assign(rows.numpy()[i])
    variables = [v for block in blocks for v in block.trainable_variables]

    @mtf.function(x="batch;d")
    def step(x):
        for block in blocks:
            x = block(x, scale=0.5)
        loss = mtf.reduce_mean(x * x)
        return [loss, *mtf.gradients([loss], variables)]

    loss, *grads = (y.numpy() for y in step(x))
    each = len(blocks[0].trainable_variables)
    return [loss, *(np.stack(grads[k::each]) for k in range(each))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout, variable_layout", LAYOUTS)
@pytest.mark.parametrize("recomputed", [False, True])
def test_repeated_layers_are_layers_one_by_one(
    layout, variable_layout, recomputed, seed
):
    got, net, _, x = repeated(layout, variable_layout, seed, recomputed=recomputed)
    for y, expected in zip(got, one_by_one(net, x), strict=True):
        np.testing.assert_allclose(y, expected, 1e-4, 1e-6)


def test_dropout_differs_between_layers_and_not_between_layouts(seed):
    expected, *_ = repeated("", "", seed, rate=0.5)
    for layout, variable_layout in LAYOUTS[1:]:
        for recomputed in (False, True):
            got, *_ = repeated(layout, variable_layout, seed, 0.5, recomputed)
            for y, z in zip(got, expected, strict=True):
                np.testing.assert_allclose(y, z, 1e-4, 1e-6)
    mesh = mtf.Mesh("")
    with mtf.seed(seed):
        _, masks = mtf.scan(
            lambda h, _: (h, mtf.dropout(h, 0.5)), mtf.ones(mesh, "d:64"), length=3
        )
    assert len({row.tobytes() for row in masks.numpy()}) == 3


def test_the_program_does_not_grow_with_the_layers(seed):
    mesh = mtf.Mesh("x:2", layout="batch:x")

    def ops(num_layers):
        net = mtf.layers.Repeat(lambda: Block(mesh), f"layers:{num_layers}")
        program = mtf.function(lambda x: net(x), mesh=mesh, x="batch;d").lower(
            np.ones((4, 8), "f")
        )
        return sum(isinstance(step, Compute) for step, _ in walk(program.program))

    assert ops(2) == ops(24)


def test_a_layer_that_changes_its_input_is_refused():
    mesh = mtf.Mesh("")
    net = mtf.layers.Repeat(lambda: mtf.layers.Dense(mesh, "d:8", "e:8"), "layers:2")
    with pytest.raises(mtf.ShapeError, match="before"):
        net(mtf.ones(mesh, "batch:2;d:8"))


def test_layers_have_rows_and_make_stacks(rng):
    mesh = mtf.Mesh("x:2", "d:x")
    net = mtf.layers.Repeat(lambda: Block(mesh), "layers:3", name="net")
    x = mtf.asarray(mesh, rng.normal(size=(2, 8)).astype("float32"), "batch;d")
    rows = mtf.range(mesh, "layers:3", "float32")

    def body(block, h, row):
        h = block(h, scale=row)
        return h, {"sums": mtf.reduce_sum(h), "none": None}

    y, stacked = mtf.function(lambda x: net.each(body, x, rows), mesh=mesh)(x)
    assert stacked["none"] is None
    assert stacked["sums"].shape == mtf.Shape("layers:3")
    np.testing.assert_allclose(stacked["sums"].numpy()[-1], y.numpy().sum(), rtol=1e-5)
    np.testing.assert_allclose(
        stacked["sums"].numpy()[0], x.numpy().sum(), rtol=1e-5
    )  # row 0


class Inner(mtf.Module):
    """x * weights, less a step down the gradient by x and by the weights."""

    def __init__(self, mesh):
        super().__init__("inner")
        with self.scope():
            self.weights = mtf.Variable(
                mesh, "d:8", mtf.layers.initializers.normal(1.0), "weights"
            )

    def __call__(self, x):
        y = mtf.sin(x * self.weights)
        dx, dw = mtf.gradients([mtf.reduce_sum(y * y)], [x, self.weights])
        return y - dx * 0.1 - dw * 0.05


@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
@pytest.mark.parametrize("layout, variable_layout", LAYOUTS)
def test_gradients_in_a_layer_are_by_its_own_weights(layout, variable_layout, run, rng):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, variable_layout=variable_layout)
    array = rng.normal(size=(4, 8)).astype("float32")
    for recomputed in (False, True):
        net = mtf.layers.Repeat(lambda: Inner(mesh), "layers:4", recomputed)
        weights = net.layer.weights.numpy()
        h = tf.constant(array)
        with tf.GradientTape() as outer:
            rows = [tf.constant(w) for w in weights]
            outer.watch(rows)
            for w in rows:
                with tf.GradientTape() as tape:
                    tape.watch([h, w])
                    y = tf.sin(h * w)
                    loss = tf.reduce_sum(y * y)
                dh, dw = tape.gradient(loss, [h, w])
                h = y - dh * 0.1 - dw * 0.05
            loss = tf.reduce_sum(h * h)
        expected = [h, np.stack(outer.gradient(loss, rows))]

        def step(x, net=net):
            y = net(x)
            return [y, *mtf.gradients([mtf.reduce_sum(y * y)], [net.layer.weights])]

        for y, z in zip(
            run(step)(mtf.asarray(mesh, array, "batch;d")), expected, strict=True
        ):
            np.testing.assert_allclose(y.numpy(), z, 1e-3, 1e-5)


@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
@pytest.mark.parametrize("layout, variable_layout", LAYOUTS)
def test_a_variable_that_a_layer_returns_is_its_own_entry(layout, variable_layout, run):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, variable_layout=variable_layout)
    for recomputed in (False, True):
        net = mtf.layers.Repeat(lambda: Inner(mesh), "layers:4", recomputed)

        def step(x, net=net):
            last, seen = net.each(lambda layer, h, _: (layer.weights, layer.weights), x)
            return [last, seen, *mtf.gradients([last * 2.0, seen], [net.layer.weights])]

        last, seen, dw = run(step)(mtf.ones(mesh, "d:8"))
        weights = net.layer.weights.numpy()
        np.testing.assert_array_equal(last.numpy(), weights[-1])
        np.testing.assert_array_equal(seen.numpy(), weights)
        np.testing.assert_array_equal(dw.numpy()[:, 0], [1, 1, 1, 3])


def test_a_copy_has_layers_of_its_own():
    mesh = mtf.Mesh("x:2")
    blocks = mtf.layers.Repeat(lambda: Block(mesh), "layers:3", name="net")
    duplicate = copy.deepcopy(blocks)
    x = mtf.asarray(mesh, np.ones((4, 8), "float32"), "batch;d")
    expected = blocks(x).numpy()
    for variable in blocks.variables:
        variable.assign(variable * 2.0)
    np.testing.assert_array_equal(duplicate(x).numpy(), expected)
