"""Adagrad (Duchi et al., 2011), with an accumulator for each element or for each row.

    optimizer = Adagrad(model.trainable_variables, 0.05)
    optimizer = Adagrad(model.trainable_variables, 0.05, rowwise=True)

Each step computes

    accumulator += grad**2                          # rowwise: the mean of grad**2 over a row
    variable -= rate * grad / (sqrt(accumulator) + epsilon)

The accumulator is a slot: a variable with the state of the optimizer, which starts at zero. Rows
of a table that a step does not look up stay as they are, and are neither read nor written.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_variables
from meshtf.names.arguments import check_bools, check_floats
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.ops.variables.optimizer_updates import AdagradUpdate, RowwiseAdagradUpdate
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, apply_update, slots_like
from meshtf.optimizers.schedules import Rate
from meshtf.optimizers.slot_layout import reduce_partial_sums
from meshtf.runtime.variable import Variable


class Adagrad(Optimizer):
    """Adagrad.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      epsilon: a constant that is added to the square root of the accumulator.
      rowwise: whether a row, an entry of a variable's first dimension, has one accumulator for
        all of its elements: that of a table [vocab, d_model] is [vocab], a small share of the
        memory. Vectors have one for each element in any case.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.01,
        epsilon: float = 1e-10,
        rowwise: bool = False,
        name: str = "adagrad",
    ) -> None:
        check_floats(epsilon=epsilon)
        check_bools(rowwise=rowwise)
        slot_shapes = slots_like(variables, "accumulator")
        if rowwise:
            slot_shapes = [
                {"accumulator": variable.shape.without(*_row_dims(variable))}
                for variable in as_variables("variables", variables)
            ]
        super().__init__(variables, learning_rate, slots=slot_shapes, name=name)
        self.epsilon = epsilon
        self.rowwise = rowwise

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its accumulator; arguments as of `Optimizer.update`."""
        check_update_arguments(variable, grad, slots, step_scalars)
        (rate,) = step_scalars
        accumulator = slots["accumulator"]
        row_dims = _row_dims(variable) if self.rowwise else ()
        if not row_dims:
            op = AdagradUpdate(variable, accumulator, epsilon=self.epsilon)
            apply_update(op, variable, grad, slots, rate=rate)
            return
        num_row_dims = len(row_dims)
        # One op computes the means of rows that one device holds.
        are_last = variable.shape.names[-num_row_dims:] == row_dims
        lies_alike = accumulator.placement == variable.placement
        if are_last and lies_alike and accumulator.dtype == variable.dtype:
            rowwise_op = RowwiseAdagradUpdate(
                variable, accumulator, epsilon=self.epsilon, num_row_dims=num_row_dims
            )
            apply_update(rowwise_op, variable, grad, slots, rate=rate)
            return
        self._update_in_named_ops(variable, grad, accumulator, rate)

    def _update_in_named_ops(
        self, variable: Variable, grad: Tensor, accumulator: Variable, rate: Tensor
    ) -> None:
        """Updates a variable whose rows are sharded, and its accumulator [*rows]."""
        grad = reduce_partial_sums(cast(grad, accumulator.dtype))
        mean = reduce_mean(square(grad), _row_dims(variable))
        total = accumulator.tensor() + mean
        accumulator.assign(total)
        step = grad * (rate / (sqrt(total) + self.epsilon))
        value = cast(variable.tensor(), accumulator.dtype) - step
        variable.assign(cast(value, variable.dtype))


def _row_dims(variable: Variable) -> tuple[str, ...]:
    """Returns the dimensions of a row of a variable: all but the first, and but those along which
    independent variables are stacked.
    """
    return variable.entry_shape.names[1:]
