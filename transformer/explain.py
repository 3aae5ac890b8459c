"""Forecasts the cost of a training step of any configuration of `transformer.train`.

    python -m meshtf explain                                      # configs/lm_stdlib.gin
    python -m meshtf explain --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin
    python -m meshtf explain --gin_param='Mesh.axes = "data:256;model:8"' --html=plan.html

    python -m meshtf explain --device_memory=40GiB                # whether it fits, what helps
    python -m meshtf explain --hardware=h100 --trace=step.json    # the time of a step

It takes the gin files and settings of `python -m transformer.train`. It prints, for one
device: FLOPs, bytes received, memory and its peak, sums by module, and every op with its
reshards. It needs no devices, reads no data and runs no step. --json and --html save the
forecast. If the step has an error, the ops before it are shown, with the error.

Exit code: 0; 1: an error of the configuration or the step; 2: an error of usage; 3: the
step does not fit into the memory of a device.

Memory is that of the runtime that is named there: of `spmd` if the configuration has such
devices, or names none and --hardware has XLA, as `search` counts it; else of `placed`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from transformer.cli import command_line, hardware_flags

if TYPE_CHECKING:
    import meshtf as mtf

_JSON = flags.DEFINE_string("json", None, "A file to write the forecast to, as JSON.")
_HTML = flags.DEFINE_string(
    "html", None, "A file to write the forecast to, as one HTML page."
)
_DEVICE_MEMORY = flags.DEFINE_string(
    "device_memory",
    None,
    'The memory of one device, such as "40GiB": the forecast says whether a step fits, '
    "and what would save memory.",
)
_TRACE = flags.DEFINE_string(
    "trace",
    None,
    "A file to write the predicted step to, as a trace for Perfetto (ui.perfetto.dev); with "
    "--hardware.",
)
_DEPTH = flags.DEFINE_integer(
    "depth",
    3,
    "How many names of a module path have a row of their own in the sums by module; 0: "
    "no such sums.",
    lower_bound=0,
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them
flags.adopt_module_key_flags(hardware_flags)

_DOES_NOT_FIT_EXIT_CODE = 3


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line as text; "" without an error.

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    if _TRACE.value is not None and hardware_flags.HARDWARE.value is None:
        return "--trace needs --hardware: without it, no times are known."
    return command_line.usage_error(argv)


def flag_error(error: flags.Error) -> str:
    """Returns a message about flags that absl cannot parse; `python -m meshtf` calls it."""
    return command_line.flag_error(error)


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and prints and saves the forecast of a step."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable
    from transformer.training import training_run

    with command_line.exit_on_user_errors():
        for flag in (_JSON, _HTML, _TRACE):
            if flag.value is not None:
                check_writable(flag.value, name=f"--{flag.name}")
        command_line.configure_by_flags(argv)
        runtime = command_line.runtime_of_abstract_mesh()
        forecast = training_run.Run().explain(
            _DEVICE_MEMORY.value, hardware_flags.HARDWARE.value, runtime
        )
    _save(forecast)
    try:
        print(forecast.text(_DEPTH.value), flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe, as `| head` does. Python flushes stdout again at
        # exit, which would fail: it flushes to /dev/null instead.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if forecast.error is not None:
        sys.exit(1)
    # `fits` is None without --device_memory: nothing is known then.
    sys.exit(_DOES_NOT_FIT_EXIT_CODE if forecast.fits is False else 0)


def _save(forecast: mtf.Forecast) -> None:
    """Writes the files of --json, --html and --trace."""
    for path, save in (
        (_JSON.value, forecast.save_json),
        (_HTML.value, forecast.save_html),
        (_TRACE.value, forecast.save_trace),
    ):
        if path is None:
            continue
        try:
            save(path)
        except OSError as error:
            command_line.exit_with_message(f"cannot write {path}: {error.strerror}.")
