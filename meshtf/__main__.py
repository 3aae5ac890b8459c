"""The commands of meshtf: python -m meshtf COMMAND [flags].

Usage:

    python -m meshtf                        # lists the commands
    python -m meshtf selfcheck --quick
    python -m meshtf selfcheck --help
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from meshtf.command_line import (
    COMMANDS,
    check_usage,
    command_module,
    end_imports,
    log_warnings_only,
)
from meshtf.runtime.process import configure_process

__all__ = ["COMMANDS", "main"]
# The commands that run TensorFlow ops in this process: it is configured for that first.
COMPUTING = ("selfcheck", "worker")


def main(argv: Sequence[str]) -> None:
    """Runs a command, and exits with its exit code.

    Args:
      argv: the name of the program, the command, and the command's arguments.
    """
    check_usage(argv[1:])
    command, *rest = argv[1:]
    end_imports(command)
    module = command_module(command)
    # For --helpfull absl prints the flags and the docstring of this module. So this module
    # takes over those of the command.
    flags.adopt_module_key_flags(module)
    globals()["__doc__"] = module.__doc__

    def run_command(argv: list[str]) -> Any:
        """Runs the command, and returns its exit code."""
        log_warnings_only()
        if command in COMPUTING:
            configure_process()
        return module.main(argv)

    app.run(run_command, argv=[f"python -m meshtf {command}", *rest])


if __name__ == "__main__":
    main(sys.argv)
