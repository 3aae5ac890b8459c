"""Noise of training: dropout, dropout that fades, jitter and added noise.

    drop = Dropout(0.1, broadcast="length")
    with mtf.seed(run_seed, step):
      y = drop(x, training=True)

What is drawn depends on the seed, on the path of the layer, and on each element's place
in the whole tensor, so every layout drops the same elements.
"""

from __future__ import annotations

from meshtf.errors import PlanError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.module import Module
from meshtf.names import Shape, accumulation_dtype, names_of
from meshtf.names.arguments import check_bools, check_floats, check_ints
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import maximum, minimum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.random.random import dropout, random_normal, random_uniform


class Dropout(Module):
    """Zeroes elements with probability `rate`, and divides the others by 1 - rate.

    Args:
      rate: the share of elements that become zero; 0 leaves all as they are.
      broadcast: names along which one mask serves all rows, such as "length".
      name: the last part of the path that its masks depend on.
    """

    def __init__(self, rate: float, broadcast: str = "", name: str = "dropout") -> None:
        check_floats(rate=rate)
        super().__init__(name)
        names_of(broadcast, Shape(""), argument="broadcast")
        self.rate, self.broadcast = rate, broadcast

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Returns x with elements dropped, if `training`."""
        check_tensors(x=x)
        check_bools(training=training)
        return (
            dropout(x, self.rate, broadcast=self.broadcast)
            if training and self.rate
            else x
        )


class AnnealedDropout(Module):
    """Dropout whose rate falls in a line from `rate` at `start_step` to 0 at
    `end_step`.

    Args:
      rate: the share of elements that become zero up to `start_step`.
      start_step: when the rate begins to fall.
      end_step: from when on nothing is dropped.
      broadcast: names along which one mask serves all rows, such as "length".
      name: the last part of the path that its masks depend on.

    Raises:
      PlanError: a rate that is none, or steps that do not come one after the other.
    """

    def __init__(
        self,
        rate: float,
        start_step: int,
        end_step: int,
        broadcast: str = "",
        name: str = "annealed_dropout",
    ) -> None:
        check_floats(rate=rate)
        check_ints(start_step=start_step, end_step=end_step)
        super().__init__(name)
        if not 0 <= rate < 1 or start_step >= end_step:
            raise PlanError(
                f"a dropout rate is at least 0 and below 1, not {rate}, and it falls "
                f"from a step to a later one, not from {start_step} to {end_step}."
            )
        names_of(broadcast, Shape(""), argument="broadcast")
        self.rate, self.broadcast = rate, broadcast
        self.start_step, self.end_step = start_step, end_step

    def __call__(self, x: Tensor, step: Tensor, training: bool = False) -> Tensor:
        """Returns x with elements dropped, if `training`, at a step: a scalar int32
        tensor.
        """
        check_tensors(x=x, step=step)
        check_bools(training=training)
        if not training or not self.rate:
            return x
        require_dim(x.shape, *names_of(self.broadcast, x.shape))
        dtype = accumulation_dtype(x.dtype)
        left = (self.end_step - cast(step, dtype)) / float(
            self.end_step - self.start_step
        )
        rate = minimum(maximum(left, 0.0), 1.0) * self.rate
        shape = x.shape.without(*names_of(self.broadcast, x.shape))
        kept = random_uniform(x.mesh, shape, name="dropout") >= cast(rate, "float32")
        return where(kept, x / cast(1.0 - rate, x.dtype), 0.0)


def multiplicative_jitter(
    x: Tensor, epsilon: float = 1e-2, name: str = "jitter"
) -> Tensor:
    """Returns x with each element times a number drawn evenly from 1 - epsilon to 1 +
    epsilon.

    Args:
      x: floats, such as the inputs of a router (Fedus et al., 2021, arXiv 2101.03961).
      epsilon: 0 gives x itself.
      name: tells two random ops of one module apart.
    """
    x = as_tensor("x", x)
    check_floats(epsilon=epsilon)
    if not epsilon:
        return x
    return x * random_uniform(
        x.mesh, x.shape, 1 - epsilon, 1 + epsilon, x.dtype, name=name
    )


def add_noise(x: Tensor, stddev: float, name: str = "noise") -> Tensor:
    """Returns x with normal noise of this standard deviation added; 0 gives
    x itself.
    """
    x = as_tensor("x", x)
    check_floats(stddev=stddev)
    return (
        x + random_normal(x.mesh, x.shape, 0.0, stddev, x.dtype, name=name)
        if stddev
        else x
    )
