"""meshtf's training steps on an accelerator, beside plain JAX.

    python -m benchmarks.accelerator export build/accelerator         # here, with TensorFlow
    python build/accelerator/run.py --seconds=500                     # there, with jax only

    python -m benchmarks.accelerator export FOLDER --models=gpt2,llama_1b --platform=cuda
    python -m benchmarks.accelerator export FOLDER --size=tiny --platform=cpu    # to try it
    python -m benchmarks.accelerator run FOLDER --models=gpt2          # as FOLDER/run.py

Accelerators are lent for minutes, to machines without TensorFlow, and few files fit there. So the
first command writes modules and forecasts into a folder that is all the other machine needs.
docs/explain/performance/accelerators.md says what is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from absl import logging

from benchmarks.accelerator.cases import selected, tiny
from transformer.cli.program import import_meshtf

_MIB = 2**20


def main() -> int:
    """Exports or runs; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="writes a folder; with TensorFlow")
    export.add_argument("folder")
    export.add_argument("--models", default="", help="cases, by name; default: all")
    export.add_argument(
        "--platform", default="cuda", choices=["cuda", "cpu", "tpu", ""]
    )
    export.add_argument("--size", default="full", choices=["full", "tiny"])
    run = commands.add_parser("run", help="runs a folder; with jax")
    run.add_argument("folder")
    options, runner_flags = parser.parse_known_args()
    if options.command == "run":
        program = Path(options.folder, "run.py")
        return subprocess.call([sys.executable, str(program), *runner_flags])
    if runner_flags:
        parser.error(f"unknown flags: {' '.join(runner_flags)}")
    try:
        cases = selected(options.models.split(",") if options.models else [])
    except ValueError as error:
        parser.error(str(error))
    if options.size == "tiny":
        cases = [tiny(case) for case in cases]
    import_meshtf()
    logging.use_absl_handler()  # as `app.run` does: gin logs each folder that lacks a file
    from benchmarks.accelerator.export import export_all

    size = export_all(cases, options.folder, options.platform)
    print(f"{options.folder}: {size / _MIB:.2f} MiB in total")
    return 0


if __name__ == "__main__":
    sys.exit(main())
