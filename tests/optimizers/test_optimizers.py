"""Optimizers against Keras, clipping against TensorFlow, schedules against what they
say.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers

PAIRS = {
    "sgd": (lambda vs: optimizers.SGD(vs, 0.1), lambda: keras.optimizers.SGD(0.1)),
    "momentum": (
        lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ),
    "nesterov": (
        lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (
        lambda vs: optimizers.Adam(vs, 0.1, epsilon=1e-3),
        lambda: keras.optimizers.Adam(0.1, epsilon=1e-3),
    ),
    "adamw": (
        lambda vs: optimizers.AdamW(
            vs, 0.1, weight_decay=0.3, decay_mask=lambda v: True
        ),
        lambda: keras.optimizers.AdamW(0.1, weight_decay=0.3, epsilon=1e-8),
    ),
}


def step_at(mesh, step):
    return mtf.asarray(mesh, np.int32(step), "")


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    "axes, layout",
    [("", ""), ("data:2;model:2", "a:data;b:model")],
    ids=["one device", "cut"],
)
def test_four_updates_equal_those_of_keras(name, axes, layout, rng):
    mesh = mtf.Mesh(axes, layout)
    variable = mtf.Variable(mesh, "a:4;b:6", initializers.normal(), name="w")
    other = tf.Variable(variable.numpy())
    ours = PAIRS[name][0]([variable])
    theirs = PAIRS[name][1]()
    for step in range(4):
        grad = rng.normal(size=(4, 6)).astype("float32")
        ours.apply_gradients(
            [mtf.asarray(mesh, grad, "a:4;b:6")], [variable], step_at(mesh, step)
        )
        theirs.apply_gradients([(tf.constant(grad), other)])
        # Both find 1 - 0.999**t in float32, which leaves four digits.
        np.testing.assert_allclose(
            variable.numpy(), other.numpy(), rtol=1e-4, atol=1e-5
        )


def test_weight_decay_does_not_change_vectors():
    mesh = mtf.Mesh("")
    matrix, vector = (
        mtf.Variable(mesh, shape, initializers.ones, name=shape[0])
        for shape in ("a:2;b:2", "b:2")
    )
    optimizer = optimizers.AdamW([matrix, vector], 0.1, weight_decay=0.5)
    optimizer.apply_gradients(
        [mtf.zeros(mesh, v.shape) for v in (matrix, vector)],
        [matrix, vector],
        step_at(mesh, 0),
    )
    np.testing.assert_allclose(matrix.numpy(), np.full((2, 2), 0.95))
    np.testing.assert_array_equal(vector.numpy(), np.ones(2))


def test_slots_lie_as_their_variables_do():
    mesh = mtf.Mesh("data:2;model:2", "b:model", variable_layout="a:data")
    with mtf.scope("net"):
        variable = mtf.Variable(mesh, "a:4;b:6", initializers.zeros, name="w")
    slots = optimizers.Adam([variable]).variables
    assert sorted(s.name for s in slots) == ["adam/net/w/m", "adam/net/w/v"]
    assert all(s.placement == variable.placement and not s.trainable for s in slots)


def test_a_variable_without_gradient_stays():
    mesh = mtf.Mesh("")
    variables = [
        mtf.Variable(mesh, "a:2", initializers.ones, name=name) for name in "vw"
    ]
    optimizer = optimizers.Adam(variables, 0.1)
    optimizer.apply_gradients(
        [None, mtf.ones(mesh, "a:2")], variables, step_at(mesh, 0)
    )
    np.testing.assert_array_equal(variables[0].numpy(), np.ones(2))
    assert (variables[1].numpy() < 1).all()


def test_a_variable_of_another_model_is_refused():
    mesh = mtf.Mesh("")
    known, unknown = (
        mtf.Variable(mesh, "a:2", initializers.ones, name=n) for n in "vw"
    )
    with pytest.raises(mtf.PlanError, match="Adam was not made for variable 'w'"):
        optimizers.Adam([known]).apply_gradients(
            [mtf.ones(mesh, "a:2")], [unknown], step_at(mesh, 0)
        )


@pytest.mark.parametrize("step", [0, np.int32(0)])
def test_a_step_that_is_no_tensor_of_the_mesh_is_refused(step):
    variable = mtf.Variable(mtf.Mesh(""), "a:2", initializers.ones, "v")
    with pytest.raises(
        mtf.PlanError, match="its step as a tensor, not as(.|\n)*step=''"
    ):
        optimizers.Adam([variable]).apply_gradients(
            [mtf.ones(variable.mesh, "a:2")], [variable], step
        )


@pytest.mark.parametrize("limit", [0.5, 100.0, None])
def test_clipping_equals_tensorflows(limit, rng):
    mesh = mtf.Mesh("data:2;model:2", "a:data;b:model")
    arrays = [rng.normal(size=size).astype("float32") for size in ((4, 6), (6,))]
    expected_values, want_norm = tf.clip_by_global_norm(arrays, limit or np.inf)
    expected_values = expected_values if limit else arrays
    named = [mtf.asarray(mesh, x, s) for x, s in zip(arrays, ("a:4;b:6", "b:6"))]
    (first, none, second), norm = optimizers.clip_by_global_norm(
        [named[0], None, named[1]], limit
    )
    assert none is None
    assert float(norm) == pytest.approx(float(want_norm), rel=1e-5)
    for have, expected in zip((first, second), expected_values):
        np.testing.assert_allclose(have.numpy(), expected, rtol=1e-5)


def test_the_norm_of_nothing_is_refused():
    with pytest.raises(mtf.PlanError, match="every gradient is None"):
        optimizers.clip_by_global_norm([None], 1.0)


@pytest.mark.parametrize(
    "step, expected",
    [
        (0, 0.1),
        (4, 0.5),
        (9, 1.0),
        (10, 1.0),
        (15, 0.2 + 0.8 * 0.5),
        (20, 0.2),
        (99, 0.2),
    ],
)
def test_warmup_cosine(step, expected):
    rate = optimizers.warmup_cosine(
        peak=1.0, warmup_steps=10, total_steps=20, final=0.2
    )
    assert float(rate(step_at(mtf.Mesh(""), step))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "step, expected", [(0, 0.5), (3, 2.0), (4, 2 * math.sqrt(4 / 5)), (15, 1.0)]
)
def test_warmup_inverse_sqrt(step, expected):
    rate = optimizers.warmup_inverse_sqrt(peak=2.0, warmup_steps=4)
    assert float(rate(step_at(mtf.Mesh(""), step))) == pytest.approx(expected, rel=1e-5)


def test_a_schedule_sets_the_rate():
    mesh = mtf.Mesh("")
    variable = mtf.Variable(mesh, "a:2", initializers.zeros, name="w")
    rate = optimizers.warmup_inverse_sqrt(peak=2.0, warmup_steps=4)
    optimizers.SGD([variable], rate).apply_gradients(
        [mtf.ones(mesh, "a:2")], [variable], step_at(mesh, 0)
    )
    np.testing.assert_allclose(variable.numpy(), [-0.5, -0.5])


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_clipping_by_a_norm_that_is_not_finite_gives_nan_as_tensorflow(devices, value):
    arrays = [np.array([1, value], "float32"), np.ones(2, "float32")]
    want, want_norm = tf.clip_by_global_norm(arrays, 1.0)
    mesh = mtf.Mesh("data:2", "batch:data", devices=devices)
    clip = mtf.function(
        lambda x, y: optimizers.clip_by_global_norm([x, y], 1.0),
        mesh=mesh,
        x="batch",
        y="d",
    )
    grads, norm = clip(*arrays)
    np.testing.assert_equal(norm.numpy(), want_norm.numpy())
    for grad, expected in zip(grads, want):
        np.testing.assert_equal(grad.numpy(), expected.numpy())
