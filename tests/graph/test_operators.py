"""What NumPy, pickle and TensorFlow do with tensors and variables."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import line_of, refuses


@pytest.fixture(params=[None, "spmd:cpu"], scope="module")
def mesh(request):
    return mtf.Mesh("data:2", "batch:data", devices=request.param)


@pytest.fixture
def x(mesh):
    return mtf.asarray(mesh, np.arange(6, dtype="float32").reshape(3, 2), "batch;d")


def test_numpy_functions_take_tensors_without_dimensions(x):
    loss = x.mean()
    assert not np.isnan(loss)
    assert np.isfinite(loss)
    assert np.mean([loss, loss]) == 2.5
    assert np.max(loss) == 2.5
    assert np.array([loss, loss * 2.0]).tolist() == [2.5, 5.0]
    assert np.stack([loss, loss]).shape == (2,)
    assert np.asarray(loss).shape == ()
    assert np.asarray(loss, "float64").dtype == "float64"
    assert np.allclose(loss, 2.5)
    np.testing.assert_allclose(loss, 2.5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_python_takes_tensors_and_variables_of_one_element(mesh, dtype):
    variable = mtf.Variable(mesh, "d:1", "ones", name="v", dtype=dtype)
    for x in (variable, variable.value, variable.value.sum()):
        assert (float(x), int(x), round(x, 2)) == (1.0, 1, 1.0)
        assert type(float(x)) is float
    with refuses(mtf.ArgumentError, "takes a tensor of one element"):
        float(mtf.Variable(mesh, "d:2", "ones", name="w"))


def test_numpy_functions_take_tensors_and_variables(mesh, x):
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    assert np.sum(x) == 15
    assert np.max(x) == 5
    assert np.median(x) == 2.5
    assert np.sum(variable) == 2
    assert np.where(x > 3.5)[0].tolist() == [2, 2]
    assert np.concatenate([x, x]).shape == (6, 2)
    assert (np.ndim(x), np.shape(x), np.size(x)) == (2, (3, 2), 6)


def test_a_recorded_tensor_has_a_shape_for_numpy_and_no_value(mesh):
    ndim = mtf.function(lambda y: y * float(np.ndim(y)), mesh=mesh, y="batch")
    np.testing.assert_equal(ndim(np.ones(2, "float32")).numpy(), [1, 1])
    with refuses(mtf.PlanError, "no value yet"):
        mtf.function(lambda y: y * np.max(y), mesh=mesh, y="batch")(np.ones(2))


@pytest.mark.parametrize(
    "call, way_out",
    [
        (lambda x: np.sum(x, axis=0), r'Write x.sum\("batch"\)'),
        (lambda x: np.mean(x, -1), r'Write x.mean\("batch"\)'),
        (lambda x: np.argmax(x, axis=1), r'Write mtf.argmax\(x, "batch"\)'),
        (lambda x: np.stack([x, x], axis=1), r"Write mtf.stack\("),
        (lambda x: np.median(x, axis=0), "Write an op of meshtf"),
    ],
)
def test_an_axis_of_numpy_is_refused(x, call, way_out):
    with refuses(mtf.ArgumentError, "is told axis=", r"\[batch:3 d:2\]", way_out):
        call(x)


def test_an_array_times_a_tensor_is_refused_as_before(x):
    with refuses(mtf.ArgumentError, "Name the dimensions of an array"):
        np.ones((3, 2), "float32") * x
    assert float((np.float32(2) * x).sum()) == 30


def test_a_tensor_is_its_own_copy(x):
    assert copy.copy(x) is x
    assert copy.deepcopy({"x": [x]})["x"][0] is x
    assert copy.deepcopy(x.mesh) is x.mesh


def test_pickle_names_checkpoints(mesh, x):
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    layer = mtf.layers.Dense(mesh, "d:2", "o:2")
    optimizer = mtf.optimizers.Adam([variable])
    for thing in (x, variable, layer, optimizer, {"layers": [layer]}):
        with refuses(mtf.CheckpointError, "is not pickled", "mtf.checkpoints.save"):
            pickle.dumps(thing)


@pytest.mark.parametrize("side", ["target", "source"])
def test_a_tape_is_told_of_gradients(mesh, side):
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    other = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        named_loss = (variable * 2.0).sum()
        loss = other * 2.0
    with refuses(mtf.PlanError, "GradientTape", r"mtf.gradients\(\[loss\]") as error:
        if side == "target":
            tape.gradient(named_loss, [variable])
        else:
            tape.gradient(loss, [variable])
    assert "tape.gradient" in line_of(str(error.value), __file__)


def test_a_keras_optimizer_is_told_of_ours(mesh):
    variable = mtf.Variable(mesh, "d:2", "ones", name="v")
    optimizer = keras.optimizers.SGD()
    with refuses(mtf.PlanError, "variable 'v'", "mtf.optimizers.Adam") as error:
        optimizer.apply_gradients([(np.ones(2), variable)])
    assert "apply_gradients" in line_of(str(error.value), __file__)
