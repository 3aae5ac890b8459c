"""Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235): second moments in n + m elements
instead of n * m.

    optimizer = Adafactor(model.trainable_variables)       # the paper's rate, no momentum

For a variable with two large dimensions, the optimizer stores only the means of the
squared gradients along each of the two, and estimates the second moments by their outer
product. For a variable of shape [n, m], with t = step + 1:

    beta = 1 - t**-decay_power
    squares = grad**2 + epsilon_1                                          # [n, m]
    row = beta * row + (1 - beta) * mean(squares, over m)                  # [n]
    column = beta * column + (1 - beta) * mean(squares, over n)            # [m]
    change = grad / sqrt(row * column / mean(row))                         # [n, m]
    change /= max(1, rms(change) / clip_threshold)
    variable -= rate * max(epsilon_2, rms(variable)) * change

where rms is the root mean square of all elements. The averages `row` and `column` are slots:
variables with the state of the optimizer. If a variable stacks independent ones, the kernels of
all layers or of all experts (`Variable.stack`), these are updated as if they were separate:
stacked dimensions are never factored, and each entry has a root mean square of its own. T5X
does the same with both (its factor rules call them batch dimensions). Mesh TensorFlow, and
GShard in Lingvo, took the two largest dimensions whatever they are: of 2,048 experts of
[1024, 8192] the experts and d_ff, and one root mean square for all experts.

For a kernel of shape [1024, 4096] it stores 5,120 elements, where Adam stores 8,388,608.
All computations are named ops, so factored dimensions may be sharded along any axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_variables, check_tensors
from meshtf.names import Names, Shape, names_of
from meshtf.names.arguments import (
    check_bools,
    check_callables,
    check_floats,
    check_fractions,
    check_ints,
)
from meshtf.ops.elementwise.arithmetic import maximum, minimum, outer
from meshtf.ops.elementwise.unary import rsqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.correlation import rms
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.optimizers.adam import bias_correction
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, as_decay_mask, update_average
from meshtf.optimizers.schedules import Rate, cast_step
from meshtf.optimizers.slot_layout import reduce_partial_sums, use_layout
from meshtf.runtime.variable import Variable


def relative_step(step: Tensor) -> Tensor:
    """Returns the learning rate of the paper at a step, a scalar: 0.01 until step 10,000,
    then 1 / sqrt(step + 1).
    """
    check_tensors(step=step)
    return minimum(rsqrt(cast_step(step) + 1.0), 1e-2)


class Adafactor(Optimizer):
    """Adafactor: factored second moments, clipped updates, rates relative to the scale
    of each variable.

    The two largest dimensions of a variable are factored if the size of both is at least
    `min_dim_size_to_factor`; among equal sizes, the leading dimension counts as larger.
    Dimensions along which a variable is stacked do not count: see `Variable.stack`.
    Slot "row" lacks the smaller of the two dimensions and slot "column" the larger; both
    have all further dimensions. A variable that is not factored has a slot "v" of the
    same shape.

    Args:
      variables: the variables to update.
      learning_rate: a float or a schedule; default: the paper's schedule.
      beta_1: the decay rate of the moving average of changes; with 0 there is no slot
        "m".
      decay_power: the moving averages of squares decay by 1 - t ** -decay_power.
      clip_threshold: the maximum root mean square of the change of a variable, before it
        is multiplied by the rate.
      epsilon_1: a constant that is added to the squared gradients.
      epsilon_2: the lower bound of the root mean square that multiplies changes.
      multiply_by_parameter_scale: whether changes are multiplied by the root mean square
        of the variable.
      min_dim_size_to_factor: the minimum size of a factored dimension.
      beta_2: the constant decay rate of the moving averages of squares, with Adam's bias
        correction; default: `decay_power` determines the decay rate.
      stacked_dims: names of further dimensions along which independent variables are
        stacked, beside those that a variable knows (`Variable.stack`).
      weight_decay: the factor of the weight decay: each step subtracts
        rate * weight_decay * variable.
      decay_mask: a function that returns whether to decay a variable; default: variables
        of at least two dimensions are decayed, except biases and scales. The dimension of
        repeated layers, or of experts, is not one of them.
      name: the prefix of the names of the slots.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        learning_rate: Rate = relative_step,
        beta_1: float = 0.0,
        decay_power: float = 0.8,
        clip_threshold: float = 1.0,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        multiply_by_parameter_scale: bool = True,
        min_dim_size_to_factor: int = 128,
        beta_2: float | None = None,
        stacked_dims: Names = "",
        weight_decay: float = 0.0,
        decay_mask: Callable[[Variable], bool] | None = None,
        name: str = "adafactor",
    ) -> None:
        variables = as_variables("variables", variables, expected="variables")
        check_fractions(beta_1=beta_1)
        if beta_2 is not None:
            check_fractions(beta_2=beta_2)
        check_floats(
            decay_power=decay_power,
            clip_threshold=clip_threshold,
            epsilon_1=epsilon_1,
            epsilon_2=epsilon_2,
            weight_decay=weight_decay,
        )
        check_ints(min_dim_size_to_factor=min_dim_size_to_factor)
        check_bools(multiply_by_parameter_scale=multiply_by_parameter_scale)
        check_callables(decay_mask=decay_mask)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.decay_power = decay_power
        self.clip_threshold = clip_threshold
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.stacked_dims = names_of(stacked_dims, argument="stacked_dims")
        self.weight_decay = weight_decay
        self.decay_mask = as_decay_mask(decay_mask, self.stacked_dims)
        slot_shapes = [self._slot_shapes(variable) for variable in variables]
        super().__init__(variables, learning_rate, slots=slot_shapes, name=name)

    def _slot_shapes(self, variable: Variable) -> dict[str, Shape]:
        """Returns the shapes of the slots of a variable, by name."""
        shape = variable.shape
        factored = self._factored_dims(variable)
        if factored is None:
            shapes = {"v": shape}
        else:
            larger, smaller = factored
            shapes = {"row": shape.without(smaller), "column": shape.without(larger)}
        if self.beta_1:
            shapes["m"] = shape
        return shapes

    def _entry_shape(self, variable: Variable) -> Shape:
        """Returns the shape of one of the variables that a variable stacks."""
        return variable.entry_shape.without(*self.stacked_dims)

    def _factored_dims(self, variable: Variable) -> tuple[str, str] | None:
        """Returns the factored dimensions of a variable, larger before smaller, or
        None.
        """
        return factored_dims(self._entry_shape(variable), self.min_dim_size_to_factor)

    def step_scalars(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the rate, and the weight of the new squares in their moving averages."""
        check_tensors(rate=rate, step=step)
        t = cast(step, rate.dtype) + 1.0
        if self.beta_2 is not None:
            return rate, (1.0 - self.beta_2) / bias_correction(self.beta_2, t)
        return rate, t**-self.decay_power

    def update(
        self,
        variable: Variable,
        grad: Tensor,
        slots: dict[str, Variable],
        step_scalars: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots, in their data type."""
        check_update_arguments(variable, grad, slots, step_scalars)
        rate, new_weight = step_scalars
        # Computed on shards of the slots; see `slot_layout`.
        with use_layout(variable.slot_layout):
            grad = reduce_partial_sums(cast(grad, rate.dtype))
            value = cast(variable.tensor(), rate.dtype)
            squares = square(grad) + self.epsilon_1
            change = grad * self._inverse_sqrt_moments(
                variable, squares, slots, new_weight
            )
            dims = self._entry_shape(variable).names
            relative_rms = rms(change, dims) * (1 / self.clip_threshold)
            change = change / maximum(relative_rms, 1.0)
            if self.multiply_by_parameter_scale:
                change = change * (rate * maximum(rms(value, dims), self.epsilon_2))
            else:
                change = change * rate
            if self.beta_1:
                change = update_average(
                    slots["m"], change, new_weight=1.0 - self.beta_1
                )
            if self.weight_decay and self.decay_mask(variable):
                change = change + value * (rate * self.weight_decay)
            value = cast(value - change, variable.dtype)
        variable.assign(value)

    def _inverse_sqrt_moments(
        self,
        variable: Variable,
        squares: Tensor,
        slots: dict[str, Variable],
        new_weight: Tensor,
    ) -> Tensor:
        """Updates the second moments, and returns 1 / sqrt(second moment) for each element
        of the variable.

        Args:
          variable: the variable.
          squares: the squared gradients, with the dimensions of the variable, possibly in
            another order.
          slots: the slots of the variable, by name.
          new_weight: the weight of the squares in the moving averages, a scalar.
        """
        factored = self._factored_dims(variable)
        if factored is None:
            return rsqrt(update_average(slots["v"], squares, new_weight))
        larger, smaller = factored
        row_squares = reduce_mean(squares, smaller)
        column_squares = reduce_mean(squares, larger)
        row = update_average(slots["row"], row_squares, new_weight)
        column = update_average(slots["column"], column_squares, new_weight)
        return outer(rsqrt(row / reduce_mean(row, larger)), rsqrt(column))


def factored_dims(shape: Shape, min_size: int) -> tuple[str, str] | None:
    """Returns the names of the two largest dimensions, larger before smaller, or None if
    there are not two of at least `min_size`.
    """
    dims_by_size = sorted(shape, key=lambda dim: -dim.size)
    if len(dims_by_size) < 2:
        return None
    larger, smaller = dims_by_size[:2]
    if smaller.size < min_size:
        return None
    return larger.name, smaller.name
