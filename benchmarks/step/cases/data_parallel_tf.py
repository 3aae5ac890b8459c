"""Hand-written data parallelism: the models in plain TensorFlow on eight logical devices.

Written as usual without a library: one tf.function, `tf.device` for each device's shard of
the batch, and gradients summed by `tf.add_n` on the first device.

    step = ByHand(case).train_step()
    loss = step(batch)

The case's runtime says where variables are: "towers" has them, and their update, on the
first device; "mirrored" has a copy of all variables on each device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from benchmarks.step.cases.cases import Case
from benchmarks.step.plain_tf.models import plain_model

_DEVICES = 8


class ByHand:
    """Models on one device or on each, and their common training step;
    without dropout.
    """

    def __init__(self, case: Case):
        (cpu,) = tf.config.list_physical_devices("CPU")
        if not tf.config.get_logical_device_configuration(cpu):  # nobody has split it
            threads = max(1, (os.cpu_count() or 1) // _DEVICES)
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * _DEVICES
            )
        self.devices = [f"CPU:{i}" for i in range(_DEVICES)]
        owners = self.devices if case.runtime == "mirrored" else self.devices[:1]
        self.models = []
        for device in owners:
            with tf.device(device):
                self.models.append(plain_model(case.config))
        self.assign({name: w.numpy() for name, w in self.models[0].weights.items()})

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Takes the values of all variables, and starts the optimizer anew."""
        for model in self.models:
            model.assign(values)

    def train_step(self) -> Callable[[Any], tf.Tensor]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """

        @tf.function(autograph=False)
        def train(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            results = [self._part(i, inputs) for i, inputs in enumerate(_parts(batch))]
            with tf.device(self.devices[0]):
                losses, gradients = zip(*results)
                total = {
                    name: tf.add_n([g[name] for g in gradients]) / _DEVICES
                    for name in gradients[0]
                }
                loss = tf.add_n(losses) / _DEVICES
            for device, model in zip(self.devices, self.models):
                with tf.device(device):
                    model.update(total)
            return loss

        return train

    def _part(
        self, i: int, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the loss and the gradients of one device."""
        model = self.models[i % len(self.models)]

        def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return hand_written_kernels.cross_entropy(
                logits,
                labels,
                model.config.z_loss,
                jit=False,
            )

        with tf.device(self.devices[i]):
            weights = {name: w.read_value() for name, w in model.weights.items()}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(list(weights.values()))
                loss = model.loss(
                    weights,
                    batch,
                    lambda x, path: x,
                    cross_entropy,
                )
            gradients = tape.gradient(loss, weights)
            return loss, {
                name: tf.convert_to_tensor(g) for name, g in gradients.items()
            }


def _parts(batch: dict[str, tf.Tensor]) -> list[dict[str, tf.Tensor]]:
    """Returns each device's part of a batch, which is part of its mean."""
    shards = {name: tf.split(x, _DEVICES) for name, x in batch.items()}
    extra_inputs = {}
    if "masked_weights" in batch:
        extra_inputs["masked_count"] = tf.reduce_sum(batch["masked_weights"]) / _DEVICES
    return [
        {name: values[i] for name, values in shards.items()} | extra_inputs
        for i in range(_DEVICES)
    ]
