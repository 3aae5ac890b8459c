"""Moving averages of variables, against TensorFlow's, on several meshes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import refuses

X = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)
MESHES = {
    "one position": {"axes": ""},
    "tensor": {"axes": "data:2;model:2", "layout": "batch:data; h:model"},
    "zero": {"axes": "data:4", "layout": "batch:data", "optimizer_layout": "h:data"},
    "fsdp": {"axes": "data:4", "layout": "batch:data", "variable_layout": "h:data"},
    "stages": {"axes": "stage:2;data:2", "layout": "batch:data"},
}


class Training:
    """A layer that is trained, with moving averages."""

    def __init__(self, mesh, decay, dtype="float32"):
        with mtf.stage(0):
            self.w = mtf.Variable(mesh, "d:4;h:8", "normal", name="w", dtype=dtype)
        self.b = mtf.Variable(mesh, "h:8", "zeros", name="b", dtype=dtype)
        self.variables = [self.w, self.b]
        self.optimizer = mtf.optimizers.Adam(self.variables, 0.1)
        self.average = mtf.optimizers.ExponentialMovingAverage(self.variables, decay)

        @mtf.function(mesh=mesh, x="batch;d", step="")
        def train_step(x, step):
            y = mtf.einsum([mtf.cast(x, dtype), self.w], "batch;h") + self.b
            loss = mtf.reduce_mean(mtf.square(y - 1.0))
            grads = mtf.gradients([loss], self.variables)
            self.optimizer.apply_gradients(grads, self.variables, step)
            self.average.update(self.variables, step)
            return loss

        self.train_step = train_step

    def values(self):
        """Returns the values of all variables and averages."""
        return [v.numpy() for v in (*self.variables, *self.average.variables)]


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_averages_are_those_of_tensorflow(name, devices):
    training = Training(mtf.Mesh(**MESHES[name], devices=devices), decay=0.2)
    expected = tf.Variable(training.w.numpy())
    reference = tf.train.ExponentialMovingAverage(0.2, num_updates=tf.Variable(0))
    reference.apply([expected])
    for step in range(4):
        training.train_step(X, np.int32(step))
        expected.assign(training.w.numpy())
        reference._num_updates.assign(step)
        reference.apply([expected])
    average = training.average.averages["w"]
    assert average.name == "ema/w"
    assert average.placement == training.optimizer.slots["w"]["m"].placement
    np.testing.assert_allclose(
        average.numpy(), reference.average(expected).numpy(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("name", ["zero", "stages"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_averages_are_applied_and_taken_back_exactly(name, devices, dtype):
    training = Training(mtf.Mesh(**MESHES[name], devices=devices), 0.9, dtype)
    training.train_step(X, np.int32(0))
    before = training.values()
    average = training.average.averages["w"].numpy()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            with training.average.applied_to(training.variables):
                expected = tf.cast(average, dtype).numpy()
                np.testing.assert_equal(training.w.numpy(), expected)
                _ = 1 / 0
        for value, earlier in zip(training.values(), before):
            np.testing.assert_equal(value, earlier)
    duplicate = copy.deepcopy(training)
    losses = [float(training.train_step(X, np.int32(i))) for i in (1, 2)]
    assert [float(duplicate.train_step(X, np.int32(i))) for i in (1, 2)] == losses
    for value, other in zip(training.values(), duplicate.values()):
        np.testing.assert_equal(value, other)


def test_a_constant_decay_rate_and_what_the_forecast_counts():
    mesh = mtf.Mesh("data:2", "batch:data")
    training = Training(mesh, decay=0.5)
    training.w.assign(training.w.value + 2.0)
    before = training.average.averages["w"].numpy()
    training.average.update([training.w])
    np.testing.assert_allclose(
        training.average.averages["w"].numpy(), before + 1.0, rtol=1e-6
    )
    memory = mtf.explain(training.train_step, X, np.int32(0)).memory
    assert memory.optimizer_state == 3 * memory.parameters  # two slots, one average
    assert memory.other_variables == 0


def test_mistakes():
    mesh = mtf.Mesh("data:2", devices="abstract")
    w, b = (mtf.Variable(mesh, "d:4", "zeros", name=name) for name in "wb")
    averages = mtf.optimizers.ExponentialMovingAverage([w], 0.9)
    with refuses(mtf.PlanError, "'b' has no moving average", "averages +w"):
        averages.update([b])
    with refuses(mtf.ArgumentError, "decay"):
        mtf.optimizers.ExponentialMovingAverage([w], 1.5)
    with refuses(mtf.PlanError, "two variables are called 'w'"):
        mtf.optimizers.ExponentialMovingAverage([w, w], 0.5)
