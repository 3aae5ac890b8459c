"""The models in TensorFlow's DTensor: the hand-written program, on variables with layouts.

    step = DTensorModel(case).train_step()
    loss = step(batch)

The program is that for one device, except for two ops: DTensor does not support the
scatter of the cross entropy, and its partitioner aborts the process if the fused kernel of
Adam gets a sharded variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch
from benchmarks.step.plain_tf.models import PLAIN
from benchmarks.step.plain_tf.training_step import no_dropout

_NUM_DEVICES = 8
# Ends of the names of variables whose first (or second) dimension is sharded along the axis
# `model`.
_SHARDED_ALONG_FIRST_DIMENSION = (
    "/embedding/table",
    "output/kernel",
    "wo/kernel",
    "wi/bias",
    "logits_bias",
    "query/bias",
    "key/bias",
    "value/bias",
)
_SHARDED_ALONG_SECOND_DIMENSION = (
    "query/kernel",
    "key/kernel",
    "value/kernel",
    "wi/kernel",
    "logits/kernel",
)


class DTensorModel:
    """A model on eight logical devices: the axis `data` shards the batch, the axis `model` shards
    heads, d_ff and vocab.
    """

    def __init__(self, case: Case):
        threads = max(1, (os.cpu_count() or 1) // _NUM_DEVICES)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * _NUM_DEVICES
        )
        data_size, self.model_size = (int(n) for n in case.grid.split("x"))
        self.mesh = dtensor.create_mesh(
            [("data", data_size), ("model", self.model_size)],
            devices=[f"CPU:{i}" for i in range(_NUM_DEVICES)],
        )
        self.config = case.config
        # The hand-written program, without the variables that its __init__ would make.
        plain_model = PLAIN[case.config.model]
        self.model = plain_model.__new__(plain_model)
        self.model.config = case.config
        rng = np.random.default_rng(2)
        self.weights = {}
        self.slots = {}  # Adam's moments m and v
        for name, shape in self.config.shapes().items():
            stddev = np.float32(self.config.fan_in(name) ** -0.5)
            self.weights[name] = self._variable(
                name, rng.standard_normal(shape, np.float32) * stddev
            )
            zeros = np.zeros(shape, np.float32)
            self.slots[name] = (
                self._variable(name, zeros),
                self._variable(name, zeros),
            )
        self.step = dtensor.DVariable(self._put(np.float32(0), []))

    def _variable(self, name: str, value: np.ndarray) -> Any:
        """Returns a variable that is sharded as the weight with this name."""
        return dtensor.DVariable(self._put(value, self._partition_spec(name)))

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        self.step.assign(self._put(np.float32(0), []))
        for name, weight in self.weights.items():
            weight.assign(self._put(values[name], self._partition_spec(name)))
            for slot in self.slots[name]:
                slot.assign(
                    self._put(np.zeros_like(values[name]), self._partition_spec(name))
                )

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """

        @tf.function(autograph=False)
        def train(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            weights = {name: w.read_value() for name, w in self.weights.items()}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(list(weights.values()))
                loss = self.model.loss(
                    weights,
                    batch,
                    drop=no_dropout,
                    cross_entropy=_cross_entropy,
                )
            gradients = tape.gradient(loss, weights)
            self._update(
                {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
            )
            return loss

        def step(batch: Batch) -> Any:
            """Shards a batch along "data", and takes a step."""
            tensors = {}
            for name, x in batch.items():
                spec = ["data"] + [dtensor.UNSHARDED] * (x.ndim - 1)
                tensors[name] = self._put(x, spec)
            return train(tensors)

        return step

    def _update(self, gradients: dict[str, tf.Tensor]) -> None:
        """Takes one step of Adam: by the fused kernel, or by separate ops if variables are
        sharded.
        """
        config = self.config
        t = self.step.assign_add(1.0)
        beta1_power = tf.pow(config.beta1, t)
        beta2_power = tf.pow(config.beta2, t)
        # The bias-corrected learning rate.
        rate = config.learning_rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        for name, gradient in gradients.items():
            weight = self.weights[name]
            m, v = self.slots[name]
            if self.model_size == 1:
                tf.raw_ops.ResourceApplyAdam(
                    var=weight.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=beta1_power,
                    beta2_power=beta2_power,
                    lr=config.learning_rate,
                    beta1=config.beta1,
                    beta2=config.beta2,
                    epsilon=config.epsilon,
                    grad=gradient,
                )
                continue
            new_m = m + (1 - config.beta1) * (gradient - m)
            new_v = v + (1 - config.beta2) * (gradient * gradient - v)
            m.assign(new_m)
            v.assign(new_v)
            weight.assign_sub(rate * new_m / (tf.sqrt(new_v) + config.epsilon))

    def _put(self, x: np.ndarray, spec: list[str]) -> Any:
        """Returns an array on all devices.

        Args:
          x: the array.
          spec: the sharding: for each dimension, a mesh axis or UNSHARDED.
        """
        replicated = dtensor.Layout.replicated(self.mesh, len(spec))
        copies = dtensor.copy_to_mesh(tf.constant(x), replicated)
        return dtensor.relayout(copies, dtensor.Layout(spec, self.mesh))

    def _partition_spec(self, name: str) -> list[str]:
        """Returns the sharding of a variable: heads, d_ff and vocab along "model"."""
        spec = [dtensor.UNSHARDED] * len(self.config.shapes()[name])
        if self.model_size == 1:
            return spec
        # The kernels of experts have one more dimension, before the others.
        first_dimension = 1 if "/experts/" in name else 0
        if name.endswith(_SHARDED_ALONG_FIRST_DIMENSION):
            spec[first_dimension] = "model"
        elif name.endswith(_SHARDED_ALONG_SECOND_DIMENSION):
            spec[first_dimension + 1] = "model"
        return spec


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the cross entropy of each label: [tokens]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
