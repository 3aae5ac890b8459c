"""Adam and AdamW. With t = step + 1:

    m = beta_1 * m + (1 - beta_1) * grad              v = beta_2 * v + (1 - beta_2) * grad**2
    variable -= rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)

The moving averages m and v are slots: variables with the state of the optimizer. AdamW
subtracts rate * weight_decay * variable before the update; by default only from variables of
at least two dimensions, except biases and scales.

    optimizer = AdamW(model.trainable_variables, 3e-4, weight_decay=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from meshtf.graph import Tensor, apply_all
from meshtf.graph.arguments import as_variables, check_tensors
from meshtf.names.arguments import (
    check_bools,
    check_callables,
    check_floats,
    check_fractions,
)
from meshtf.ops.elementwise.unary import exp, sqrt
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.optimizer_updates import AdamUpdate, WeightDecay
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import (
    Optimizer,
    apply_update,
    as_decay_mask,
    is_half_precision,
    slots_like,
)
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variable import Variable


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with epsilon added as in Keras: to the square root of v
    without bias correction.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      beta_1: the decay rate of the moving average of gradients.
      beta_2: the decay rate of the moving average of squared gradients.
      epsilon: a constant that is added to the square root of the second moment.
      lazy: whether an update of a table changes only rows that the step has looked up: the
        moving averages of other rows do not decay, and do not move them.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        lazy: bool = False,
        name: str = "adam",
    ) -> None:
        slot_shapes = slots_like(variables, "m", "v")
        check_fractions(beta_1=beta_1, beta_2=beta_2)
        check_floats(epsilon=epsilon)
        check_bools(lazy=lazy)
        super().__init__(variables, learning_rate, slots=slot_shapes, name=name)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.lazy = lazy

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the bias-corrected step size:
        rate * sqrt(1 - beta_2**t) / (1 - beta_1**t).
        """
        check_tensors(rate=rate, step=step)
        t = cast(step, rate.dtype) + 1.0
        m_correction = bias_correction(self.beta_1, t)
        v_correction = bias_correction(self.beta_2, t)
        return (rate * sqrt(v_correction) / m_correction,)

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots; arguments as of `Optimizer.update`."""
        check_update_arguments(variable, grad, slots, step_scalars)
        step_size = step_scalars[0]
        op = AdamUpdate(
            variable,
            m=slots["m"],
            v=slots["v"],
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            lazy=self.lazy,
        )
        decay = self._decay_in_update(variable, step_scalars)
        apply_update(op, variable, grad, slots, rate=step_size, decay=decay)

    def _decay_in_update(
        self, variable: Variable, step_scalars: tuple[Tensor, ...]
    ) -> Tensor | None:
        """Returns the share of the variable that its update subtracts; None: nothing."""
        return None


class AdamW(Adam):
    """Adam with decoupled weight decay: the decay is no part of the gradient, so it does
    not enter the slots (Loshchilov and Hutter, 2019).

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      weight_decay: the factor of the weight decay: each step subtracts
        rate * weight_decay * variable.
      beta_1: the decay rate of the moving average of gradients.
      beta_2: the decay rate of the moving average of squared gradients.
      epsilon: a constant that is added to the square root of the second moment.
      decay_mask: a function that returns whether to decay a variable; default: variables
        of at least two dimensions are decayed, except biases and scales. The dimension of
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
        epsilon: float = 1e-8,
        decay_mask: Callable[[Variable], bool] | None = None,
        name: str = "adam",
    ) -> None:
        check_floats(weight_decay=weight_decay)
        check_callables(decay_mask=decay_mask)
        super().__init__(variables, learning_rate, beta_1, beta_2, epsilon, name=name)
        self.weight_decay = weight_decay
        self.decay_mask = as_decay_mask(decay_mask)

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the bias-corrected step size, and the rate for weight decay."""
        return (*super().step_scalars(rate, step), rate)

    def apply_weight_decay(self, variables: Sequence[Variable], rate: Tensor) -> None:
        """Decays variables before their updates.

        Variables of bfloat16 and float16 are skipped: `update` decays them, so that they
        are rounded only once in a step.
        """
        variables = as_variables("variables", variables)
        check_tensors(rate=rate)
        decay = rate * self.weight_decay
        for variable in variables:
            if self.decay_mask(variable) and not is_half_precision(variable):
                apply_all(WeightDecay(variable), decay, mesh=variable.mesh)

    def _decay_in_update(
        self, variable: Variable, step_scalars: tuple[Tensor, ...]
    ) -> Tensor | None:
        _, rate = step_scalars
        if is_half_precision(variable) and self.decay_mask(variable):
            return rate * self.weight_decay
        return None


def bias_correction(beta: float, t: Tensor) -> Tensor:
    """Returns 1 - beta**t, a scalar: the sum of the weights of all updates in a moving
    average that started at zero, after t updates.

    Args:
      beta: the decay rate of the moving average.
      t: the count of updates: a scalar float.
    """
    if not beta:  # log(0) is not finite
        return full(t.mesh, shape="", value=1.0, dtype=t.dtype)
    return 1.0 - exp(t * math.log(beta))
