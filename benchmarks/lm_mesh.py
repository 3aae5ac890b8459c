"""The model of `transformer`, in meshtf, behind the same three methods as the hand-written one.

    model = MeshLM(case)
    step = model.train_step()
    loss = step(tokens, labels)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meshtf as mtf
from benchmarks.cases import Case
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel


class MeshLM:
  """A language model on the mesh and layout of a case, with Adam."""

  def __init__(self, case: Case):
    c = case.config
    if case.devices:
      mtf.logical_devices(8)
    self.mesh = mtf.Mesh(case.mesh, layout=case.layout, devices=case.devices)
    self.model = LanguageModel(self.mesh, Architecture(
        vocab=c.vocab, d_model=c.d_model, d_ff=c.d_ff, heads=c.heads, d_kv=c.key, blocks=c.layers,
        dropout=c.dropout), z_loss=c.z_loss)
    self.optimizer = mtf.optimizers.Adam(self.model.trainable_variables, c.learning_rate,
                                         c.beta1, c.beta2, c.epsilon)
    self.step = 0

  def assign(self, values: dict[str, np.ndarray]) -> None:
    """Takes the values of all variables, and starts the optimizer anew."""
    self.step = 0
    for variable in self.model.variables:
      variable.assign(values[variable.name.removeprefix("language_model/")])
    for slots in self.optimizer.slots.values():
      for slot in slots.values():
        slot.assign(np.zeros(slot.shape.sizes, np.float32))

  def train_step(self, jit: bool = False) -> Callable[[Any, Any], Any]:
    """Returns a function of tokens and labels that updates the variables and returns the loss."""
    train = self.recorded(jit)

    def step(tokens: Any, labels: Any) -> Any:
      self.step += 1
      return train(tokens, labels, np.int32(self.step - 1))

    return step

  def recorded(self, jit: bool = False) -> Any:
    """Returns the `mtf.function` of tokens, labels and the number of the step."""

    @mtf.function(mesh=self.mesh, jit=jit, tokens="batch;length", labels="batch;length", step="")
    def train(tokens: mtf.Tensor, labels: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
      with mtf.seed(0, step):
        loss = self.model.loss({"tokens": tokens, "targets": labels}, training=True)
      variables = self.model.trainable_variables
      self.optimizer.apply(mtf.gradients([loss], variables), variables, step)
      return loss

    return train
