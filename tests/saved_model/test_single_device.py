"""Programs as TensorFlow's own ops."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import meshtf as mtf


def test_no_gradient_flows_through_a_barrier(tmp_path):
    fn = mtf.function(lambda x: x * mtf.stop_gradient(x), mesh=mtf.Mesh(""), x="d")
    x = np.arange(4, dtype="float32")
    mtf.export_saved_model(fn, x).save(str(tmp_path / "served"))
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    watched = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y = loaded.signatures["serving_default"](x=watched)["output_0"]
    np.testing.assert_array_equal(tape.gradient(y, watched), x)
