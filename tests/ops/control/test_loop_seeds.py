"""Random ops in loops: other numbers in each iteration, wherever the seed is set, and
never by mode, layout or pass."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import meshtf as mtf
from meshtf.testing.conformance.exported_suite import run_exported

LAYOUTS = ["", "batch:x", "batch:x;d:y", "batch:y;k:x"]


@contextlib.contextmanager
def outside(inner):
    """A seed that is in force around a loop, or none: then its body sets one."""
    if inner:
        yield
    else:
        with mtf.seed(3):
            yield


def dropped(x, how):
    """Returns x after dropout, with the seed given in one of three ways."""
    if how == "argument":
        return mtf.dropout(x, 0.5, seed=3)
    with mtf.seed(3) if how == "inside" else contextlib.nullcontext():
        return mtf.dropout(x, 0.5)


def walk(x, how, again):
    def body(h, row):
        y = dropped(row, how)
        return h + y * y, y

    return mtf.scan(
        mtf.recompute(body) if again else body,
        x,
        mtf.broadcast(x, "k:6;batch:4;d:16"),
        "k",
    )


def nest(x, how, again):
    """Six iterations, as two of three: the number of each loop counts."""

    def outer(h, _):
        def inner(h, _):
            y = dropped(x, how)
            return h + y * y, y

        h, ys = mtf.scan(mtf.recompute(inner) if again else inner, h, length=3, dim="j")
        return h, ys

    h, ys = mtf.scan(outer, x, length=2, dim="i")
    return h, mtf.flatten(ys, "i;j", "k")


class Layer(mtf.Module):
    """Noise of its own in each layer."""

    def __init__(self, how):
        super().__init__("layer")
        self.how = how

    def __call__(self, x):
        return dropped(x, self.how)


def repeat(x, how, again):
    net = mtf.layers.Repeat(lambda: Layer(how), "k:6", recomputed=again)
    return net.each(lambda layer, h, _: step(layer, h, x), x)


def step(layer, h, x):
    y = layer(x)
    return h + y * y, y


LOOPS = [walk, nest, repeat]


def program(loop, how, again):
    def run(x):
        with outside(how != "outside"):
            h, ys = loop(x, how, again)
        return [ys, h, *mtf.gradients([mtf.reduce_sum(h)], [x])]

    return run


def ones(layout):
    mesh = mtf.Mesh("x:2;y:2", layout=layout)
    return mtf.asarray(mesh, np.ones((4, 16), "float32"), "batch;d")


@pytest.mark.sampled(4, each="loop how again")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("how", ["outside", "inside", "argument"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda p: p.__name__)
def test_each_iteration_has_its_own_mask_and_keeps_it(loop, how, again):
    run = program(loop, how, again)
    want, h, dx = (y.numpy() for y in run(ones("")))
    masks = want.reshape(6, 64)
    assert len({m.tobytes() for m in masks}) == 6
    assert 0.3 < (masks != 0).mean() < 0.7
    np.testing.assert_allclose(h, 1 + (want**2).sum(0))
    np.testing.assert_allclose(dx, 1 + 2 * (want**2).sum(0))  # by the same masks
    for layout in LAYOUTS:
        for got in (run(ones(layout)), mtf.function(run)(ones(layout))):
            for y, number in zip(got, (want, h, dx), strict=True):
                np.testing.assert_array_equal(y.numpy(), number, err_msg=layout)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda p: p.__name__)
def test_masks_of_iterations_are_exported(loop):
    run = program(loop, "inside", True)
    for y, number in zip(
        run_exported(run, [ones("batch:x;d:y")]), run(ones("")), strict=True
    ):
        np.testing.assert_allclose(y.numpy(), number.numpy(), 1e-6)


@pytest.mark.parametrize("how", ["outside", "inside", "argument"])
def test_a_while_loop_draws_anew_in_its_body_and_in_its_test(how):
    """A walk of twelve steps, whose test counts the numbers it drew."""

    def run(x):
        def test(seen, tested, n):
            return n < 12

        def body(seen, tested, n):
            y = dropped(x, how)
            return seen + y * mtf.cast(2**n, "float32"), tested + y, n + 1

        zero = mtf.zeros(x.mesh, "", "int32")
        with outside(how != "outside"):
            return list(mtf.while_loop(test, body, (x * 0.0, x * 0.0, zero)))

    seen, total, n = (y.numpy() for y in run(ones("")))
    assert n == 12 and len({*total.flatten()}) > 3  # one mask for all: 0 and 24 alone
    for layout in LAYOUTS:
        for y, number in zip(
            mtf.function(run)(ones(layout)), (seen, total, n), strict=True
        ):
            np.testing.assert_array_equal(y.numpy(), number, err_msg=layout)


def until_heads(x):
    """Turns a coin in the test alone; with one seed for all turns it never ends, or at
    once.
    """
    zero = mtf.zeros(x.mesh, "", "int32")

    def tails(n):
        return (mtf.random_uniform(x.mesh, "", seed=5, name="coin") < 0.9) & (n < 500)

    with mtf.seed(5):
        return [mtf.while_loop(tails, lambda n: n + 1, zero)]


def test_the_test_of_a_while_loop_draws_anew():
    (want,) = (y.numpy() for y in until_heads(ones("")))
    assert 0 < want < 500
    (got,) = mtf.function(until_heads)(ones("batch:x"))
    assert got.numpy() == want


def test_a_function_called_in_an_eager_loop_draws_anew_without_another_trace():
    x = ones("batch:x")

    @mtf.function
    def noise(x):
        return mtf.dropout(x, 0.5, seed=3)

    def run(x):
        return mtf.scan(lambda h, _: (h, noise(x)), x, length=5)[1]

    eager = run(x).numpy()
    assert len({m.tobytes() for m in eager}) == 5
    assert noise.traces == 1
    np.testing.assert_array_equal(mtf.function(run)(x).numpy(), eager)


def test_microbatches_draw_the_numbers_of_the_whole_batch():
    """Accumulation is no loop to random ops: its masks are those of the batch
    at once.
    """

    def run(microbatches):
        def loss_of(x):
            with mtf.seed(3):
                return mtf.reduce_mean(mtf.dropout(x, 0.5) ** 2)

        return lambda x: mtf.optimizers.accumulate_gradients(
            loss_of, [], x, "batch", microbatches
        )[0]

    want = run(1)(ones("")).numpy()
    for got in (
        run(2)(ones("")),
        run(4)(ones("")),
        mtf.function(run(2))(ones("batch:x")),
    ):
        np.testing.assert_allclose(got.numpy(), want, 1e-6)


def test_two_loops_of_one_path_under_one_seed_are_refused():
    def run(x):
        with mtf.seed(3):
            h, _ = mtf.scan(lambda h, _: (mtf.dropout(h, 0.5), None), x, length=2)
            return mtf.scan(lambda h, _: (mtf.dropout(h, 0.5), None), h, length=2)[0]

    for call in (run, mtf.function(run)):
        with pytest.raises(mtf.PlanError, match="two random ops are called 'dropout'"):
            call(ones(""))


def test_a_rule_of_ones_own_draws_anew_in_each_iteration():
    @mtf.custom_gradient
    def noisy(x):
        return x, lambda dy: [mtf.dropout(dy, 0.5, seed=4)]

    def run(x):
        ys = mtf.scan(
            lambda h, row: (h, noisy(row)),
            None,
            mtf.broadcast(x, "k:5;batch:4;d:16"),
            "k",
        )
        return mtf.gradients([mtf.reduce_sum(ys[1])], [x])

    (want,) = (y.numpy() for y in run(ones("")))
    assert len({*want.flatten()}) > 2
    np.testing.assert_array_equal(mtf.function(run)(ones("batch:x"))[0].numpy(), want)
