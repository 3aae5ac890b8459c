"""Schedules of the learning rate: functions of the step, a scalar int32 tensor, that return
a rate, a scalar.

    rate = warmup_cosine(peak=3e-3, warmup_steps=50, total_steps=600)
    optimizer = Adam(variables, rate)

    rate = product(2.0, inverse_sqrt(10_000), linear_decay(100_000, 10_000))
    slow_rate = product(rate, 0.1)        # for some of the variables: see ParameterGroups

Steps are counted from 0. The step is an argument of the compiled program, so the program is
not compiled again for a new step.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from meshtf.errors import PlanError
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_callable, as_float, check_floats, check_ints
from meshtf.ops.elementwise.arithmetic import maximum, minimum
from meshtf.ops.elementwise.unary import cos, rsqrt
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full

Schedule: TypeAlias = Callable[[Tensor], Tensor]
Rate: TypeAlias = float | Schedule
# The data type in which schedules compute, set by `rate_dtype`.
_DTYPE = contextvars.ContextVar("dtype of rates", default="float32")


@contextlib.contextmanager
def rate_dtype(dtype: str) -> Iterator[None]:
    """Within the context, the schedules of this module compute in `dtype`: "float64" for
    variables of float64, otherwise "float32".
    """
    token = _DTYPE.set(dtype)
    try:
        yield
    finally:
        _DTYPE.reset(token)


def scalar(mesh: Mesh | None, value: float) -> Tensor:
    """Returns a scalar constant in the data type of rates."""
    return full(mesh, shape="", value=value, dtype=_DTYPE.get())


def cast_step(step: Tensor) -> Tensor:
    """Returns a step in the data type of rates."""
    return cast(step, _DTYPE.get())


def warmup_cosine(
    peak: float, warmup_steps: int, total_steps: int, final: float = 0.0
) -> Schedule:
    """Returns a rate that rises linearly to `peak`, then falls along a cosine to
    `final`.

    At step s of the warmup the rate is peak * (s + 1) / warmup_steps.

    Args:
      peak: the highest rate.
      warmup_steps: the count of steps in which the rate rises.
      total_steps: the step at which the rate reaches `final`.
      final: the last rate.
    """
    check_floats(peak=peak, final=final)
    check_ints(warmup_steps=warmup_steps, total_steps=total_steps)

    def rate(step: Tensor) -> Tensor:
        decay_steps = float(max(total_steps - warmup_steps, 1))
        progress = (cast_step(step) - float(warmup_steps)) / decay_steps
        progress = minimum(maximum(progress, 0.0), 1.0)
        cosine = cos(progress * math.pi) * 0.5 + 0.5  # falls from 1 to 0
        return _warmup_factor(step, warmup_steps) * (cosine * (peak - final) + final)

    return rate


def warmup_inverse_sqrt(peak: float, warmup_steps: int) -> Schedule:
    """Returns a rate that rises linearly to `peak`, then falls as 1 / sqrt(step).

    Args:
      peak: the highest rate.
      warmup_steps: the count of steps in which the rate rises.
    """
    check_floats(peak=peak)
    check_ints(warmup_steps=warmup_steps)

    def rate(step: Tensor) -> Tensor:
        t = maximum(cast_step(step) + 1.0, float(max(warmup_steps, 1)))
        # With this factor the rate is `peak` where t is `warmup_steps`.
        factor = peak * math.sqrt(max(warmup_steps, 1))
        return _warmup_factor(step, warmup_steps) * rsqrt(t) * factor

    return rate


def linear_warmup(steps: int) -> Schedule:
    """Returns a factor that rises linearly to 1: (s + 1) / steps at step s.

    Args:
      steps: the count of steps in which the factor rises.
    """
    check_ints(steps=steps)
    return lambda step: _warmup_factor(step, steps)


def linear_decay(total_steps: int, steps: int) -> Schedule:
    """Returns a factor that is 1, then falls linearly to 0 over the last `steps` of
    `total_steps` steps.

    Args:
      total_steps: the step at which the factor reaches 0.
      steps: the count of steps in which the factor falls.
    """
    check_ints(total_steps=total_steps, steps=steps)

    def rate(step: Tensor) -> Tensor:
        remaining = (float(total_steps) - cast_step(step)) / float(max(steps, 1))
        return minimum(maximum(remaining, 0.0), 1.0)

    return rate


def cosine_decay(total_steps: int, final: float = 0.0) -> Schedule:
    """Returns a factor that falls from 1 along half a cosine to `final` at step
    `total_steps`.

    Args:
      total_steps: the step at which the factor reaches `final`.
      final: the last factor.
    """
    check_ints(total_steps=total_steps)
    return warmup_cosine(peak=1.0, warmup_steps=0, total_steps=total_steps, final=final)


def inverse_sqrt(warmup_steps: int = 10_000) -> Schedule:
    """Returns the rate 1 / sqrt(max(step + 1, warmup_steps)): first constant, then falling.

    Args:
      warmup_steps: the count of steps in which the rate is constant.
    """
    check_ints(warmup_steps=warmup_steps)

    def rate(step: Tensor) -> Tensor:
        t = cast_step(step) + 1.0
        return rsqrt(maximum(t, float(max(warmup_steps, 1))))

    return rate


def slanted_triangular(
    peak: float, total_steps: int, cut_fraction: float = 0.1, ratio: float = 32.0
) -> Schedule:
    """Returns a rate that rises quickly and falls slowly, both linearly (Howard and Ruder,
    2018, section 3.2).

    Args:
      peak: the highest rate.
      total_steps: the step at which the rate reaches peak / ratio.
      cut_fraction: the fraction of the steps in which the rate rises.
      ratio: the peak divided by the lowest rate.
    """
    check_floats(peak=peak, cut_fraction=cut_fraction, ratio=ratio)
    check_ints(total_steps=total_steps)
    peak_step = max(total_steps * cut_fraction, 1.0)

    def rate(step: Tensor) -> Tensor:
        t = cast_step(step)
        rising = t / peak_step
        falling = (float(total_steps) - t) / max(total_steps - peak_step, 1.0)
        fraction = minimum(maximum(minimum(rising, falling), 0.0), 1.0)
        # From peak / ratio for the fraction 0 to peak for the fraction 1.
        return (fraction * (ratio - 1.0) + 1.0) * (peak / ratio)

    return rate


def product(*factors: Rate) -> Schedule:
    """Returns the product of rates, each a float or a schedule.

    Raises:
      PlanError: there is no factor.
    """
    for factor in factors:
        if not callable(factor):
            # Raises ArgumentError unless it is a number.
            as_float("factors", factor, "numbers and schedules")
    if not factors:
        raise PlanError("a product of rates has at least one factor.")

    def rate(step: Tensor) -> Tensor:
        constant = math.prod(factor for factor in factors if not callable(factor))
        result = scalar(step.mesh, constant)
        for factor in factors:
            if callable(factor):
                result = result * cast(factor(step), result.dtype)
        return result

    return rate


def delay(schedule: Schedule, steps: int) -> Schedule:
    """Returns a schedule that has the value of `schedule` at step 0 for `steps` steps, and
    then follows it.

    Args:
      schedule: the schedule to delay: a function of the step.
      steps: the count of steps to delay it by.
    """
    schedule = as_callable(
        "schedule", schedule, takes="a schedule: a function of the step"
    )
    check_ints(steps=steps)
    return lambda step: schedule(maximum(step - steps, 0))


def _warmup_factor(step: Tensor, warmup_steps: int) -> Tensor:
    """Returns the factor min((step + 1) / warmup_steps, 1), a scalar."""
    t = cast_step(step) + 1.0
    return minimum(t * (1.0 / max(warmup_steps, 1)), 1.0)
