"""Small TensorFlow functions that add updates at computed places."""

from __future__ import annotations

import tensorflow as tf

from tests.tensorflow_import.rule_cases import Case

CASES: dict[str, Case] = {
    "scatter": (
        lambda x, i: tf.scatter_nd(i[:, None], x, [4, 6]) + x[:1],
        ["f 8 6", "i 8"],
    ),
    "scatter by several indices": (
        lambda x, i, j: tf.scatter_nd(tf.stack([i, j], -1), x, [4, 5, 2]),
        ["f 8 6 2", "i 8 6", "i 8 6"],
    ),
    "addition to several rows": (
        lambda x, y, i: tf.tensor_scatter_nd_add(x, i[:, None], y),
        ["f 4 6", "f 8 6", "i 8"],
    ),
}
WITHOUT_GRADIENT: dict[str, Case] = {
    "scatter of numbers": (
        lambda i, j: tf.scatter_nd(tf.stack([i, j], 1), tf.ones([8]), [4, 4]),
        ["i 8", "i 8"],
    ),
}
