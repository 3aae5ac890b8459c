"""LAMB (You et al., 2019, arXiv 1904.00962): Adam whose steps are as long as their
variable.

    m, v as in Adam, both divided by 1 - beta**t
    change = m / (sqrt(v) + epsilon) + weight_decay * variable
    variable -= rate * norm(variable) / norm(change) * change       norms: over the whole variable

    optimizer = LAMB(model.trainable_variables, 1e-3, decays=unless_named("bias|norm"))

If slots or variables are sharded, each norm reduces one scalar per mesh position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_variables, check_tensors
from meshtf.names.arguments import (
    check_callables,
    check_floats,
    check_fractions,
    check_record,
)
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.optimizers.adam import bias_correction
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, mix, usually_decays
from meshtf.optimizers.placing import finished, lying
from meshtf.optimizers.schedules import Rate
from meshtf.runtime.variable import Variable


class LAMB(Optimizer):
    """LAMB, for large batches: all in float32, or in float64 for variables of that
    type.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule.
      weight_decay: what part of a variable is added to its change before this is
        scaled.
      beta_1: decay rate of the moving average of gradients.
      beta_2: decay rate of the moving average of squared gradients.
      epsilon: constant added to the square root of the second moment.
      decays: which variables are decayed and have changes scaled to their norm; the
        others are updated as by Adam. Default: those of two and more dimensions, but
          biases and scales.
      name: prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        decays: Callable[[Variable], bool] | None = None,
        name: str = "lamb",
    ) -> None:
        variables = as_variables("variables", variables, "variables")
        check_fractions(beta_1=beta_1, beta_2=beta_2)
        check_floats(epsilon=epsilon, weight_decay=weight_decay)
        check_callables(decays=decays)
        super().__init__(
            variables,
            learning_rate,
            [{"m": v.shape, "v": v.shape} for v in variables],
            name,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.decays = decays or usually_decays

    def numbers(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the rate, and by how much slots that began at zero are too small."""
        check_tensors(rate=rate, step=step)
        t = cast(step, rate.dtype) + 1.0
        return rate, bias_correction(self.beta_1, t), bias_correction(self.beta_2, t)

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        numbers: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots."""
        check_record(Variable, variable=variable)
        check_tensors(grad=grad)
        check_update_arguments(slots, numbers)
        rate, m_correction, v_correction = numbers
        with lying(variable.slot_layout):
            grad = finished(cast(grad, rate.dtype))
            value = cast(variable.tensor(), rate.dtype)
            m = mix(slots["m"], grad, 1 - self.beta_1)
            v = mix(slots["v"], square(grad), 1 - self.beta_2)
            change = (m / m_correction) / (sqrt(v / v_correction) + self.epsilon)
            if self.decays(variable):
                change = change + value * self.weight_decay
                change = change * _trust(value, change)
            value = cast(value - change * rate, variable.dtype)
        variable.assign(value)


def _trust(value: Tensor, change: Tensor) -> Tensor:
    """Returns norm(value) / norm(change), and 1 where one of them is 0."""
    norm, other = (sqrt(reduce_sum(square(x))) for x in (value, change))
    return where(
        (norm > 0.0) & (other > 0.0), norm / where(other > 0.0, other, 1.0), 1.0
    )
