"""Adam and AdamW.

    m = beta_1 * m + (1 - beta_1) * grad              v = beta_2 * v + (1 - beta_2) * grad**2
    variable -= rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)

AdamW subtracts rate * weight_decay * variable before the update; by default only from
variables of at least two dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from meshtf.graph import Tensor, apply_all
from meshtf.graph.arguments import as_variables, check_tensors
from meshtf.names.arguments import (
    check_callables,
    check_floats,
    check_fractions,
    check_record,
)
from meshtf.ops.elementwise.unary import exp, sqrt
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.optimizer_updates import AdamUpdate, WeightDecay
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import (
    Optimizer,
    apply_update,
    default_decay_mask,
    is_half_precision,
)
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variable import Variable


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), in the form that Keras computes.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      beta_1: decay rate of the moving average of gradients.
      beta_2: decay rate of the moving average of squared gradients.
      epsilon: constant added to the square root of the second moment.
      name: prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        name: str = "adam",
    ) -> None:
        variables = as_variables("variables", variables, "variables")
        check_fractions(beta_1=beta_1, beta_2=beta_2)
        check_floats(epsilon=epsilon)
        super().__init__(
            variables,
            learning_rate,
            [{"m": v.shape, "v": v.shape} for v in variables],
            name,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the bias-corrected step size:
        rate * sqrt(1 - beta_2**t) / (1 - beta_1**t).
        """
        check_tensors(rate=rate, step=step)
        t = cast(step, rate.dtype) + 1.0
        return (
            rate
            * sqrt(bias_correction(self.beta_2, t))
            / bias_correction(self.beta_1, t),
        )

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots."""
        check_record(Variable, variable=variable)
        check_tensors(grad=grad)
        check_update_arguments(slots, step_scalars)
        apply_update(self._fused(variable, slots), variable, grad, slots, *step_scalars)

    def _fused(self, variable: Variable, slots: dict[str, Variable]) -> AdamUpdate:
        """Returns the update of a variable and its slots as one op."""
        return AdamUpdate(
            variable, slots["m"], slots["v"], self.beta_1, self.beta_2, self.epsilon
        )


class AdamW(Adam):
    """Adam with weight decay that does not pass through the slots (Loshchilov and
    Hutter, 2019).

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      weight_decay: each step subtracts rate * weight_decay * variable.
      beta_1: decay rate of the moving average of gradients.
      beta_2: decay rate of the moving average of squared gradients.
      epsilon: constant added to the square root of the second moment.
      decay_mask: returns whether to decay a variable; default: variables of at least two
        dimensions, except biases and scales.
      name: prefix of the names of the slots.
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
        super().__init__(variables, learning_rate, beta_1, beta_2, epsilon, name)
        self.weight_decay = weight_decay
        self.decay_mask = decay_mask or default_decay_mask

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the bias-corrected step size, and the rate for weight decay."""
        return (*super().step_scalars(rate, step), rate)

    def apply_weight_decay(self, variables: Sequence[Variable], rate: Tensor) -> None:
        """Decays variables before their updates.

        Variables of half floats are skipped: `update` decays them, so that they are
        rounded only once in a step.
        """
        as_variables("variables", variables)
        check_tensors(rate=rate)
        share = rate * self.weight_decay
        for variable in filter(self.decay_mask, variables):
            if not is_half_precision(variable):
                apply_all(WeightDecay(variable), share, mesh=variable.mesh)

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots."""
        check_record(Variable, variable=variable)
        check_tensors(grad=grad)
        check_update_arguments(slots, step_scalars)
        step_size, rate = step_scalars
        decay = None
        if is_half_precision(variable) and self.decay_mask(variable):
            decay = rate * self.weight_decay
        op = self._fused(variable, slots)
        apply_update(op, variable, grad, slots, step_size, decay=decay)


def bias_correction(beta: float, t: Tensor) -> Tensor:
    """Returns 1 - beta**t, the sum of the weights of a moving average that started at
    zero, after t updates.
    """
    if not beta:
        return full(t.mesh, "", 1.0, t.dtype)
    return 1.0 - exp(t * math.log(beta))
