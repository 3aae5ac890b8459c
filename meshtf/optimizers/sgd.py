"""Stochastic gradient descent, with or without momentum.

    optimizer = SGD(model.trainable_variables, 0.1, momentum=0.9)

Without momentum, each step computes the following, of a table only for rows that it looks up:

    variable -= rate * grad

and with momentum

    velocity = momentum * velocity + grad
    variable -= rate * velocity                          # nesterov=False
    variable -= rate * (grad + momentum * velocity)      # nesterov=True

The velocity is a slot: a variable with the state of the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Tensor
from meshtf.names.arguments import check_bools, check_floats
from meshtf.ops.variables.optimizer_updates import (
    DescentUpdate,
    MomentumUpdate,
    OptimizerUpdate,
)
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, apply_update, slots_like
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variable import Variable


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      momentum: the decay rate of the velocity; with 0 there is no slot.
      nesterov: whether to use Nesterov momentum.
      lazy: whether an update of a table with momentum changes only rows that the step has looked
        up: the velocity of other rows does not decay, and does not move them.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        lazy: bool = False,
        name: str = "sgd",
    ) -> None:
        check_floats(momentum=momentum)
        check_bools(nesterov=nesterov, lazy=lazy)
        slot_shapes = slots_like(variables, *(["velocity"] if momentum else []))
        super().__init__(variables, learning_rate, slots=slot_shapes, name=name)
        self.momentum = momentum
        self.nesterov = nesterov
        self.lazy = lazy

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its velocity; arguments as of `Optimizer.update`."""
        check_update_arguments(variable, grad, slots, step_scalars)
        (rate,) = step_scalars
        op: OptimizerUpdate = DescentUpdate(variable)
        if self.momentum:
            velocity = slots["velocity"]
            op = MomentumUpdate(
                variable,
                velocity,
                momentum=self.momentum,
                nesterov=self.nesterov,
                lazy=self.lazy,
            )
        apply_update(op, variable, grad, slots, rate=rate)
