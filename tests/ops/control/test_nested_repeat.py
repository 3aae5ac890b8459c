"""Repeated layers in repeated layers, and with modules that all of them share, layer by
layer.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

LAYOUTS = [
    ("", ""),
    ("batch:x;d_ff:y", "d:x"),
    ("d:x", "outer:y"),
    ("batch:x", "outer:x;d:y"),
]


class Cell(mtf.Module):
    """tanh(x * w + b), where b may belong to somebody else; with noise."""

    def __init__(self, mesh, shared=(), rate=0.0):
        super().__init__("cell")
        with self.scope():
            self.w = mtf.Variable(
                mesh, "d:8", mtf.layers.initializers.normal(1.0), name="w"
            )
        self.shared, self.rate = list(shared), rate

    def __call__(self, x):
        for module in self.shared:
            x = module(x)
        return mtf.dropout(mtf.tanh(x * self.w), self.rate)


class Shift(mtf.Module):
    """x + b: one b for all who have it."""

    def __init__(self, mesh, name):
        super().__init__(name)
        with self.scope():
            self.b = mtf.Variable(
                mesh, "d:8", mtf.layers.initializers.normal(1.0), name="b"
            )

    def __call__(self, x):
        return x + self.b


class Tower(mtf.Module):
    """Two repeated layers that share a module, which each tower has for itself."""

    def __init__(self, mesh, everywhere, recomputed, rate):
        super().__init__("tower")
        with self.scope():
            self.mine = Shift(mesh, "mine")
            self.cells = mtf.layers.Repeat(
                lambda: Cell(mesh, [self.mine, everywhere], rate),
                "inner:3",
                recomputed,
                name="cells",
            )

    def __call__(self, x):
        return mtf.sin(self.cells(x)) * 1.5


def network(layout, variable_layout, recomputed, rate=0.0):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, variable_layout=variable_layout, seed=3)
    everywhere = Shift(mesh, "everywhere")
    net = mtf.layers.Repeat(
        lambda: Tower(mesh, everywhere, recomputed, rate),
        "outer:2",
        recomputed,
        name="net",
    )
    return net, everywhere


def numbers(seed):
    return np.random.default_rng(seed).normal(size=(4, 8)).astype("float32")


def step(net, everywhere):
    variables = [net.layer.cells.layer.w, net.layer.mine.b, everywhere.b]

    def run(x):
        with mtf.seed(5):
            y = net(x)
        loss = mtf.reduce_sum(y * y)
        grads = mtf.gradients([loss], [x, *variables])
        return [
            loss,
            *grads,
            *mtf.gradients([mtf.reduce_sum(mtf.sin(grads[0]))], [x, *variables]),
        ]

    return run, variables


def plain(x, w, mine, everywhere):
    xs = [tf.constant(v) for v in (x, w, mine, everywhere)]
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            y, w, mine, everywhere = xs
            for i in range(2):
                for k in range(3):
                    y = tf.tanh((y + mine[i] + everywhere) * w[i, k])
                y = tf.sin(y) * 1.5
            loss = tf.reduce_sum(y * y)
        grads = inner.gradient(loss, xs)
        total = tf.reduce_sum(tf.sin(grads[0]))
    return [loss, *grads, *outer.gradient(total, xs)]


@pytest.mark.sampled(4, each="layout recomputed")
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("layout, variable_layout", LAYOUTS)
def test_repeated_in_repeated_with_shared_modules(
    layout, variable_layout, recomputed, seed
):
    net, everywhere = network(layout, variable_layout, recomputed)
    run, variables = step(net, everywhere)
    assert [v.shape.names for v in variables] == [
        ("outer", "inner", "d"),
        ("outer", "d"),
        ("d",),
    ]
    assert [v.path for v in variables] == [
        "net/tower/cells/cell/w",
        "net/tower/mine/b",
        "everywhere/b",
    ]
    want = plain(numbers(seed), *(v.numpy() for v in variables))
    x = mtf.asarray(everywhere.b.mesh, numbers(seed), "batch;d")
    for call in (run, mtf.function(run)):
        for i, (y, number) in enumerate(zip(call(x), want, strict=True)):
            np.testing.assert_allclose(y.numpy(), number, 2e-4, 2e-4, err_msg=str(i))


def test_noise_differs_in_all_layers_of_all_layers(seed):
    masks = []
    for layout, variable_layout in LAYOUTS:
        net, everywhere = network(layout, variable_layout, True, 0.5)
        x = mtf.asarray(everywhere.b.mesh, numbers(seed), "batch;d")

        def run(x, net=net):
            def tower(layer, h, _):
                return h, layer.cells.each(
                    lambda cell, h, _: (h, mtf.dropout(mtf.ones_like(h), 0.5)), x
                )[1]

            with mtf.seed(5):
                return net.each(tower, x)[1]

        masks += [run(x).numpy(), mtf.function(run)(x).numpy()]
    assert masks[0].shape == (2, 3, 4, 8)
    assert len({m.tobytes() for row in masks[0] for m in row}) == 6
    for other in masks[1:]:
        np.testing.assert_array_equal(other, masks[0])


def test_a_repeat_of_a_module_made_elsewhere_has_one_for_all(seed):
    """All layers are one module, which has no dimension of layers."""
    mesh = mtf.Mesh("x:2", layout="batch:x", seed=3)
    cell = Cell(mesh)
    net = mtf.layers.Repeat(lambda: cell, "layers:3")
    x = mtf.asarray(mesh, numbers(seed), "batch;d")

    def run(x):
        return [net(x), *mtf.gradients([mtf.reduce_sum(net(x))], [cell.w])]

    y, w = numbers(seed).astype("float64"), cell.w.numpy().astype("float64")
    slope = np.zeros_like(y)
    for _ in range(3):
        y, slope = np.tanh(y * w), (1 - np.tanh(y * w) ** 2) * (y + w * slope)
    for call in (run, mtf.function(run)):
        for got, want in zip(call(x), (y, slope.sum(0)), strict=True):
            np.testing.assert_allclose(got.numpy(), want, 1e-4, 1e-5)


def test_one_layer_in_two_repeats_of_one_name_is_not_confused(seed):
    """A module of one Repeat inside another of the same dimension is there as
    a whole.
    """
    mesh = mtf.Mesh("", seed=3)
    first = mtf.layers.Repeat(lambda: Cell(mesh), "layers:3", name="first")
    second = mtf.layers.Repeat(lambda: Cell(mesh, [first]), "layers:2", name="second")
    x = mtf.asarray(mesh, numbers(seed), "batch;d")
    y, w, v = numbers(seed), first.layer.w.numpy(), second.layer.w.numpy()
    assert w.shape == (3, 8) and v.shape == (2, 8)
    for k in range(2):
        for i in range(3):
            y = np.tanh(y * w[i])
        y = np.tanh(y * v[k])
    for call in (second, mtf.function(second)):
        np.testing.assert_allclose(call(x).numpy(), y, 1e-4, 1e-5)


def test_first_values_are_those_of_a_layer_alone():
    """The number of layers is no fan: each layer has a kernel of its own."""
    mesh = mtf.Mesh("", seed=3)

    def make():
        glorot = mtf.layers.initializers.glorot("d")
        return mtf.layers.Dense(mesh, "d:64", "e:64", kernel_initializer=glorot)

    net = mtf.layers.Repeat(lambda: mtf.layers.Repeat(make, "inner:4"), "outer:8")
    kernel = max(net.variables, key=lambda v: v.shape.size)
    assert kernel.shape.names[:2] == ("outer", "inner")
    np.testing.assert_allclose(kernel.numpy().std(), 1 / 8, rtol=0.02)


class Noisy(mtf.Module):
    """tanh(x * w) with dropout."""

    def __init__(self, mesh, name):
        super().__init__(name)
        with self.scope():
            self.w = mtf.Variable(
                mesh, "d:8", mtf.layers.initializers.normal(1.0), name="w"
            )

    def __call__(self, x):
        return mtf.dropout(mtf.tanh(x * self.w), 0.5)


@pytest.mark.parametrize("layout", ["", "batch:x;d:y"])
def test_reversible_layers_are_repeated(layout, seed):
    """Their gradient calls the layers again, with the weights and the masks of the
    iteration.
    """
    mesh = mtf.Mesh("x:2;y:2", layout=layout, seed=3)
    net = mtf.layers.Repeat(
        lambda: mtf.layers.Reversible([Noisy(mesh, "f"), Noisy(mesh, "g")]), "layers:3"
    )
    x = mtf.asarray(mesh, numbers(seed), "batch;d")

    def run(x, reversible):
        def both(layer, streams, _):
            a, b = streams
            if reversible:
                return layer(a, b), None
            for f in layer.functions:
                a, b = b, a + f(b)
            return (a, b), None

        with mtf.seed(9):
            (a, b), _ = net.each(both, (x, x * 2.0))
        loss = mtf.reduce_sum(mtf.sin(a)) + mtf.reduce_sum(b * b)
        return [loss, *mtf.gradients([loss], [x, *net.variables])]

    want = [y.numpy() for y in run(x, False)]
    for call in (run, mtf.function(run)):
        for y, number in zip(call(x, True), want, strict=True):
            np.testing.assert_allclose(y.numpy(), number, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "run", [mtf.function, lambda fn, mesh: fn], ids=["recorded", "eager"]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_within_a_layer_a_variable_has_the_shape_of_its_entry(depth, run):
    mesh = mtf.Mesh("data:2", "batch:data")
    seen = []

    class Layer(mtf.Module):
        def __init__(self, name="layer"):
            super().__init__(name)
            self.w = mtf.Variable(mesh, "d:4", "ones", "w")

        def __call__(self, x):
            seen.append((self.w.shape, self.w.tensor().shape))
            return mtf.einsum([x, self.w], x.shape.without("d") + self.w.shape)

    net = mtf.layers.Repeat(Layer, "inner:2", name="inner")
    if depth == 2:
        net = mtf.layers.Repeat(
            lambda: mtf.layers.Repeat(Layer, "inner:2", name="inner"), "outer:3"
        )
    y = run(lambda x: net(x), mesh=mesh)(mtf.ones(mesh, "batch:2;d:4"))
    np.testing.assert_array_equal(y.numpy(), 1.0)
    assert seen and all(a == b == mtf.Shape("d:4") for a, b in seen)
    assert net.variables[0].shape == mtf.Shape(
        ["", "inner:2;d:4", "outer:3;inner:2;d:4"][depth]
    )


@pytest.mark.parametrize(
    "run", [mtf.function, lambda fn, mesh: fn], ids=["recorded", "eager"]
)
def test_an_embedding_in_a_repeated_layer(run, rng):
    mesh = mtf.Mesh("data:2", "batch:data", seed=3)

    class Layer(mtf.Module):
        def __init__(self, name="layer"):
            super().__init__(name)
            with self.scope():
                self.embedding = mtf.layers.Embedding(mesh, "vocab:6", "d:4")

        def __call__(self, x):
            return x + mtf.reduce_sum(self.embedding.attend(x), "vocab")

    net = mtf.layers.Repeat(Layer, "layers:3")
    x = want = rng.normal(size=(2, 4)).astype("float32")
    y = run(lambda x: net(x), mesh=mesh)(mtf.asarray(mesh, x, "batch;d"))
    for table in net.variables[0].numpy():
        want = want + (want @ table.T).sum(1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), want, 1e-4)
