"""Factors by which measured steps of a model differ from predicted ones, by kind of work.

    steps = [MeasuredStep(trainer.explain(batch, hardware=profile), seconds=0.12), ...]
    profile = adjust(profile, steps)

The predicted time of a step is a sum over kinds of work: matmuls, ops by name, updates of
variables, bytes of collectives by kind, latencies of all collectives, the call. Each kind gets
a factor. Few measured steps do not determine many factors, so one that they do not need stays
near what all kinds have in common (ridge regression). With measured local steps, which are the
time of all ops of a device, these get one factor together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from meshtf.forecast.forecast import Forecast
from meshtf.forecast.time.exchanges import LATENCY
from meshtf.hardware import Hardware

_NOISE = 0.05  # the expected relative error of a measured step
# The expected distance of a factor from 1: of ops, and of what devices wait for, which grows
# with all that happens meanwhile.
_SPREAD = 0.5
_SPREAD_OF_WAITS = 2.0
# The limits of a factor, relative to what all kinds have in common.
_SMALLEST = 0.1
_LARGEST = 10.0
_ALL = "all"  # kinds that have no factor of their own
# What a measured local step leaves out; the other kinds are ops of one device.
_NOT_LOCAL = frozenset(
    {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "broadcast",
        "call",
        "collective_permute",
        "gather_statistics",
        LATENCY,
        "reduce_scatter",
        "send",
        "window",
    }
)


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured.

    Attributes:
      forecast: its forecast, with the profile that is to be adjusted.
      seconds: its measured time.
    """

    forecast: Forecast
    seconds: float


def scale(hardware: Hardware, steps: Sequence[MeasuredStep]) -> Hardware:
    """Returns a profile in which all work takes longer by one factor.

    Args:
      hardware: the profile from which the steps were predicted; it has no factors yet.
      steps: measured steps.
    """
    ratios = [step.seconds / _predicted(step) for step in steps]
    factors = {**hardware.work_factors, _ALL: float(np.median(ratios))}
    return dataclasses.replace(hardware, work_factors=factors)


def _predicted(step: MeasuredStep) -> float:
    """Returns the predicted time of a step."""
    assert step.forecast.time is not None
    return step.forecast.time.seconds


def adjust(hardware: Hardware, steps: Sequence[MeasuredStep]) -> Hardware:
    """Returns a profile with factors that fit measured steps.

    Args:
      hardware: the profile from which the steps were predicted.
      steps: measured steps of one or several layouts.
    """
    works = []
    for step in steps:
        assert step.forecast.time is not None
        works.append(dict(step.forecast.time.work))
    kinds = sorted({kind for work in works for kind in work})
    groups = _groups(kinds, has_local_steps=bool(hardware.local_steps))
    seconds = np.array([step.seconds for step in steps])
    predicted = np.array(
        [
            [sum(work.get(kind, 0.0) for kind in group) for group in groups]
            for work in works
        ]
    )
    shares = predicted / seconds[:, None]
    # What all kinds have in common, such as other programs on the machine, is a factor of all.
    common = 1.0 / float(np.median(shares.sum(axis=1)))
    shares = shares * common
    # Least squares of (factors * predicted - measured) / measured, and of factors - 1.
    deviations = np.array([_deviation(group) for group in groups])
    matrix = shares.T @ shares + np.diag((_NOISE / deviations) ** 2)
    error = 1.0 - shares.sum(axis=1)
    factors = 1.0 + np.linalg.solve(matrix, shares.T @ error)
    factors = common * np.clip(factors, _SMALLEST, _LARGEST)
    changes = {
        kind: float(factor) for group, factor in zip(groups, factors) for kind in group
    }
    # Kinds of work that these steps do not have.
    for kind in {_ALL, *hardware.work_factors} - set(kinds):
        changes[kind] = common
    work_factors = {
        kind: hardware.work_factor(kind) * change for kind, change in changes.items()
    }
    return dataclasses.replace(hardware, work_factors=work_factors)


def _deviation(group: Sequence[str]) -> float:
    """Returns the expected distance of the factor of some kinds of work from 1."""
    return _SPREAD_OF_WAITS if group[0] in _NOT_LOCAL else _SPREAD


def _groups(kinds: Sequence[str], has_local_steps: bool) -> list[list[str]]:
    """Returns the kinds of work in groups of one factor each.

    Args:
      kinds: the kinds.
      has_local_steps: whether the times of ops are those of measured local steps.
    """
    if not has_local_steps:
        return [[kind] for kind in kinds]
    local = [kind for kind in kinds if kind not in _NOT_LOCAL]
    groups = [[kind] for kind in kinds if kind in _NOT_LOCAL]
    return [local, *groups] if local else groups
