"""Whatever reads or writes a variable that is on a mesh is seen: nothing is stale."""

from __future__ import annotations

import functools
import gc
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.errors import IndexRangeError
from meshtf.keras.variables import state_of
from tests.keras.models import compiled

layers = keras.layers
X, Y = np.ones((8, 4)), np.zeros((8, 3))
SHAPE = (4, 3)


def dense() -> keras.Model:
    """One dense layer, of four features."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3)(inputs))


def distributed() -> tuple[keras.Model, mtf.Variable]:
    """Returns a model after a step, and its kernel on the mesh."""
    model = compiled(dense, lambda: keras.optimizers.SGD(0.1), loss="mse")
    named = mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    model.train_on_batch(X, Y)
    return model, named.placed.variables[id(model.layers[1].kernel)]


model_and_kernel = functools.cache(distributed)


def squares(x: tf.Variable) -> tf.Tensor:
    """Returns half of the gradient of the sum of squares."""
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(x * x) / 2
    return tape.gradient(y, x)


READS = {
    "numpy": lambda k, v: k.numpy(),
    "asarray": lambda k, v: np.asarray(v),
    "operator": lambda k, v: v + 0.0,
    "identity": lambda k, v: tf.identity(v),
    "raw operation": lambda k, v: tf.raw_ops.Identity(input=v),
    "raw operation of Keras": lambda k, v: tf.raw_ops.Identity(input=k),
    "stack": lambda k, v: tf.stack([v])[0],
    "rows": lambda k, v: tf.gather(v, [0, 1, 2, 3]),
    "sparse_read": lambda k, v: v.sparse_read([0, 1, 2, 3]),
    "slice": lambda k, v: v[:],
    "handle": lambda k, v: tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype),
    "Keras": lambda k, v: keras.ops.convert_to_tensor(k),
    "tape": lambda k, v: squares(v),
}


@pytest.mark.parametrize("name", READS)
def test_reads_are_those_of_the_last_step(name) -> None:
    """Of the Keras variable, and of its TensorFlow variable from before the step."""
    model, kernel = model_and_kernel()
    variable = model.layers[1].kernel
    value = variable.value
    model.train_on_batch(X, Y)
    np.testing.assert_array_equal(READS[name](variable, value), kernel.numpy())


def rows(k: float) -> tf.IndexedSlices:
    """Returns all rows, of one number."""
    return tf.IndexedSlices(tf.fill(SHAPE, tf.cast(k, "float64")), tf.range(4))


WRITES = {
    "assign": lambda k, v, x: k.assign(x),
    "assign of TensorFlow": lambda k, v, x: v.assign(x),
    "assign_add": lambda k, v, x: v.assign_add(x - v.numpy()),
    "raw": lambda k, v, x: tf.raw_ops.AssignVariableOp(resource=v.handle, value=x),
    "rows": lambda k, v, x: v.scatter_update(rows(x[0, 0])),
    "slice": lambda k, v, x: v[:].assign(x),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_read_by_the_next_step(name) -> None:
    model, kernel = model_and_kernel()
    model.optimizer.learning_rate = 0.0
    variable = model.layers[1].kernel
    value = np.full(SHAPE, 2.0 + list(WRITES).index(name))
    WRITES[name](variable, variable.value, value)
    model.train_on_batch(X, Y)
    # A difference that is added again may be off by a rounding.
    np.testing.assert_allclose(kernel.numpy(), value, rtol=1e-15)
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-15)
    model.optimizer.learning_rate = 0.1


def test_checkpoints_of_tensorflow(tmp_path: Path) -> None:
    model, kernel = model_and_kernel()
    checkpoint = tf.train.Checkpoint(kernel=model.layers[1].kernel)
    model.train_on_batch(X, Y)
    value = kernel.numpy()
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    model.train_on_batch(X, Y)
    assert not np.array_equal(kernel.numpy(), value)
    checkpoint.read(path).assert_consumed()
    np.testing.assert_array_equal(model.layers[1].kernel.numpy(), value)
    model.predict(X, verbose=0)
    np.testing.assert_array_equal(kernel.numpy(), value)


def test_functions_that_tensorflow_has_traced() -> None:
    """They read and write the host's copies, which from then on go with every step."""
    model, kernel = distributed()
    variable = model.layers[1].kernel
    double = tf.function(lambda: variable.value.assign(variable.value * 2.0))
    with pytest.warns(mtf.TraceWarning, match="copied to the host after every step"):
        double()
    for _ in range(2):
        model.predict(X, verbose=0)  # sends what was written
        before = kernel.numpy()
        double()
        np.testing.assert_array_equal(variable.numpy(), before * 2.0)
        model.predict(X, verbose=0)
        np.testing.assert_array_equal(kernel.numpy(), before * 2.0)
        model.train_on_batch(X, Y)


def test_a_traced_function_that_nobody_has_any_more() -> None:
    """Its last assignment counts; then values stay on the mesh again."""
    model, kernel = distributed()
    variable = model.layers[1].kernel
    double = tf.function(lambda: variable.value.assign(variable.value * 2.0))
    with pytest.warns(mtf.TraceWarning, match="As long as the function exists"):
        double()
    state = state_of(variable)
    model.train_on_batch(X, Y)
    assert state.in_traces
    before = kernel.numpy()
    double()
    del double
    gc.collect()
    assert not state.in_traces
    model.predict(X, verbose=0)
    np.testing.assert_array_equal(kernel.numpy(), before * 2.0)
    model.train_on_batch(X, Y)
    assert state.mesh_is_newer
    np.testing.assert_array_equal(variable.numpy(), kernel.numpy())


def test_a_plain_model_with_the_same_layers() -> None:
    """It trains them in turn with the model on the mesh."""
    model, _ = distributed()
    plain = keras.Model(model.input, model.output)
    plain.compile("sgd", "mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mtf.TraceWarning)
        for _ in range(2):
            plain.fit(X, Y, verbose=0)
            expected = plain.predict(X, verbose=0)
            np.testing.assert_allclose(model.predict(X, verbose=0), expected, 1e-9)
            model.fit(X, Y, verbose=0)
            expected = plain.predict(X, verbose=0)
            np.testing.assert_allclose(model.predict(X, verbose=0), expected, 1e-9)


@pytest.mark.parametrize("devices", [None, "spmd:cpu:8"])
def test_an_id_out_of_range_ends_fit(devices: str | None) -> None:
    """A live mesh tells it where a result is read, which Keras does within a `try`."""
    embedding = keras.layers.Embedding(10, 4, name="table")
    pooling = keras.layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, pooling])
    model.compile("sgd", "mse")
    mesh = mtf.Mesh("data:8", "batch:data", devices=devices)
    mtf.keras.distribute(model, mesh)
    ids, y = np.full((16, 3), 99, "int32"), np.zeros((16, 4))
    for _ in range(2):
        with pytest.raises(IndexRangeError, match="the layer sequential.*table"):
            model.fit(ids, y, batch_size=16, verbose=0)
    assert model.get_weights()[0].shape == (10, 4)  # the error came once
    embedding.embeddings.assign(np.ones((10, 4)))
    assert np.isfinite(model.fit(ids % 10, y, verbose=0).history["loss"][0])
