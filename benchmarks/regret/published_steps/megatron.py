"""The constants of Megatron-DeepSpeed's runs on A100s, fitted to measured steps.

    constants = fit_constants(steps, as_hardware("a100"))
    factors = fit_layers(steps, constants)

These programs are not compiled: the host launches each op, and the steps of small models are
as long as the host takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from benchmarks.regret.published_steps.fit import Parameter, Progress, fit
from benchmarks.regret.published_steps.published import Run
from benchmarks.regret.published_steps.step_times import Constants, StepTimes
from meshtf.hardware import Hardware

# What is expected without measurements: values of configs/hardware/a100.json and of data
# sheets, and guesses with a wide spread.
PARAMETERS = (
    Parameter("matmul_efficiency", 0.75, 0.3),
    Parameter("memory_efficiency", 0.8, 0.3),
    Parameter("op_seconds", 3e-6, 0.7),
    Parameter("launch_seconds", 2e-5, 1.0),
    Parameter("NVLink bandwidth", 240e9, 0.3),
    Parameter("NVLink latency", 8e-6, 1.0),
    Parameter("InfiniBand bandwidth", 10e9, 0.3),
    Parameter("InfiniBand latency", 2e-5, 0.7),
    Parameter("gradient_share", 0.7, 0.5),
    Parameter("microbatch_seconds", 1e-3, 1.0),
    Parameter("step_seconds", 1e-2, 1.0),
)
LINKS = ("NVLink bandwidth", "InfiniBand bandwidth", "gradient_share")
_ROUNDS = 3  # of fitting layers and constants in turn
_MAX_FACTOR = 3.0  # of the time of a layer

# The sizes that say how long a layer takes: hidden, tensor, micro_batch.
LayerKind: TypeAlias = tuple[int, int, int]


def constants_of(values: Mapping[str, float], profile: Hardware) -> Constants:
    """Returns constants in place of those of a profile.

    Args:
      values: the values of `PARAMETERS`, by name.
      profile: the profile, with the links NVLink and InfiniBand.
    """
    links = tuple(
        dataclasses.replace(
            link,
            bandwidth=values[f"{link.name} bandwidth"],
            latency=values[f"{link.name} latency"],
            ring=link.devices is not None,  # NCCL's choice within a host
        )
        for link in profile.links
    )
    names = {field.name for field in dataclasses.fields(Hardware)}
    changes = {name: value for name, value in values.items() if name in names}
    return Constants(
        dataclasses.replace(profile, links=links, overlaps=False, **changes),
        gradient_share=values["gradient_share"],
        microbatch_seconds=values["microbatch_seconds"],
        step_seconds=values["step_seconds"],
    )


def fit_constants(
    steps: StepTimes,
    profile: Hardware,
    factors: np.ndarray | float = 1.0,
    fixed: Sequence[str] = (),
    progress: Progress | None = None,
) -> Constants:
    """Returns the constants that fit the measured steps of `steps.runs`.

    Args:
      steps: the predicted steps.
      profile: the profile whose constants are fitted.
      factors: what the seconds of a layer are multiplied with, for each run.
      fixed: the names of parameters that stay as they are expected.
      progress: called in each iteration.
    """
    measured = np.array([run.seconds for run in steps.runs])

    expected = {p.name: p.expected for p in PARAMETERS if p.name in fixed}
    fitted = [p for p in PARAMETERS if p.name not in fixed]

    def constants_with(values: Mapping[str, float]) -> Constants:
        """Returns the constants with some fitted values."""
        return constants_of({**expected, **values}, profile)

    def residuals(values: Mapping[str, float], same_paths: bool) -> np.ndarray:
        """Returns log(predicted / measured) of each run."""
        constants = constants_with(values)
        return np.log(steps.seconds(constants, factors, same_paths) / measured)

    return constants_with(fit(residuals, fitted, progress=progress))


def fit_layers(
    steps: StepTimes,
    profile: Hardware,
    constants: Constants,
    progress: Progress | None = None,
) -> tuple[Constants, dict[LayerKind, float]]:
    """Returns the measured time of a layer over the predicted one for each kind of layer, and
    the constants that fit then. No layer was measured alone: its time is what fits best.

    Args:
      steps: the predicted steps, of runs that were measured.
      profile: the profile whose constants are fitted.
      constants: the constants that fit without these factors.
      progress: called in each iteration.
    """
    measured = np.array([run.seconds for run in steps.runs])
    kinds = [layer_kind(run) for run in steps.runs]
    layers = dict.fromkeys(kinds, 1.0)
    for i in range(_ROUNDS):
        for _ in range(2):
            factors = layer_factors(steps.runs, layers)
            share = steps.layer_share(constants, factors)
            errors = np.log(steps.seconds(constants, factors) / measured)
            for kind in layers:
                indices = [k for k, other in enumerate(kinds) if other == kind]
                change = np.exp(-np.median(errors[indices] / share[indices]))
                factor = layers[kind] * change
                layers[kind] = float(np.clip(factor, 1 / _MAX_FACTOR, _MAX_FACTOR))
        if i + 1 < _ROUNDS:
            factors = layer_factors(steps.runs, layers)
            constants = fit_constants(steps, profile, factors, progress=progress)
    return constants, layers


def layer_kind(run: Run) -> LayerKind:
    """Returns the sizes that say how long a layer of a run takes."""
    return run.job.hidden, run.tensor, run.micro_batch


def layer_factors(runs: Sequence[Run], layers: Mapping[LayerKind, float]) -> np.ndarray:
    """Returns the factor of each run; 1 for layers that were not measured."""
    return np.array([layers.get(layer_kind(run), 1.0) for run in runs])
