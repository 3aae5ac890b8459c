"""Small TensorFlow functions with branches, loops and gradients of their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tensorflow_import.rule_cases import Case

raw = tf.raw_ops


@tf.custom_gradient
def clipped(x: tf.Tensor) -> Any:
    return x * x, lambda dy: tf.clip_by_value(dy, -0.5, 0.5) * x


CASES: dict[str, Case] = {
    "a condition": (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: x**2),
        ["f 8 6"],
    ),
    "a case": (
        lambda x, i: tf.switch_case(
            i[0], [lambda: x, lambda: x * 2.0, lambda: tf.zeros_like(x)]
        ),
        ["f 8 6", "i 4"],
    ),
    "a loop over items": (
        lambda x, w: tf.scan(lambda a, r: tf.tanh(a @ w + r), x, tf.zeros([8, 6])),
        ["f 5 8 6", "f 6 6"],
    ),
    "a loop backwards": (
        lambda x: tf.scan(lambda a, r: a * 0.5 + r, x, reverse=True),
        ["f 5 8"],
    ),
    "a short loop": (lambda x: tf.map_fn(lambda r: r * r[0], x), ["f 2 6"]),
    "a loop that fills a tensor": (
        lambda x: tf.while_loop(
            lambda k, y, a: k < 5,
            lambda k, y, a: (
                k + 1,
                tf.tensor_scatter_nd_add(
                    tf.tensor_scatter_nd_update(y, [[4 - k]], a[None]),
                    [[k]],
                    tf.gather(x, [k]),
                ),
                tf.tanh(a * tf.gather(x, k)),
            ),
            (0, raw.Empty(shape=[5, 8], dtype=tf.float32, init=True), x[0] + 1.0),
        )[1],
        ["f 5 8"],
    ),
    "a counter": (
        lambda x: tf.while_loop(
            lambda k, y: k < 6,
            lambda k, y: (k + 2, y * tf.cast(k + 1, y.dtype)),
            (0, x),
        )[1],
        ["f 8 6"],
    ),
    "a rule for the gradient": (
        lambda x: clipped(x * 3.0) + tf.nn.silu(x),
        ["f 8 6"],
    ),
}
WITHOUT_GRADIENT: dict[str, Case] = {
    "a loop until": (
        lambda x: tf.while_loop(
            lambda y: tf.reduce_sum(y) < 100.0, lambda y: (y * 1.5 + 1.0,), (tf.abs(x),)
        )[0],
        ["f 8 6"],
    ),
}
