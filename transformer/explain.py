"""Forecasts the cost of a training step of any configuration of `transformer.train`.

    python -m meshtf explain                                      # configs/lm_stdlib.gin
    python -m meshtf explain --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin
    python -m meshtf explain --gin_param='Mesh.axes = "data:256;model:8"' --html=plan.html

It takes the gin files and settings of `python -m transformer.train`. It prints the ops,
collectives and their bytes, FLOPs and memory of one mesh position. It needs no devices,
reads no data and runs no step. --json and --html save the forecast. If the program is
refused, its part before the error is shown, with the error. Exit code: 0, or 1 if there
is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from absl import flags

from transformer.cli import command_line
from transformer.data.atomic_files import check_writable
from transformer.training import training_run

_JSON = flags.DEFINE_string("json", None, "A file to write the forecast to, as JSON.")
_HTML = flags.DEFINE_string(
    "html", None, "A file to write the forecast to, as one HTML page."
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and prints and saves the forecast of a step."""
    with command_line.exit_on_user_errors():
        for flag in (_JSON, _HTML):
            if flag.value is not None:
                check_writable(flag.value, f"--{flag.name}")
        command_line.configure_by_flags(argv, 'Mesh.devices = "abstract"')
        forecast = training_run.Run().explain()
    for path, save in (
        (_JSON.value, forecast.save_json),
        (_HTML.value, forecast.save_html),
    ):
        try:
            if path is not None:
                save(path)
        except OSError as error:
            command_line.exit_with_message(f"cannot write {path}: {error.strerror}.")
    try:
        print(forecast, flush=True)
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0 if forecast.error is None else 1)
