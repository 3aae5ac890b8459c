"""Hand-written data parallelism: the models in plain TensorFlow on eight logical devices.

Written as usual without a library: one tf.function, `tf.device` for each device's shard of
the batch, and gradients summed by `tf.add_n` on the first device.

    step = DataParallelModel(case).train_step()
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
from benchmarks.step.plain_tf.training_step import no_dropout

_NUM_DEVICES = 8


class DataParallelModel:
    """The model on one device, or a copy of it on each device, and the training step. Without
    dropout.

    Args:
      case: the case; its runtime is "towers" or "mirrored".

    Attributes:
      devices: the names of the logical devices.
      models: the copies of the model: one, or one for each device.
    """

    def __init__(self, case: Case):
        (cpu,) = tf.config.list_physical_devices("CPU")
        # An earlier model of this process may have made the logical devices.
        if not tf.config.get_logical_device_configuration(cpu):
            threads = max(1, (os.cpu_count() or 1) // _NUM_DEVICES)
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * _NUM_DEVICES
            )
        self.devices = [f"CPU:{i}" for i in range(_NUM_DEVICES)]
        is_mirrored = case.runtime == "mirrored"
        self.models = []
        for device in self.devices if is_mirrored else self.devices[:1]:
            with tf.device(device):
                self.models.append(plain_model(case.config))
        # All copies start with the values of the first one.
        self.assign({name: w.numpy() for name, w in self.models[0].weights.items()})

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        for model in self.models:
            model.assign(values)

    def train_step(self) -> Callable[[Any], tf.Tensor]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """

        @tf.function(autograph=False)
        def train(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            """Updates the variables of all copies, and returns the loss, a scalar."""
            results = [
                self._loss_and_gradients(device_index, shard)
                for device_index, shard in enumerate(_shards(batch))
            ]
            losses, gradients = zip(*results)
            with tf.device(self.devices[0]):
                mean_gradients = {
                    name: tf.add_n([shard[name] for shard in gradients]) / _NUM_DEVICES
                    for name in gradients[0]
                }
                loss = tf.add_n(losses) / _NUM_DEVICES
            for device, model in zip(self.devices, self.models):  # all copies
                with tf.device(device):
                    model.update(mean_gradients)
            return loss

        return train

    def _loss_and_gradients(
        self, device_index: int, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the loss and the gradients of one device.

        Args:
          device_index: the index of the device.
          batch: the shard of the batch on this device.
        """
        # The device's copy of the model, or the only one.
        model = self.models[device_index % len(self.models)]

        def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return hand_written_kernels.cross_entropy(
                logits,
                labels,
                model.config.z_loss,
                jit=False,
            )

        with tf.device(self.devices[device_index]):
            weights = {name: w.read_value() for name, w in model.weights.items()}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(list(weights.values()))
                loss = model.loss(
                    weights,
                    batch,
                    drop=no_dropout,
                    cross_entropy=cross_entropy,
                )
            gradients = tape.gradient(loss, weights)
            return loss, {
                name: tf.convert_to_tensor(g) for name, g in gradients.items()
            }


def _shards(batch: dict[str, tf.Tensor]) -> list[dict[str, tf.Tensor]]:
    """Returns the shard of a batch for each device. The mean of the losses of all shards is
    the loss of the batch.
    """
    shards = {name: tf.split(x, _NUM_DEVICES) for name, x in batch.items()}
    shared_inputs = {}
    if "masked_weights" in batch:
        # Shards may have different numbers of masked tokens.
        shared_inputs["masked_count"] = (
            tf.reduce_sum(batch["masked_weights"]) / _NUM_DEVICES
        )
    return [
        {name: xs[i] for name, xs in shards.items()} | shared_inputs
        for i in range(_NUM_DEVICES)
    ]
