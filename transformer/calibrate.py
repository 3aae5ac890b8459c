"""Measures the present machine, and writes a profile of hardware, from which forecasts have the
time of a step.

    python -m meshtf calibrate --mesh_devices=spmd:cpu:8 --save=my_machine.json
    python -m meshtf calibrate --mesh_devices=spmd --positions=8 --save=my_machine.json
    python -m meshtf calibrate --gin_file=lm_stdlib.gin --save=my_machine.json
    python -m meshtf calibrate --gin_file=models/gpt2_xl.gin --devices=64 --mesh_devices=spmd:cuda:1

    python -m meshtf explain --hardware=my_machine.json           # the predicted time of a step
    python -m transformer.train --gin_param='train.hardware = "my_machine.json"'

It measures matmuls, elementwise ops and each kind of collective, all devices at work at once,
in a minute or so, and writes these rates. With --gin_file or --gin_param it also times steps of
that configuration, on its mesh and on others with the same axes, and writes factors by which its
kinds of work differ from the rates; the devices are then those of its mesh, unless
--mesh_devices names some.
With --devices it times instead what one of so many devices computes, without communication, at
the local sizes of the layouts that a search finds; `search` and `explain` use these times.
Exit code: 0; 1: an error of the configuration; 2: an error of usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from transformer.cli import command_line, measure_flags

_POSITIONS = flags.DEFINE_integer(
    "positions",
    8,
    "The positions of the mesh, if --mesh_devices has no count.",
    lower_bound=1,
)
_MESHES = flags.DEFINE_integer(
    "calibrated_meshes",
    4,
    "On how many meshes with the axes of the configuration its steps are timed.",
    lower_bound=1,
)
_STEPS = flags.DEFINE_integer(
    "calibrated_steps",
    12,
    "How many steps are timed on each mesh; the median counts.",
    lower_bound=1,
)
_LOCAL_SIZES = flags.DEFINE_integer(
    "calibrated_sizes",
    8,
    "With --devices: how many local sizes are timed, at most.",
    lower_bound=1,
)
_DEFAULT_PATH = "my_machine.json"
flags.adopt_module_key_flags(command_line)  # so that --help shows them
flags.adopt_module_key_flags(measure_flags)


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line as text; "" without an error.

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    devices = measure_flags.MESH_DEVICES.value or ""
    is_spmd = devices.startswith("spmd") and devices[-1].isdigit()
    if measure_flags.DEVICES.value is not None and not (is_spmd and _has_model()):
        return (
            "--devices needs a configuration (--gin_file), and devices that are here: "
            "--mesh_devices=spmd:cpu:8."
        )
    return command_line.usage_error(argv)


def flag_error(error: flags.Error) -> str:
    """Returns a message about flags that absl cannot parse; `python -m meshtf` calls it."""
    return command_line.flag_error(error)


def main(argv: Sequence[str]) -> None:
    """Measures, and writes the profile."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    import meshtf as mtf
    from transformer.data.atomic_files import check_writable

    mtf.configure_process()
    with command_line.exit_on_user_errors():
        path = measure_flags.SAVE.value or _DEFAULT_PATH
        check_writable(path, name="--save")
        # Rates are written before steps are timed: whatever ends those loses no rates.
        for hardware in _profiles(argv):
            hardware.save(path)
            print(f"wrote {path}", flush=True)
    sys.exit(0)


def _has_model() -> bool:
    """Returns whether flags name a configuration."""
    return any(
        not flags.FLAGS[flag.name].using_default_value
        for flag in (command_line.GIN_FILE, command_line.GIN_PARAM)
    )


def _profiles(argv: Sequence[str]) -> Iterator[Any]:
    """Yields the profile with the rates, and then with the times of a configuration if flags
    name one.
    """
    import meshtf as mtf
    from transformer.training import (
        local_calibration,
        searched_step,
        step_calibration,
    )

    devices = measure_flags.MESH_DEVICES.value
    positions = _POSITIONS.value
    num_devices = measure_flags.DEVICES.value
    if num_devices is not None:
        command_line.configure_by_flags(argv, *searched_step.ABSTRACT_MESH)
    elif _has_model():
        command_line.configure_by_flags(argv)
        configured, positions = step_calibration.configured_mesh()
        devices = devices or configured
    hardware = mtf.calibration.calibrate(devices, positions, report=_print)
    yield hardware
    if num_devices is not None:
        yield local_calibration.measure_local_steps(
            hardware,
            num_devices,
            devices,
            count=_LOCAL_SIZES.value,
            memory=measure_flags.MEMORY.value,
            report=_print,
        )
    elif _has_model():
        yield step_calibration.calibrate_steps(
            hardware,
            devices,
            configure=lambda *params: command_line.configure_by_flags(argv, *params),
            max_meshes=_MESHES.value,
            num_steps=_STEPS.value,
            report=_print,
        )


def _print(line: str) -> None:
    """Prints a line of progress."""
    print(line, flush=True)
