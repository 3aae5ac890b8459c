"""Second gradients of functions whose first gradient is one op, against TensorFlow's
tapes.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

FUNCTIONS = {
    "pow": (mtf.pow, tf.pow),
    "maximum": (mtf.maximum, tf.maximum),
    "logaddexp": (mtf.math.logaddexp, lambda x, y: tf.math.log(tf.exp(x) + tf.exp(y))),
}


def second_gradients_of_tensorflow(function, x, y):
    """Returns the gradients of the sum of squares of the gradients of
    sum(f(x, y)**2).
    """
    x, y = tf.constant(x), tf.constant(y)
    with tf.GradientTape() as outer:
        outer.watch([x, y])
        with tf.GradientTape() as inner:
            inner.watch([x, y])
            loss = tf.reduce_sum(tf.square(function(x, y)))
        dx_dy = inner.gradient(loss, [x, y])
        total = sum(tf.reduce_sum(tf.square(g)) for g in dx_dy)
    return outer.gradient(total, [x, y])


@pytest.mark.parametrize(
    "axes, layout", [("", ""), ("data:2;model:2", "b:data;d:model")]
)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients(name, recorded, axes, layout, rng):
    ours, theirs = FUNCTIONS[name]
    base, exponent = rng.uniform(0.4, 2, (4, 6)), rng.uniform(-1, 2, 6)
    mesh = mtf.Mesh(axes, layout)
    x = mtf.asarray(mesh, base, "b;d")
    y = mtf.asarray(mesh, exponent, "d")

    def second(x, y):
        dx_dy = mtf.gradients([mtf.reduce_sum(mtf.square(ours(x, y)))], [x, y])
        total = mtf.add_n([mtf.reduce_sum(mtf.square(g)) for g in dx_dy])
        return mtf.gradients([total], [x, y])

    actual = (mtf.function(second) if recorded else second)(x, y)
    for have, want in zip(
        actual, second_gradients_of_tensorflow(theirs, base, exponent), strict=True
    ):
        np.testing.assert_allclose(have.numpy(), want.numpy(), 1e-9, 1e-9)


@pytest.mark.parametrize("base", [0.0, -2.0])
def test_the_part_of_a_logarithm_of_nothing_is_zero(base):
    """As in the first gradient: a base that is not above zero has no gradient by its
    exponent.
    """
    mesh = mtf.Mesh("")
    x, y = (mtf.asarray(mesh, np.array([v], "float32"), "d") for v in (base, 2.0))
    dx, dy = mtf.gradients([mtf.pow(x, y)], [x, y])
    assert dy.numpy() == 0
    ddx, _ = mtf.gradients([dx], [x, y])
    assert ddx.numpy() == 2
    by_base, by_exponent = mtf.gradients([dy], [x, y])
    assert by_base.numpy() == 0 == by_exponent.numpy()
