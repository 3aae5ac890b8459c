"""Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235): moments in n + m numbers, not
n * m.

Of a variable with two large dimensions only the means of the squared gradients along
each of the two are kept, and their product stands for the second moments. For [n, m],
with t = step + 1:

    keep = 1 - t**-0.8                                     squares = grad**2 + epsilon_1
    row[n] = keep * row + (1 - keep) * mean of squares over m         column[m] likewise over n
    update = grad / sqrt(row * column / mean(row))         update /= max(1, rms(update) / clip)
    variable -= rate * max(epsilon_2, rms(variable)) * update

A variable in which several lie side by side, such as the kernels of all layers or of
all experts, is told by `stacked_dims`: each row of these has roots of mean squares of
its own.

    optimizer = Adafactor(model.trainable_variables)       # the paper's rate, no momentum

For kernels of [1024, 4096] it keeps 5,120 numbers, where Adam keeps 8,388,608. All of
it is written in named ops, so factored dimensions may be cut along any axis.
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
    check_record,
)
from meshtf.ops.elementwise.arithmetic import maximum, minimum, outer
from meshtf.ops.elementwise.unary import rsqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.correlation import rms
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.optimizers.adam import bias_correction
from meshtf.optimizers.checks import check_update_arguments
from meshtf.optimizers.optimizer import Optimizer, mix, usually_decays
from meshtf.optimizers.placing import finished, lying
from meshtf.optimizers.schedules import Rate, count
from meshtf.runtime.variable import Variable


def relative_step(step: Tensor) -> Tensor:
    """A schedule: the paper's rate, 0.01 at first and 1 / sqrt(t) from step
    10,000 on.
    """
    check_tensors(step=step)
    return minimum(rsqrt(count(step) + 1.0), 1e-2)


class Adafactor(Optimizer):
    """Adafactor, for each variable with its own scale and with clipped updates.

    The two largest dimensions of a variable are factored, of equal ones the first, if
    both have at least `min_dim_size_to_factor`. Slot "row" lacks the smaller of the two
    and "column" the larger; further dimensions stay in both. Variables that are not
    factored have a slot "v" of their shape.

    Args:
      variables: those that will be updated.
      learning_rate: a number, or a schedule; default: the paper's.
      beta_1: how much of the mean of updates stays at each step; 0 keeps no slot "m".
      decay_power: how fast means of squares grow long: 1 - t ** -decay_power of them
        stays.
      beta_2: if given, how much of them stays instead, with Adam's correction of means
        that begin at zero.
      clip_threshold: the root mean square that the update of a variable has at most.
      epsilon_1: what is added to squares of gradients.
      epsilon_2: the least scale of a variable.
      multiply_by_parameter_scale: whether updates are as large as the variable's root
        mean square.
      min_dim_size_to_factor: the least size of a factored dimension.
      stacked_dims: names along which independent variables are stacked, such as
        "layers;experts"; they are never factored.
      weight_decay: the share of a variable, times the rate, that is taken away at each
        step.
      decays: which variables are decayed; default: those of two and more dimensions,
        but biases and scales.
      name: the first part of the names of the slots.
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
        decays: Callable[[Variable], bool] | None = None,
        name: str = "adafactor",
    ) -> None:
        variables = as_variables("variables", variables, "variables")
        check_fractions(beta_1=beta_1, beta_2=0.0 if beta_2 is None else beta_2)
        check_floats(
            decay_power=decay_power,
            clip_threshold=clip_threshold,
            epsilon_1=epsilon_1,
            epsilon_2=epsilon_2,
            weight_decay=weight_decay,
        )
        check_ints(min_dim_size_to_factor=min_dim_size_to_factor)
        check_bools(multiply_by_parameter_scale=multiply_by_parameter_scale)
        check_callables(decays=decays)
        slots, stacked = [], names_of(stacked_dims, argument="stacked_dims")
        for shape in (v.shape for v in variables):
            two = factored_dims(shape.without(*stacked), min_dim_size_to_factor)
            moments = (
                {"row": shape.without(two[1]), "column": shape.without(two[0])}
                if two
                else {"v": shape}
            )
            slots.append(moments | ({"m": shape} if beta_1 else {}))
        super().__init__(variables, learning_rate, slots, name)
        self.beta_1, self.decay_power, self.clip_threshold = (
            beta_1,
            decay_power,
            clip_threshold,
        )
        self.epsilon_1, self.epsilon_2 = epsilon_1, epsilon_2
        self.multiply_by_parameter_scale, self.beta_2 = (
            multiply_by_parameter_scale,
            beta_2,
        )
        self.min_dim_size_to_factor, self.stacked_dims = min_dim_size_to_factor, stacked
        self.weight_decay, self.decays = weight_decay, decays or usually_decays

    def numbers(self, rate: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """Returns the rate, and the share of a mean of squares that a step replaces."""
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
        numbers: tuple[Tensor, ...],
    ) -> None:
        """Updates a variable and its slots, in their data type."""
        check_record(Variable, variable=variable)
        check_tensors(grad=grad)
        check_update_arguments(slots, numbers)
        rate, fresh = numbers
        with lying(variable.slot_layout):
            grad = finished(cast(grad, rate.dtype))
            value = cast(variable.tensor(), rate.dtype)
            change = grad * self._scale(
                variable.shape, square(grad) + self.epsilon_1, slots, fresh
            )
            change = change / maximum(
                self._rms(change) * (1 / self.clip_threshold), 1.0
            )
            scale = (
                maximum(self._rms(value), self.epsilon_2)
                if self.multiply_by_parameter_scale
                else 1.0
            )
            change = change * (rate * scale)
            if self.beta_1:
                change = mix(slots["m"], change, 1.0 - self.beta_1)
            if self.weight_decay and self.decays(variable):
                change = change + value * (rate * self.weight_decay)
            value = cast(value - change, variable.dtype)
        variable.assign(value)

    def _scale(
        self, shape: Shape, squares: Tensor, slots: dict[str, Variable], fresh: Tensor
    ) -> Tensor:
        """Takes squared gradients in, and returns what a gradient is multiplied by."""
        two = factored_dims(
            shape.without(*self.stacked_dims), self.min_dim_size_to_factor
        )
        if two is None:
            return rsqrt(mix(slots["v"], squares, fresh))
        large, small = two
        row = mix(slots["row"], reduce_mean(squares, small), fresh)
        column = mix(slots["column"], reduce_mean(squares, large), fresh)
        return outer(rsqrt(row / reduce_mean(row, large)), rsqrt(column))

    def _rms(self, x: Tensor) -> Tensor:
        """Returns the root mean square of each variable that is stacked in one."""
        return rms(x, x.shape.without(*self.stacked_dims))


def factored_dims(shape: Shape, least: int) -> tuple[str, str] | None:
    """Returns the names of the two dimensions to factor, the larger first; None: they
    are small.
    """
    dims = sorted(shape, key=lambda dim: -dim.size)[:2]
    return (
        (dims[0].name, dims[1].name)
        if len(dims) == 2 and dims[1].size >= least
        else None
    )
