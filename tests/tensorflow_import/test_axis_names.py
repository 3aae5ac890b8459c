"""Names of axes that an argument and the program must agree on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

SPECS = tf.TensorSpec([4, 3]), tf.TensorSpec([4, 3])


def test_axes_that_meet_have_one_name():
    mesh = mtf.Mesh("data:2")
    inputs = {"x": "batch; d", "y": "batch; e"}
    with pytest.raises(mtf.ShapeError, match="axis 1 of \"y\" 'e'.*called 'd'"):
        mtf.from_tensorflow(lambda x, y: x + y, mesh, *SPECS, inputs=inputs)


def test_a_name_may_stand_for_two_dimensions_that_meet_in_one_tensor():
    def scores(x, y):
        return tf.einsum("qd,kd->qk", x, y)

    mesh = mtf.Mesh("data:2", "batch:data")
    inputs = {"x": "batch; d", "y": "batch; d"}
    program = mtf.from_tensorflow(scores, mesh, *SPECS, inputs=inputs)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    result = program(x, x)
    assert len(set(result.shape.names)) == 2
    np.testing.assert_allclose(result.numpy(), x @ x.T, rtol=1e-5)
