"""What all optimizers share: slots beside the variables, and one update for each gradient.

    optimizer = Adam(model.trainable_variables, learning_rate=1e-3)

    @mtf.function(mesh=mesh, tokens="batch;length", step="")
    def train_step(tokens, step):
      loss = model.loss(tokens)
      variables = model.trainable_variables
      optimizer.apply(mtf.gradients([loss], variables), variables, step)
      return loss

A slot is a variable of its variable's shape, so it is cut and saved just as that one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Tensor
from meshtf.layers.initializers import zeros
from meshtf.module import Module
from meshtf.ops.state import full
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variables import Variable


class Optimizer(Module):
  """Base class: a subclass names its slots and writes `update`.

  Args:
    variables: those that will be updated.
    learning_rate: a number, or a schedule: a function of the step.
    slot_names: the slots that each variable gets, at first zero.
    name: the first part of the names of the slots.
  """

  def __init__(self, variables: Sequence[Variable], learning_rate: Rate,
               slot_names: Sequence[str], name: str) -> None:
    super().__init__(name)
    self.learning_rate = learning_rate
    twice = [n for n, k in Counter(v.name for v in variables).items() if k > 1]
    if twice:
      raise PlanError(explain_error(
          f"two variables are called {twice[0]!r}: slots and checkpoints go by name.",
          way_out="Give one of the modules around them another name=."))
    with self.scope():
      self.slots = {v.name: {slot: _slot(v, slot) for slot in slot_names} for v in variables}

  def apply(self, grads: Sequence[Tensor | None], variables: Sequence[Variable],
            step: Tensor) -> None:
    """Updates variables from their gradients; one whose gradient is None stays as it is.

    Args:
      grads: a gradient for each variable.
      variables: some or all of those that the optimizer was made for.
      step: scalar int32, 0 for the first update.

    Raises:
      PlanError: a variable is not one that the optimizer was made for.
    """
    for variable in variables:
      if variable.name not in self.slots:
        raise PlanError(explain_error(
            f"{type(self).__name__} was not made for variable {variable.name!r}.",
            it_knows=", ".join(self.slots) or "none",
            way_out="Make the optimizer from all the variables that it is to update."))
    pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
    rate = self.rate_at(step)
    self.prepare([v for _, v in pairs], rate)
    corrected = self.corrected(rate, step)
    for grad, variable in pairs:
      self.update(variable, grad, self.slots[variable.name], corrected)

  def rate_at(self, step: Tensor) -> Tensor:
    """Returns the learning rate at a step: a scalar."""
    if callable(self.learning_rate):
      return self.learning_rate(step)
    return full(step.mesh, "", self.learning_rate)

  def corrected(self, rate: Tensor, step: Tensor) -> Tensor:
    """Returns the rate that updates of a step take: the learning rate, unless there is a bias."""
    return rate

  def prepare(self, variables: Sequence[Variable], rate: Tensor) -> None:
    """Does what comes before the updates of a step: nothing, unless a subclass has more to do."""

  def update(self, variable: Variable, grad: Tensor, slots: dict[str, Variable],
             rate: Tensor) -> None:
    """Gives a variable and its slots their next values."""
    raise NotImplementedError


def _slot(variable: Variable, slot: str) -> Variable:
  return Variable(variable.mesh, variable.shape, zeros, name=f"{variable.name}/{slot}",
                  trainable=False)
