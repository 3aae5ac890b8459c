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

_CUT_FIRST = (
    "/embedding/table",
    "output/kernel",
    "wo/kernel",
    "wi/bias",
    "logits_bias",
    "query/bias",
    "key/bias",
    "value/bias",
)
_CUT_SECOND = (
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
        tf.config.threading.set_intra_op_parallelism_threads(
            max(1, (os.cpu_count() or 1) // 8)
        )
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 8
        )
        data, self.along = (int(n) for n in case.grid.split("x"))
        self.mesh = dtensor.create_mesh(
            [("data", data), ("model", self.along)],
            devices=[f"CPU:{i}" for i in range(8)],
        )
        self.config = case.config
        self.model = PLAIN[case.config.model].__new__(PLAIN[case.config.model])
        self.model.config = case.config  # its variables are those of below
        shapes = self.config.shapes()
        normal = np.random.default_rng(2).standard_normal
        self.weights = {
            name: dtensor.DVariable(
                self._put(
                    normal(shape, np.float32)
                    * np.float32(self.config.fan_in(name) ** -0.5),
                    self._partition_spec(name),
                )
            )
            for name, shape in shapes.items()
        }
        self.slots = {
            name: tuple(
                dtensor.DVariable(
                    self._put(np.zeros(shape, np.float32), self._partition_spec(name))
                )
                for _ in "mv"
            )
            for name, shape in shapes.items()
        }
        self.step = dtensor.DVariable(self._put(np.float32(0), []))

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Takes the values of all variables, and starts the optimizer anew."""
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
                    lambda x, path: x,
                    _cross_entropy,
                )
            gradients = tape.gradient(loss, weights)
            self._update(
                {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
            )
            return loss

        def step(batch: Batch) -> Any:
            return train(
                {
                    name: self._put(x, ["data"] + [dtensor.UNSHARDED] * (x.ndim - 1))
                    for name, x in batch.items()
                }
            )

        return step

    def _update(self, gradients: dict[str, tf.Tensor]) -> None:
        c = self.config
        t = self.step.assign_add(1.0)
        powers = tf.pow(c.beta1, t), tf.pow(c.beta2, t)
        rate = c.learning_rate * tf.sqrt(1 - powers[1]) / (1 - powers[0])
        for name, gradient in gradients.items():
            weight, (m, v) = self.weights[name], self.slots[name]
            if self.along == 1:
                tf.raw_ops.ResourceApplyAdam(
                    var=weight.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=powers[0],
                    beta2_power=powers[1],
                    lr=c.learning_rate,
                    beta1=c.beta1,
                    beta2=c.beta2,
                    epsilon=c.epsilon,
                    grad=gradient,
                )
                continue
            mean = m + (1 - c.beta1) * (gradient - m)
            squares = v + (1 - c.beta2) * (gradient * gradient - v)
            m.assign(mean)
            v.assign(squares)
            weight.assign_sub(rate * mean / (tf.sqrt(squares) + c.epsilon))

    def _put(self, x: np.ndarray, spec: list[str]) -> Any:
        """Returns an array on all devices, sharded along the named axes."""
        replicated = dtensor.Layout.replicated(self.mesh, len(spec))
        copies = dtensor.copy_to_mesh(tf.constant(x), replicated)
        return dtensor.relayout(copies, dtensor.Layout(spec, self.mesh))

    def _partition_spec(self, name: str) -> list[str]:
        """Returns the sharding of a variable: heads, d_ff and vocab along "model"."""
        spec = [dtensor.UNSHARDED] * len(self.config.shapes()[name])
        if self.along > 1 and name.endswith(_CUT_FIRST + _CUT_SECOND):
            spec[name.endswith(_CUT_SECOND) + ("/experts/" in name)] = "model"
        return spec


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
