"""LAMB (You et al., 2019, arXiv 1904.00962): Adam whose change of a variable is scaled to
the variable's norm.

    optimizer = LAMB(model.trainable_variables, 1e-3, decay_mask=exclude_names("bias|norm"))

With the moving averages m and v of Adam, t = step + 1, and norms over all elements of a layer:

    change = m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon)
    change += weight_decay * variable
    variable -= rate * norm(variable) / norm(change) * change

The averages m and v are slots: variables with the state of the optimizer. If slots or
variables are sharded, each norm is an all-reduce of one scalar. The paper's norms are those of
one layer's weights. So a variable that stacks those of several layers, or of several experts
(on which the paper is silent), has a norm for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.names.arguments import (
    check_callables,
    check_floats,
)
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.optimizers.adam import Adam, bias_correction
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import as_decay_mask, update_average
from meshtf.optimizers.schedules import Rate
from meshtf.optimizers.slot_layout import reduce_partial_sums, use_layout
from meshtf.runtime.variable import Variable


class LAMB(Adam):
    """LAMB, an optimizer for large batches. It computes in float32, for float64 variables
    in float64.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      weight_decay: the factor of the weight decay: weight_decay * variable is added to
        the change before it is scaled to the variable's norm.
      beta_1: the decay rate of the moving average of gradients.
      beta_2: the decay rate of the moving average of squared gradients.
      epsilon: a constant that is added to the square root of the second moment.
      decay_mask: a function that returns whether a variable is decayed and its change is
        scaled to its norm; the remaining variables are updated as by Adam. Default:
        variables of at least two dimensions, except biases and scales. The dimension of
        repeated layers, or of experts, is not one of them.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        decay_mask: Callable[[Variable], bool] | None = None,
        name: str = "lamb",
    ) -> None:
        check_floats(weight_decay=weight_decay)
        check_callables(decay_mask=decay_mask)
        super().__init__(variables, learning_rate, beta_1, beta_2, epsilon, name=name)
        self.weight_decay = weight_decay
        self.decay_mask = as_decay_mask(decay_mask)

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the rate, and the bias corrections of both moments."""
        check_tensors(rate=rate, step=step)
        t = cast(step, rate.dtype) + 1.0
        return rate, bias_correction(self.beta_1, t), bias_correction(self.beta_2, t)

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots; arguments as of `Optimizer.update`."""
        check_update_arguments(variable, grad, slots, step_scalars)
        rate, m_correction, v_correction = step_scalars
        # Computed on shards of the slots; see `slot_layout`.
        with use_layout(variable.slot_layout):
            grad = reduce_partial_sums(cast(grad, rate.dtype))
            value = cast(variable.tensor(), rate.dtype)
            m = update_average(slots["m"], grad, new_weight=1 - self.beta_1)
            v = update_average(slots["v"], square(grad), new_weight=1 - self.beta_2)
            change = (m / m_correction) / (sqrt(v / v_correction) + self.epsilon)
            if self.decay_mask(variable):
                change = change + value * self.weight_decay
                dims = variable.entry_shape.names
                change = change * _trust_ratio(value, change, dims)
            value = cast(value - change * rate, variable.dtype)
        variable.assign(value)


def _trust_ratio(value: Tensor, change: Tensor, dims: tuple[str, ...]) -> Tensor:
    """Returns norm(value) / norm(change), over `dims`; 1 where one of the norms is 0."""
    value_norm = sqrt(reduce_sum(square(value), dims))
    change_norm = sqrt(reduce_sum(square(change), dims))
    both_positive = (value_norm > 0.0) & (change_norm > 0.0)
    # `where` computes both branches, and 0 / 0 would be NaN.
    divisor = where(change_norm > 0.0, change_norm, 1.0)
    return where(both_positive, value_norm / divisor, 1.0)
