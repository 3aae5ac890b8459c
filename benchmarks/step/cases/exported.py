"""The model of `transformer` as an exported module, run over CPU devices by jax.

    model = ExportedModel(case)
    step = model.train_step()            # traces, exports and compiles
    loss = step(batch)

After the export no TensorFlow runs: variables are carried on the devices from step to
step.
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
from meshtf.runtime.spmd.module.module_runner import Runner


class ExportedModel(MeshModel):
    """The exported training step, and the devices' slices of variables and slots."""

    def __init__(self, case: Case):
        super().__init__(case)
        self.batch = {
            name: tf.TensorSpec(x.shape, x.dtype)
            for name, x in batches(case.config)[0].items()
        }
        self.carried: dict[str, Any] = {}

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Takes the values of all variables, and starts the optimizer anew."""
        self.step = 0
        for port in self.exported.inputs:
            if port.kind != "argument":
                own = values.get(port.name)
                self._put(
                    port,
                    np.zeros(port.spec.shape.sizes, np.float32) if own is None else own,
                )

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """
        self.exported = mtf.export(self.recorded(), self.batch, np.int32(0))
        self.runner = Runner(self.exported)
        for port in self.exported.inputs:
            if port.name in self.exported.values:
                self._put(port, self.exported.values[port.name])
        written = [p for p in self.exported.inputs if p.output is not None]

        def step(batch: Batch) -> Any:
            arguments: dict[str, Any] = {
                f"batch_{name}": x for name, x in batch.items()
            }
            arguments["step"] = np.int32(self.step)
            for port in self.exported.inputs:
                if port.name in arguments:
                    self._put(port, arguments[port.name])
            results = self.runner.run(
                [self.carried[p.name] for p in self.exported.inputs]
            )
            self.carried.update((p.name, results[p.output]) for p in written)
            self.step += 1
            return self.runner.get(results[0])[0]

        return step

    def _put(self, port: Any, array: Any) -> None:
        slices = port.shard(array, self.exported.mesh)
        self.carried[port.name] = self.runner.put(slices)
