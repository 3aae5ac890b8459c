"""How our programs start: with a process that is theirs alone, and so configured for
speed.

    if __name__ == "__main__":
        run_main(main)

What TensorFlow writes while it is imported cannot be taken out any more by then; each
program sets TF_CPP_MIN_LOG_LEVEL in its first lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import app

from transformer.cli import command_line


def run_main(main: Callable[[list[str]], Any]) -> None:
    """Reads the flags, configures the process, calls `main` with what is left of the
    command line, and ends the program; --verbosity=0 shows what was configured.

    Help and errors of usage come before TensorFlow is imported.
    """

    def configured(argv: list[str]) -> Any:
        message = command_line.usage_error(argv)
        if message:
            command_line.exit_with_message(message)
        import meshtf as mtf

        mtf.configure_process()
        return main(argv)

    app.run(configured)
