"""The models of `transformer` in meshtf, with the methods of the hand-written models.

Example:

    model = MeshModel(case)
    step = model.train_step()
    loss = step(batch)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import meshtf as mtf
from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch
from benchmarks.step.cases.sizes import Config
from transformer.experts.gating import top_k
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import Bert, bert_architecture
from transformer.models.language_model import LanguageModel


class MeshModel:
    """A model on the mesh and layout of a case, with Adam.

    Attributes:
      step: the number of steps done.
      train_function: the `mtf.function` of the training step, after `train_step`.
    """

    def __init__(self, case: Case):
        mtf.configure_process()
        config = case.config
        # Layouts have rules for all three models, and so rules that one model does not use.
        warnings.simplefilter("ignore", mtf.LayoutWarning)
        if case.devices:
            mtf.logical_devices(8)
        is_live = case.runtime == "spmd"
        self.mesh = mtf.Mesh(
            case.mesh,
            layout=case.layout,
            devices="spmd:cpu" if is_live else case.devices,
            variable_layout=case.variable_layout,
            optimizer_layout=case.optimizer_layout,
        )
        self.model = build(self.mesh, config, case.recompute)
        self.optimizer = mtf.optimizers.Adam(
            self.model.trainable_variables,
            learning_rate=config.learning_rate,
            beta_1=config.beta1,
            beta_2=config.beta2,
            epsilon=config.epsilon,
        )
        self.step = 0
        # The devices of a live mesh compute all variables when the first one is used.
        _ = self.model.variables[0].numpy()

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        self.step = 0
        for variable in self.model.variables:
            variable.assign(values[variable.name])
        # Slots are the optimizer's variables: m and v of each trainable variable.
        for slots in self.optimizer.slots.values():
            for slot in slots.values():
                slot.assign(np.zeros(slot.shape.sizes, np.float32))

    def train_step(self, jit: bool = False) -> Callable[[Batch], Any]:
        """Returns a function of a batch that updates the variables and returns the
        loss.
        """
        train = self.make_train_function(jit)
        self.train_function = train

        def step(batch: Batch) -> Any:
            step_index = np.int32(self.step)
            self.step += 1
            return train(batch, step_index)

        return step

    def device_memory(self, batch: Batch) -> int:
        """Returns the bytes on a device at the peak of a step on a live mesh, by XLA; to be
        called after `train_step`.
        """
        program: Any = self.train_function.lower(batch, np.int32(0))
        return int(program.live_executable.peak_memory)

    def forecast(self, batch: Batch) -> float:
        """Returns the forecast of the peak of bytes on all positions together; to be called
        after `train_step`.
        """
        forecast = self.train_function.explain(batch, np.int32(0))
        return forecast.memory.peak * self.mesh.size

    def make_train_function(self, jit: bool = False) -> Any:
        """Returns the `mtf.function` of a batch and the index of the step."""

        @mtf.function(
            mesh=self.mesh,
            jit=jit,
            batch=self.model.features,
            step="",
        )
        def train(batch: dict[str, mtf.Tensor], step: mtf.Tensor) -> mtf.Tensor:
            with mtf.seed(0, step):
                loss = self.model.loss(batch, training=True)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(
                mtf.gradients([loss], variables), variables, step
            )
            return loss

        return train


def build(mesh: mtf.Mesh, config: Config, recompute: bool = False) -> Model:
    """Returns the model of a config.

    Args:
      mesh: the mesh of the variables.
      config: the config.
      recompute: whether the backward pass recomputes each block.
    """
    sizes: dict[str, Any] = {
        "vocab": config.vocab,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.heads,
        "d_kv": config.d_kv,
        "blocks": config.layers,
        "dropout": config.dropout,
        "recompute": recompute,
    }
    if config.model == "bert":
        return Bert(mesh, bert_architecture(**sizes, max_length=config.length))
    if config.model == "moe":
        gating = functools.partial(top_k, capacity=Capacity(train=config.capacity))
        mixture = functools.partial(
            MixtureOfExperts, experts=config.experts, gating=gating
        )
        sizes |= {"moe_every": min(2, config.layers), "mixture": mixture}
    return LanguageModel(mesh, Architecture(**sizes), z_loss=config.z_loss)
