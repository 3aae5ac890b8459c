"""Starts a command: parses its flags, and configures the process for speed.

    if __name__ == "__main__":
        run_main(main)

TensorFlow reads its log level when it is imported, so each command sets
TF_CPP_MIN_LOG_LEVEL in its first lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import app

from transformer.cli import command_line


def run_main(main: Callable[[list[str]], Any]) -> None:
    """Parses the flags, configures the process, calls `main` with the remaining command
    line, and exits. --verbosity=0 logs the configuration of the process.
    """

    def configure_and_run(argv: list[str]) -> Any:
        message = command_line.usage_error(argv)
        if message:
            command_line.exit_with_message(message)
        # TensorFlow is imported here, after help and errors of usage: it takes seconds.
        import meshtf as mtf

        mtf.configure_process()
        return main(argv)

    app.run(configure_and_run)
