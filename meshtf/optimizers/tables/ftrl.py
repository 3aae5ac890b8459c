"""FTRL-Proximal (McMahan et al., 2013, "Ad click prediction: a view from the trenches").

    optimizer = FTRL(model.trainable_variables, 0.05, l1=1.0)

Each step computes, with n the accumulator,

    new_n = n + grad**2
    linear += grad - (sqrt(new_n) - sqrt(n)) / rate * variable
    variable = (sign(linear) * l1 - linear) / (sqrt(new_n) / rate + 2 * l2)

but 0 where abs(linear) <= l1. Accumulators and `linear` are slots: variables with the state of
the optimizer, which start at zero. So the first step makes each element zero that has no gradient,
whatever its initial value was. With `lazy`, rows of a table keep theirs until a step looks them up.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Tensor
from meshtf.names.arguments import check_bools, check_floats
from meshtf.ops.variables.optimizer_updates import FtrlUpdate
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, apply_update, slots_like
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variable import Variable


class FTRL(Optimizer):
    """FTRL-Proximal, which makes weights exactly zero.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      l1: the weight of the penalty abs(variable), at least 0.
      l2: the weight of the penalty variable**2, at least 0.
      lazy: whether an update of a table changes only rows that the step has looked up.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.001,
        l1: float = 0.0,
        l2: float = 0.0,
        lazy: bool = False,
        name: str = "ftrl",
    ) -> None:
        check_floats(l1=l1, l2=l2)
        check_bools(lazy=lazy)
        slot_shapes = slots_like(variables, "accumulator", "linear")
        super().__init__(variables, learning_rate, slots=slot_shapes, name=name)
        self.l1 = l1
        self.l2 = l2
        self.lazy = lazy

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots; arguments as of `Optimizer.update`."""
        check_update_arguments(variable, grad, slots, step_scalars)
        (rate,) = step_scalars
        op = FtrlUpdate(
            variable,
            accumulator=slots["accumulator"],
            linear=slots["linear"],
            l1=self.l1,
            l2=self.l2,
            lazy=self.lazy,
        )
        apply_update(op, variable, grad, slots, rate=rate)
