"""Learning rates that change: functions of the step, a scalar int32 tensor.

    rate = warmup_cosine(peak=3e-3, warmup_steps=50, total_steps=600)
    optimizer = Adam(variables, rate)

The step is an argument of the compiled program, so a new step is no new program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from meshtf.graph import Tensor
from meshtf.ops.arithmetic import maximum, minimum
from meshtf.ops.pointwise import cast
from meshtf.ops.unary import cos, rsqrt

Schedule: TypeAlias = Callable[[Tensor], Tensor]
Rate: TypeAlias = float | Schedule


def warmup_cosine(peak: float, warmup_steps: int, total_steps: int, final: float = 0.0) -> Schedule:
  """Returns a rate that climbs in a line to `peak`, and falls along a cosine to `final`.

  Step s, counted from 0, has s + 1 parts in `warmup_steps` of the climb; step `total_steps` and
  those after it have the final rate.
  """
  def rate(step: Tensor) -> Tensor:
    done = (cast(step, "float32") - float(warmup_steps)) / float(max(total_steps - warmup_steps, 1))
    falling = cos(minimum(maximum(done, 0.0), 1.0) * math.pi) * 0.5 + 0.5
    return _warmup(step, warmup_steps) * (falling * (peak - final) + final)
  return rate


def warmup_inverse_sqrt(peak: float, warmup_steps: int) -> Schedule:
  """Returns a rate that climbs in a line to `peak`, and falls as 1 / sqrt(step) from there."""
  def rate(step: Tensor) -> Tensor:
    count = maximum(cast(step, "float32") + 1.0, float(max(warmup_steps, 1)))
    return _warmup(step, warmup_steps) * rsqrt(count) * (peak * math.sqrt(max(warmup_steps, 1)))
  return rate


def _warmup(step: Tensor, warmup_steps: int) -> Tensor:
  return minimum((cast(step, "float32") + 1.0) * (1.0 / max(warmup_steps, 1)), 1.0)
