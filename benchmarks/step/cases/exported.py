"""The model of `transformer` as an exported module, run over CPU devices by jax.

    model = ExportedModel(case)
    step = model.train_step()            # traces, exports and compiles
    loss = step(batch)

After the export no TensorFlow runs: variables stay on the devices from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch, batches
from benchmarks.step.cases.meshtf_model import MeshModel
from meshtf.runtime.spmd.live.module_runner import Runner


class ExportedModel(MeshModel):
    """The exported training step, and the shards of variables and slots on the devices.

    Attributes:
      buffers: the inputs of the module on the devices, by name.
    """

    def __init__(self, case: Case):
        super().__init__(case)
        self.batch = {
            name: tf.TensorSpec(x.shape, x.dtype)
            for name, x in batches(case.config)[0].items()
        }
        self.buffers: dict[str, Any] = {}

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        self.step = 0
        for port in self.exported.inputs:
            if port.kind != "argument":
                if port.name in values:
                    value = values[port.name]
                else:  # a slot of the optimizer
                    value = np.zeros(port.spec.shape.sizes, np.float32)
                self._put(port, value)

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """
        self.exported = mtf.export(self.recorded(), self.batch, np.int32(0))
        self.runner = Runner(self.exported)
        for port in self.exported.inputs:
            if port.name in self.exported.values:
                self._put(port, self.exported.values[port.name])
        # The variables and slots that the step writes.
        written = [port for port in self.exported.inputs if port.output is not None]

        def step(batch: Batch) -> Any:
            arguments: dict[str, Any] = {
                f"batch_{name}": x for name, x in batch.items()
            }
            arguments["step"] = np.int32(self.step)
            for port in self.exported.inputs:
                if port.name in arguments:
                    self._put(port, arguments[port.name])
            inputs = [self.buffers[port.name] for port in self.exported.inputs]
            results = self.runner.run(inputs)
            for port in written:
                self.buffers[port.name] = results[port.output]
            self.step += 1
            return self.runner.get(results[0])[0]

        return step

    def _put(self, port: Any, array: Any) -> None:
        """Puts the shards of a global array on the devices, as an input of the module."""
        shards = port.shard(array, self.exported.mesh)
        self.buffers[port.name] = self.runner.put(shards)
