"""Gradient rules that run code again, or draw again, draw what the forward pass drew: in
microbatches, pipelines, loops and recomputation, and in all of these at once.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

BATCH, LENGTH = 8, 8


class Noisy(mtf.Module):
    """Dropout whose gradient draws the mask again."""

    def __init__(self, again, name):
        super().__init__(name)
        self.again = again

    def __call__(self, x):
        def drop(x):
            return mtf.dropout(x, 0.5, name="noise")

        def drop_with_rule(x):
            return drop(x), lambda dy: [drop(dy)]

        return mtf.custom_gradient(drop_with_rule)(x) if self.again else drop(x)


class Block(mtf.Module):
    """A block with dropout, whose gradient draws again, or that has the gradient of its ops.

    Args:
      mesh: the mesh of the variables.
      kind: what draws: "ring", "reversible" or "rule".
      again: whether the gradient draws again.
    """

    def __init__(self, mesh, kind, again, name="block"):
        super().__init__(name)
        self.kind = kind
        with self.scope():
            if kind == "ring":
                # Of the same names.
                names = (mesh, "d:8", "heads:2", "key:4")
                ring = {"block": "length:4", "method": "ring"} if again else {}
                cls = ContextParallel if again else layers.MultiHeadAttention
                self.layer = cls(*names, dropout_rate=0.5, name="a", **ring)
            elif kind == "reversible":
                functions = [
                    layers.FeedForward(mesh, "d:8", "f:8", "gelu", 0.5, name=f"f{i}")
                    for i in range(2)
                ]
                self.layer = (layers.Reversible if again else OneByOne)(functions)
            else:
                self.dense = layers.Dense(mesh, "d:8", "f:8", name="dense")
                self.layer = Noisy(again, "noisy")

    def __call__(self, x):
        if self.kind == "ring":
            return x + self.layer(x, training=True)
        if self.kind == "reversible":
            y1, y2 = self.layer(x, 0.5 * x, training=True)
            return y1 + mtf.sin(y2)
        return x + mtf.rename(self.layer(mtf.sin(self.dense(x))), "f", "d")


ContextParallel = layers.ContextParallelAttention


class OneByOne(mtf.Module):
    """What `Reversible` computes."""

    def __init__(self, functions):
        super().__init__("reversible")
        self.functions = functions

    def __call__(self, x1, x2, **settings):
        for f in self.functions:
            x1, x2 = x2, x1 + f(x2, **settings)
        return x1, x2


def nest_of(name, mesh, block):
    """Returns variables, and a function of x and a mean that returns loss and gradients.

    Args:
      name: how blocks are nested.
      mesh: the mesh.
      block: a function of a name that returns a block.
    """
    if name == "pipeline":
        pipe = mtf.pipeline.GPipe([block("b0"), block("b1")], 2, 2, recompute=True)
        variables = pipe.trainable_variables

        def run(loss_of, x):
            loss = pipe.loss(loss_of, x)
            return loss, mtf.gradients([loss], variables)

        return variables, run
    if name == "scan":
        model = layers.Repeat(lambda: block("b"), "layers:2", recomputed=True, name="r")
    else:
        model = block("b")
    variables = model.trainable_variables
    call = mtf.recompute(model) if name == "recompute" else model

    def accumulate(loss_of, x):
        def loss(x):
            if name == "seed inside":
                with mtf.seed(5, 6):
                    return loss_of(call(x))
            return loss_of(call(x))

        count = 1 if name == "one" else 2
        return mtf.optimizers.accumulate_gradients(loss, variables, x, "batch", count)

    return variables, accumulate


def numbers(kind, again, nest, axes="", layout="", devices=None, eager=False):
    """Returns the loss and all gradients of blocks that are nested."""
    mesh = mtf.Mesh(axes, layout, devices=devices)
    variables, run = nest_of(
        nest, mesh, lambda name: Block(mesh, kind, again, name=name)
    )
    random = np.random.default_rng(0)
    for variable in variables:
        variable.assign(0.5 * random.normal(size=variable.shape.sizes))

    def step(x):
        with mtf.seed(3):
            return run(lambda y: mtf.reduce_mean(mtf.square(y + 1.0)), x)

    x = random.normal(size=(BATCH, LENGTH, 8)).astype("float32")
    step = step if eager else mtf.function(step, mesh=mesh)
    loss, grads = step(mtf.asarray(mesh, x, "batch;length;d"))
    return [loss.numpy(), *(grad.numpy() for grad in grads)]


KINDS = ["ring", "reversible", "rule"]
NESTS = ["one", "microbatches", "recompute", "scan", "seed inside", "pipeline"]
expected_numbers = functools.cache(numbers)


def assert_equal(have, expected):
    assert len(have) == len(expected) > 1
    for x, y in zip(have, expected):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(y).max())


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_ops(kind, nest):
    assert_equal(numbers(kind, True, nest), expected_numbers(kind, False, nest))


@pytest.mark.parametrize("nest", ["microbatches", "scan", "pipeline"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_ops_in_eager_mode(kind, nest):
    have = numbers(kind, True, nest, eager=True)
    assert_equal(have, expected_numbers(kind, False, nest))


MESHES = [
    ("data:2", "batch:data", None),
    ("seq:2;data:2", "batch:data;length:seq", None),
    ("data:2;seq:2", "batch:data;length:seq", "spmd:cpu"),
]


@pytest.mark.sampled(3, each="kind")
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("nest", NESTS[1:5])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_same_on_every_mesh(kind, nest, mesh):
    have = numbers(kind, True, nest, *mesh)
    assert_equal(have, expected_numbers(kind, False, nest))


def drop(x):
    return mtf.dropout(x, 0.5, name="noise")


@mtf.custom_gradient
def noisy(x):
    return drop(x), lambda dy: [drop(dy)]


@mtf.custom_gradient
def with_noisy_gradient(x):
    return x * 1.0, lambda dy: [drop(dy)]


def mask(x):
    return x.numpy() != 0


def test_a_rule_draws_with_the_seeds_of_the_forward_pass():
    x = mtf.ones(mtf.Mesh(""), "d:64")
    with mtf.seed(1):
        y = noisy(mtf.square(x))
        expected = drop_mask = mask(mtf.dropout(x, 0.5, seed=1, name="noise"))
    assert (mask(y) == drop_mask).all()
    for seed in (None, 2):
        with mtf.seed(seed) if seed else mtf.scope("elsewhere"):
            (dx,) = mtf.gradients([y], [x])
            (ddx,) = mtf.gradients([dx], [x])
        assert (mask(dx) == expected).all() and (mask(ddx) == expected).all()


def test_a_rule_without_seeds_of_the_forward_pass_has_those_of_the_backward_pass():
    x = mtf.ones(mtf.Mesh(""), "d:64")
    y = with_noisy_gradient(x)
    with mtf.seed(1):
        (dx,) = mtf.gradients([y], [x])
    assert (mask(dx) == mask(mtf.dropout(x, 0.5, seed=1, name="noise"))).all()
    with pytest.raises(mtf.PlanError, match="needs a seed"):
        mtf.gradients([y], [x])


@pytest.mark.parametrize(
    "both",
    [lambda x: with_noisy_gradient(with_noisy_gradient(x)), lambda x: noisy(drop(x))],
    ids=["two rules", "a function and an op"],
)
def test_two_random_ops_of_one_path_are_refused_in_rules(both):
    x = mtf.ones(mtf.Mesh(""), "d:64")
    with pytest.raises(mtf.PlanError, match="two random ops"), mtf.seed(1):
        mtf.gradients([both(x)], [x])


@pytest.mark.parametrize("fn", [noisy, with_noisy_gradient])
def test_a_seed_that_a_loop_computes(fn):
    """The rule alone may read the seed."""
    mesh = mtf.Mesh("")

    @mtf.function(mesh=mesh)
    def step(x, first):
        def body(carry, index):
            with mtf.seed(first + index * 2):
                return fn(carry), None

        y, _ = mtf.scan(body, x, mtf.range(mesh, "iterations:2"))
        return mtf.gradients([y], [x])[0]

    expected = 1.0
    for index in range(2):
        # A seed alone is drawn in no loop.
        expected = expected * mtf_mask_in_loop(mesh, 5 + 2 * index, index)
    np.testing.assert_array_equal(
        step(mtf.ones(mesh, "d:64"), mtf.constant(mesh, 5)).numpy(), expected
    )


def mtf_mask_in_loop(mesh, seed, index):
    """Returns the mask of an iteration, divided by the probability."""
    masks = []

    def body(carry, _):
        with mtf.seed(seed):
            masks.append(drop(mtf.ones(mesh, "d:64")))
        return carry, None

    mtf.scan(body, mtf.ones(mesh, ""), mtf.range(mesh, "iterations:2"))
    return masks[index].numpy()


class Counting(mtf.Module):
    """Batch norm that counts its calls."""

    def __init__(self, mesh):
        super().__init__("counting")
        with self.scope():
            zeros = layers.initializers.zeros
            self.count = mtf.Variable(mesh, "", zeros, name="count", trainable=False)
            self.norm = layers.BatchNorm(mesh, "d:4", name="norm")

    def __call__(self, x):
        self.count.assign(self.count + 1.0)
        return self.norm(x, training=True)


@pytest.mark.parametrize("recorded", [False, True])
def test_what_runs_again_writes_no_second_time(recorded, rng):
    mesh = mtf.Mesh("")
    layer = Counting(mesh)
    reversible = layers.Reversible([layer])
    x = mtf.asarray(mesh, rng.normal(size=(8, 4)).astype("float32"), "batch;d")

    def step(x):
        y1, y2 = reversible(x, x)
        return mtf.gradients([mtf.square(y1), mtf.square(y2)], [x])

    (mtf.function(step, mesh=mesh) if recorded else step)(x)
    assert layer.count.numpy() == 1
    momentum = layer.norm.momentum
    np.testing.assert_allclose(
        layer.norm.moving_mean.numpy(), (1 - momentum) * x.numpy().mean(0), atol=1e-6
    )


def test_batch_norm_of_reversible_layers_in_microbatches(rng):
    mesh = mtf.Mesh("")
    reversible = layers.Reversible([layers.BatchNorm(mesh, "d:4", name="norm")])
    x = mtf.asarray(mesh, rng.normal(size=(8, 4)).astype("float32"), "batch;d")

    @mtf.function(mesh=mesh)
    def step(x):
        def loss_of(x):
            y1, y2 = reversible(x, 0.5 * x, training=True)
            return mtf.reduce_mean(y1 * y2)

        variables = reversible.trainable_variables
        return mtf.optimizers.accumulate_gradients(loss_of, variables, x, "batch", 2)

    step(x)
    norm = reversible.functions[0]
    np.testing.assert_allclose(
        norm.moving_mean.numpy(),
        (1 - norm.momentum) * 0.5 * x.numpy().mean(0),
        atol=1e-6,
    )


def test_later_dimensions_do_not_make_what_was_drawn_ambiguous():
    """A rule knows the dimensions of the microbatch as they were in the forward pass."""
    mesh = mtf.Mesh("")

    @mtf.function(mesh=mesh)
    def step(x):
        def loss_of(x):
            tokens = mtf.flatten(x, ["batch", "d"], "tokens")
            y = noisy(tokens * tokens)
            other = mtf.flatten(mtf.transpose(x, "d; batch"), ["d", "batch"], "tokens")
            return mtf.reduce_sum(y) + mtf.reduce_sum(other)

        with mtf.seed(1):
            return mtf.optimizers.accumulate_gradients(loss_of, [w], x * w, "batch", 2)

    w = mtf.Variable(mesh, "", layers.initializers.ones, name="w")
    loss, _ = step(mtf.ones(mesh, "batch:8;d:4"))
    assert np.isfinite(loss.numpy())
