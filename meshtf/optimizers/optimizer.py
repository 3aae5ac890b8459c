"""What all optimizers share: slots beside the variables, and one update for each gradient.

    optimizer = Adam(model.trainable_variables, learning_rate=1e-3)

    @mtf.function(mesh=mesh, tokens="batch;length", step="")
    def train_step(tokens, step):
      loss = model.loss(tokens)
      variables = model.trainable_variables
      optimizer.apply(mtf.gradients([loss], variables), variables, step)
      return loss

A slot is a variable of its own, with dimensions of its variable. It is cut as that one is, unless
the mesh's `optimizer_layout` has more rules (ZeRO-1): then the gradient is scattered to where the
slots lie, each position updates its slice, and the new value of the variable is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.errors import LayoutError, PlanError, explain_error
from meshtf.graph import Source, Tensor, apply, apply_all, context
from meshtf.layers.initializers import Initializer, shared, zeros
from meshtf.module import Module
from meshtf.names import Shape
from meshtf.ops.pointwise import cast
from meshtf.ops.state import full
from meshtf.ops.update import PartUpdate, Update
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.devices import devices_of
from meshtf.runtime.variables import Variable


class Optimizer(Module):
  """Base class: a subclass names its slots and writes `update`.

  Args:
    variables: those that will be updated.
    learning_rate: a number, or a schedule: a function of the step.
    slots: for each variable, in order, the names and shapes of its slots, at first zero.
    name: the first part of the names of the slots.

  Raises:
    LayoutError: the mesh's `optimizer_layout` cannot cut the slots of a variable.
    PlanError: two variables have one name.
  """

  def __init__(self, variables: Sequence[Variable], learning_rate: Rate,
               slots: Sequence[Mapping[str, Shape]], name: str) -> None:
    super().__init__(name)
    self.learning_rate = learning_rate
    twice = [n for n, k in Counter(v.name for v in variables).items() if k > 1]
    if twice:
      raise PlanError(explain_error(
          f"two variables are called {twice[0]!r}: slots and checkpoints go by name.",
          way_out="Give one of the modules around them another name=."))
    for variable, shapes in zip(variables, slots, strict=True):
      if shapes:
        _check_slots(type(self).__name__, variable)
    with self.scope():
      first = _first_values(variables)
      self.slots = {v.name: {slot: _slot(v, slot, shape, first) for slot, shape in shapes.items()}
                    for v, shapes in zip(variables, slots)}

  def apply(self, grads: Sequence[Tensor | None], variables: Sequence[Variable],
            step: Tensor) -> None:
    """Updates variables from their gradients; one whose gradient is None stays as it is.

    Args:
      grads: a gradient for each variable.
      variables: some or all of those that the optimizer was made for.
      step: scalar int32, 0 for the first update.

    Raises:
      PlanError: a variable is not one that the optimizer was made for, or the step is no tensor.
    """
    self.check_known(variables)
    _check_step(step)
    pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
    rate = self.rate_at(step)
    self.prepare([v for _, v in pairs], rate)
    numbers = self.numbers(rate, step)
    for grad, variable in pairs:
      self.update(variable, grad, self.slots[variable.name], numbers)

  def check_known(self, variables: Sequence[Variable]) -> None:
    """Refuses variables that the optimizer was not made for. Raises PlanError."""
    for variable in variables:
      if variable.name not in self.slots:
        raise PlanError(explain_error(
            f"{type(self).__name__} was not made for variable {variable.name!r}.",
            it_knows=", ".join(self.slots) or "none",
            way_out="Make the optimizer from all the variables that it is to update."))

  def rate_at(self, step: Tensor) -> Tensor:
    """Returns the learning rate at a step: a scalar."""
    if callable(self.learning_rate):
      return self.learning_rate(step)
    return full(step.mesh, "", self.learning_rate)

  def numbers(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
    """Returns the scalars that all updates of a step take: the rate, unless there are more."""
    return (rate,)

  def prepare(self, variables: Sequence[Variable], rate: Tensor) -> None:
    """Does what comes before the updates of a step: nothing, unless a subclass has more to do."""

  def update(self, variable: Variable, grad: Tensor, slots: dict[str, Variable],
             numbers: tuple[Tensor, ...]) -> None:
    """Gives a variable and its slots their next values."""
    raise NotImplementedError


def carry_out(op: Update, variable: Variable, grad: Tensor, slots: Mapping[str, Variable],
              rate: Tensor) -> None:
  """Updates a variable and its slots: in place if they lie alike, else where the slots lie."""
  rate = cast(rate, grad.dtype)
  if all(slot.placement == variable.placement for slot in slots.values()):
    apply_all(op, grad, rate)
    return
  variable.assign(apply(PartUpdate(op), grad, rate, variable.tensor()))


def usually_decays(variable: Variable) -> bool:
  """Returns whether a variable has two and more dimensions, and is called neither bias nor scale.

  Biases of attention have two, and those of repeated layers one more.
  """
  return len(variable.shape) > 1 and variable.name.rpartition("/")[2] not in ("bias", "scale")


def mix(slot: Variable, new: Tensor, share: Tensor | float) -> Tensor:
  """Moves a slot by a share of the way to a new value, and returns where it is then."""
  old = slot.tensor()
  mixed = old + (new - old) * share
  slot.assign(mixed)
  return mixed


def _first_values(variables: Sequence[Variable]) -> Initializer:
  """Returns what gives slots zeros: one tensor for all of a shape where each of several devices is
  to make its own of it, but on one device no tensor that would be in memory beside the slots."""
  meshes = [v.mesh for v in variables[:1] if not v.mesh.abstract]
  return shared(zeros) if any(len(set(devices_of(mesh))) > 1 for mesh in meshes) else zeros


def _slot(variable: Variable, slot: str, shape: Shape, first: Initializer) -> Variable:
  with context(stage=variable.stage):
    return Variable(variable.mesh, shape, first, name=f"{variable.name}/{slot}", trainable=False,
                    layout=variable.slot_layout)


def _check_step(step: Any) -> None:
  if not isinstance(step, Tensor):
    raise PlanError(explain_error(
        f"an update takes its step as a tensor, not as {type(step).__name__} {step!r}.",
        way_out="Give the function an argument for it: @mtf.function(mesh=mesh, ..., step='')."))


def _check_slots(optimizer: str, variable: Variable) -> None:
  """Refuses a variable whose shape the rules for slots cannot cut. Raises LayoutError."""
  mesh, layout = variable.mesh, variable.slot_layout
  for clash in mesh.place(variable.shape, layout)[1]:
    size, parts = variable.shape[clash.dim], mesh.axes[clash.axis]
    raise LayoutError(explain_error(
        f"the optimizer_layout cannot cut what {optimizer} keeps for variable {variable.name!r}: "
        + (f'its dimensions "{clash.other}" and "{clash.dim}" both want mesh axis "{clash.axis}".'
           if clash.kind == "axis" else
           f'dimension "{clash.dim}" of size {size} cannot be cut into {parts} equal slices.'),
        variable=repr(variable.shape), **{"from": Source.here()}, mesh=repr(mesh),
        layout=f"{layout!r} (with the rules of layout and variable_layout)",
        way_out=(f'Take one of the rules away for optimizers: optimizer_layout="{clash.other}:", '
                 if clash.kind == "axis" else
                 f"Make its size a multiple of {parts} (next: {-(-size // parts) * parts}), ")
        + f'or cut another dimension than "{clash.dim}".'))
