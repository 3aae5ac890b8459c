"""A stack of Transformer blocks on a live mesh, with Adam: a scan over layers that the layout
shards, which is a pipeline.

    model = MeshStack(case)
    step = model.train_step()
    loss = step(batch)                  # x, target: float32 [batch, length, d_model]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meshtf as mtf
from benchmarks.pipeline.pipeline_cases import LAYOUT, PipelineCase
from benchmarks.step.cases.feeds import Batch
from transformer.models.architecture import Architecture
from transformer.models.stack import Stack
from transformer.models.token_info import TokenInfo


class MeshStack:
    """Variables and Adam's moments on the mesh of a case, and the training step.

    Attributes:
      train_function: the `mtf.function` of the training step, after `train_step`.
    """

    def __init__(self, case: PipelineCase) -> None:
        mtf.configure_process()
        self.config = case.config
        rules = LAYOUT.split("; ")
        layout = [rule for rule in rules if rule.partition(":")[2] in case.sizes]
        self.mesh = mtf.Mesh(
            case.grid,
            "; ".join(layout),
            devices="spmd:cpu:8",
            microbatches=case.microbatches,
            repeats=case.repeats,
        )
        architecture = Architecture(
            d_model=self.config.d_model,
            d_ff=self.config.d_ff,
            heads=self.config.heads,
            d_kv=self.config.d_kv,
            blocks=self.config.layers,
            scanned=True,
            recompute=case.recompute,
        )
        self.stack = Stack(self.mesh, architecture, causal=True)
        self.variables = self.stack.trainable_variables
        self.optimizer = mtf.optimizers.Adam(
            self.variables,
            learning_rate=self.config.learning_rate,
            beta_1=self.config.beta1,
            beta_2=self.config.beta2,
            epsilon=self.config.epsilon,
        )
        self.step = 0
        # The devices of a live mesh compute all variables when the first one is used.
        _ = self.variables[0].numpy()

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        self.step = 0
        for variable in self.variables:
            variable.assign(values[self._name_in(values, variable)])
        # Slots are the optimizer's variables: m and v of each trainable variable.
        for slots in self.optimizer.slots.values():
            for slot in slots.values():
                slot.assign(np.zeros(slot.shape.sizes, np.float32))

    def _name_in(self, values: dict[str, np.ndarray], variable: Any) -> str:
        """Returns the name of the value of a variable, which is the end of the variable's name."""
        (name,) = {x for x in values if f"/{variable.name}".endswith(f"/{x}")}
        return name

    def train_step(self) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the loss."""
        config = self.config
        shape = (
            f"batch:{config.batch}; length:{config.length}; d_model:{config.d_model}"
        )

        @mtf.function(mesh=self.mesh, x=shape, target=shape, step="")
        def train(x: mtf.Tensor, target: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
            positions = mtf.range(self.mesh, x.shape.dim("length"))
            y, _ = self.stack(x, TokenInfo(positions), training=True)
            loss = mtf.reduce_mean(mtf.square(y - target))
            gradients = mtf.gradients([loss], self.variables)
            self.optimizer.apply_gradients(gradients, self.variables, step)
            return loss

        self.train_function = train

        def step(batch: Batch) -> Any:
            step_index = np.int32(self.step)
            self.step += 1
            return train(batch["x"], batch["target"], step_index)

        return step

    def device_memory(self, batch: Batch) -> int:
        """Returns the bytes on a device at the peak of a step, by XLA; to be called after
        `train_step`.
        """
        program: Any = self.train_function.lower(
            batch["x"], batch["target"], np.int32(0)
        )
        return int(program.live_executable.peak_memory)
