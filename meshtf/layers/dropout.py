"""Noise in training: dropout, annealed dropout, jitter and added noise.

    drop = Dropout(0.1, broadcast="length")
    with mtf.seed(run_seed, step):
      y = drop(x, training=True)

Random numbers depend on the seed, on the path of the layer, and on the index of each
element in the global tensor, so every layout drops the same elements.
"""

from __future__ import annotations

from meshtf.errors import PlanError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.module import Module
from meshtf.names import Shape, accumulation_dtype, names_of
from meshtf.names.arguments import check_bools, check_floats, check_ints
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.elementwise.arithmetic import maximum, minimum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.random.random import dropout, random_normal, random_uniform


class Dropout(Module):
    """Zeroes elements with probability `rate`, and divides the rest by 1 - rate.

    Args:
      rate: the fraction of elements that become zero; 0 returns x.
      broadcast: names along which the mask is broadcast, such as "length".
      name: the layer's name, a component of the path that its masks depend on.
    """

    default_name = "dropout"

    def __init__(
        self, rate: float, broadcast: str = "", name: str | None = None
    ) -> None:
        check_floats(rate=rate)
        super().__init__(name)
        # A check: raises if `broadcast` is no list of names.
        names_of(broadcast, Shape(""), argument="broadcast")
        self.rate = rate
        self.broadcast = broadcast

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Returns x [...] with elements dropped, if `training`."""
        check_tensors(x=x)
        check_bools(training=training)
        if not training or not self.rate:
            return x
        return dropout(x, self.rate, broadcast=self.broadcast)


class AnnealedDropout(Module):
    """Dropout whose rate falls linearly from `rate` at `start_step` to 0 at `end_step`.

    Args:
      rate: the fraction of elements that become zero up to `start_step`.
      start_step: the step from which the rate falls.
      end_step: the step from which no element is dropped.
      broadcast: names along which the mask is broadcast, such as "length".
      name: the layer's name, a component of the path that its masks depend on.

    Raises:
      PlanError: the rate is not in [0, 1), or `end_step` is not after `start_step`.
    """

    default_name = "annealed_dropout"

    def __init__(
        self,
        rate: float,
        start_step: int,
        end_step: int,
        broadcast: str = "",
        name: str | None = None,
    ) -> None:
        check_floats(rate=rate)
        check_ints(start_step=start_step, end_step=end_step)
        super().__init__(name)
        if not 0 <= rate < 1 or start_step >= end_step:
            raise PlanError(
                f"a dropout rate is at least 0 and below 1, not {rate}, and it falls "
                f"from a step to a later one, not from {start_step} to {end_step}."
            )
        # A check: raises if `broadcast` is no list of names.
        names_of(broadcast, Shape(""), argument="broadcast")
        self.rate = rate
        self.broadcast = broadcast
        self.start_step = start_step
        self.end_step = end_step

    def __call__(self, x: Tensor, step: Tensor, training: bool = False) -> Tensor:
        """Returns x [...] with elements dropped, if `training`.

        Args:
          x: the input, floats [...].
          step: the index of the training step: int32, a scalar.
          training: whether elements are dropped.
        """
        check_tensors(x=x, step=step)
        check_bools(training=training)
        if not training or not self.rate:
            return x
        require_dim_of_caller(x.shape, *names_of(self.broadcast, x.shape))
        dtype = accumulation_dtype(x.dtype)
        num_steps = float(self.end_step - self.start_step)
        remaining_fraction = (self.end_step - cast(step, dtype)) / num_steps
        rate = minimum(maximum(remaining_fraction, 0.0), 1.0) * self.rate
        shape = x.shape.without(*names_of(self.broadcast, x.shape))
        uniform = random_uniform(x.mesh, shape, name="dropout")
        keep = uniform >= cast(rate, "float32")
        return where(keep, x / cast(1.0 - rate, x.dtype), 0.0)


def multiplicative_jitter(
    x: Tensor, epsilon: float = 1e-2, name: str = "jitter"
) -> Tensor:
    """Returns x [...] with each element multiplied by a random number, uniform between
    1 - epsilon and 1 + epsilon.

    Args:
      x: floats [...], such as the input of a router of experts (Fedus et al., 2021, arXiv
        2101.03961).
      epsilon: the maximum relative change of an element; 0 returns x.
      name: the last component of the path that the random numbers depend on; two random
        ops of one module need different names.
    """
    x = as_tensor("x", x)
    check_floats(epsilon=epsilon)
    if not epsilon:
        return x
    return x * random_uniform(
        x.mesh,
        x.shape,
        minval=1 - epsilon,
        maxval=1 + epsilon,
        dtype=x.dtype,
        name=name,
    )


def add_noise(x: Tensor, stddev: float, name: str = "noise") -> Tensor:
    """Returns x [...] plus normally distributed noise.

    Args:
      x: floats [...].
      stddev: the standard deviation of the noise; 0 returns x.
      name: the last component of the path that the noise depends on; two random ops of
        one module need different names.
    """
    x = as_tensor("x", x)
    check_floats(stddev=stddev)
    if not stddev:
        return x
    return x + random_normal(x.mesh, x.shape, stddev=stddev, dtype=x.dtype, name=name)
