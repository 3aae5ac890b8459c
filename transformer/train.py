"""Trains a model, or continues its training.

    python -m transformer.train                                      # configs/lm_stdlib.gin
    python -m transformer.train --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin
    python -m transformer.train --gin_param='Mesh.axes = "data:8"' --model_dir=runs/data_8

The same command again continues from the last checkpoint in --model_dir. Exit code: 0; 75
after SIGTERM, if the run was saved and the same command continues it; 1 if there is an
error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.training.interrupts import (
    SAVED_EXIT_CODE,
    Terminated,
    terminate_like_interrupt,
)

# This module defines no gin configurable: it runs as `__main__` and may also be imported by
# its name, so gin would register the configurable twice.
_MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    None,
    "The folder of checkpoints and metrics; default: runs/ and the name of the last "
    "gin_file.",
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and trains."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    import meshtf as mtf
    from transformer.training import host_layout, training_run

    model_dir = _MODEL_DIR.value or command_line.default_model_dir()
    terminate_like_interrupt()
    try:
        with command_line.exit_on_user_errors():
            command_line.configure_by_flags(argv)
            num_workers = command_line.connect_by_flags()
            # Mesh axes with much communication stay within the devices of one host.
            host_layout.keep_within_hosts(num_workers)
            training_run.train(model_dir)
    except KeyboardInterrupt as stop:
        checkpoint = mtf.checkpoints.latest(model_dir)
        if checkpoint:
            step, _path = checkpoint
            effect = f"continues from step {step}, saved in {model_dir}"
        else:
            effect = f"starts again: {model_dir} has no checkpoint yet"
        command_line.exit_with_message(
            f"\nInterrupted. The same command {effect}.",
            code=SAVED_EXIT_CODE if isinstance(stop, Terminated) else 1,
        )


if __name__ == "__main__":
    run_main(main)
