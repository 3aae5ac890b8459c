"""An op that fails while a program runs: the error has the user's line, on any mesh."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.placed import program_function
from meshtf.runtime.placed.failure_report import explain_failure
from tests.support.refusals import line_of, ones, refuses

MESHES = [
    ("", None),
    ("x:4", None),
    ("x:4", [f"CPU:{i}" for i in range(4)]),
    ("x:2;y:2", [f"CPU:{i}" for i in range(4)]),
]


def descent(mesh):
    """Returns a variable, and a function that updates it by rows of some numbers."""
    table = mtf.Variable(mesh, "rows:10;d:4", ones, "table")

    @mtf.function(mesh=mesh, ids="batch:4")
    def step(ids):
        loss = mtf.reduce_sum(mtf.gather(table, ids, "rows"))
        (gradient,) = mtf.gradients([loss], [table])
        table.assign(table - gradient)
        return loss

    return table, step


@pytest.mark.parametrize("shape, devices", MESHES)
def test_the_line_of_an_op_that_fails(shape, devices):
    table, step = descent(mtf.Mesh(shape, layout="batch:x;d:y", devices=devices))
    for _ in range(2):
        with refuses(
            tf.errors.InvalidArgumentError,
            "gather failed",
            "99 is not in",
            r"rows:10",
            r"test_failure_report\.py:\d+",
        ) as error:
            step(np.array([1, 2, 3, 99], "int32"))
        assert "mtf.gather(table, ids" in line_of(str(error.value), __file__)
    np.testing.assert_array_equal(table.numpy(), np.ones([10, 4]))
    assert step(np.array([1, 2, 3, 3], "int32")).numpy() == 16
    np.testing.assert_array_equal(table.numpy()[:4, 0], [1, 0, 0, -1])


def test_an_error_that_does_not_come_again_stays_as_it_is():
    fails = [True]

    class Once(mtf.graph.Op):
        """Fails the first time that it runs."""

        def output_specs(self, x):
            return (x,)

        def local(self, context, x):
            def lookup(x):
                if fails.pop() if fails else False:
                    raise ValueError("out of luck")
                return x

            y = tf.numpy_function(lookup, [x], x.dtype)
            return (tf.ensure_shape(y, x.shape),)

    step = mtf.function(
        lambda x: mtf.graph.apply(Once(), x), mesh=mtf.Mesh(""), x="d:4"
    )
    with refuses(tf.errors.InvalidArgumentError, "out of luck"):
        step(np.zeros(4, "float32"))
    np.testing.assert_array_equal(step(np.ones(4, "float32")).numpy(), np.ones(4))


@pytest.mark.parametrize("shape", ["", "x:2"])
def test_the_line_of_an_op_that_fails_in_a_loop(shape):
    mesh = mtf.Mesh(shape, layout="batch:x")
    table = mtf.Variable(mesh, "rows:10;d:4", ones, "table")

    @mtf.function(mesh=mesh, ids="batch")
    def total(ids):
        def body(carry, index):
            return carry + mtf.cast(
                mtf.reduce_sum(mtf.gather(table, carry, "rows")), "int32"
            ), None

        return mtf.scan(body, ids, length=4)[0]

    with refuses(
        tf.errors.InvalidArgumentError, "gather failed", r"test_failure_report\.py:\d+"
    ) as error:
        total(np.array([1, 2], "int32"))
    assert "mtf.gather(table, carry" in line_of(str(error.value), __file__)


def test_an_op_for_which_xla_has_no_kernel_is_named():
    mesh = mtf.Mesh("")

    def second_gradient(x):
        pooled = mtf.max_pool(x, "d:2", stride=2)
        (first,) = mtf.gradients([pooled * pooled], [x])
        return mtf.gradients([first], [x])

    x = mtf.asarray(mesh, np.arange(4.0), "d:4")
    with refuses(
        tf.errors.InvalidArgumentError,
        "maxpoolpick failed",
        "MaxPoolGradGrad",
        r"test_failure_report\.py:\d+",
        "Leave out jit=True",
    ):
        mtf.function(second_gradient, mesh=mesh, jit=True)(x)


@pytest.mark.parametrize("shape, devices", MESHES)
def test_the_report_of_a_cancelled_op(shape, devices, monkeypatch):
    """TensorFlow reports whichever of several devices ends first: often one that it cancelled.
    The op is found after an update as well.
    """
    mesh = mtf.Mesh(shape, layout="batch:x;d:y", devices=devices)
    table = mtf.Variable(mesh, "rows:10;d:4", ones, "table")
    count = mtf.Variable(mesh, "", ones, "count")

    @mtf.function(mesh=mesh, ids="batch:4")
    def step(ids):
        count.assign(count + 1)
        return mtf.reduce_sum(mtf.gather(table, ids + mtf.cast(count, "int32"), "rows"))

    def cancelled(error, *args):
        text = "Function was cancelled before it was started"
        return explain_failure(tf.errors.CancelledError(None, None, text), *args)

    monkeypatch.setattr(program_function, "explain_failure", cancelled)
    with refuses(mtf.errors.IndexRangeError, "gather failed", "is not in"):
        step(np.array([1, 2, 3, 99], "int32"))
