"""FTRL against Keras'."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers


@pytest.mark.parametrize("l1, l2", [(0.0, 0.0), (3.0, 0.0), (3.0, 0.2)])
@pytest.mark.parametrize(
    "mesh",
    [
        {"axes": ""},
        {"axes": "data:2;model:2", "layout": "a:data;b:model"},
        {"axes": "data:2", "optimizer_layout": "a:data"},
        {"axes": "model:2", "layout": "b:model", "devices": "spmd:cpu"},
    ],
    ids=["one position", "sharded", "ZeRO-1", "live"],
)
def test_updates_equal_those_of_keras(mesh, l1, l2, rng):
    mesh = mtf.Mesh(**mesh)
    variable = mtf.Variable(mesh, "a:4;b:6", initializers.normal(), name="w")
    expected = tf.Variable(variable.numpy())
    ours = optimizers.FTRL([variable], 0.1, l1=l1, l2=l2)
    # Keras' accumulator cannot begin at zero; its penalty l2 counts half.
    theirs = keras.optimizers.Ftrl(
        0.1,
        initial_accumulator_value=1e-20,
        l1_regularization_strength=l1,
        l2_regularization_strength=l2,
    )
    for step in range(4):
        grad = rng.normal(size=(4, 6)).astype("float32")
        ours.apply_gradients(
            [mtf.asarray(mesh, grad, "a:4;b:6")],
            [variable],
            mtf.asarray(mesh, np.int32(step), ""),
        )
        theirs.apply_gradients([(tf.constant(grad), expected)])
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert (variable.numpy() == 0).any() == (l1 > 0)


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_what_has_no_gradient_becomes_zero(devices):
    mesh = mtf.Mesh("", devices=devices)
    variable = mtf.Variable(mesh, "a:2", initializers.ones, name="w")
    optimizers.FTRL([variable], 0.1).apply_gradients(
        [mtf.asarray(mesh, np.array([0, 1], "float32"), "a")],
        [variable],
        mtf.asarray(mesh, np.int32(0), ""),
    )
    np.testing.assert_allclose(variable.numpy(), [0.0, 0.9], rtol=1e-6)
