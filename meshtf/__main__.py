"""The programs of meshtf: python -m meshtf COMMAND [flags].

Usage:

    python -m meshtf                        # lists them
    python -m meshtf selfcheck --quick
    python -m meshtf selfcheck --help
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from meshtf.command_line import COMMANDS, check_usage, command_module, end_imports
from meshtf.runtime.process import configure_process

__all__ = ["COMMANDS", "main"]
COMPUTING = ("selfcheck", "worker")  # for which the process is configured


def main(argv: Sequence[str]) -> None:
    """Runs the command that `argv` names after the program's name; exits with its exit
    code.
    """
    end_imports()
    check_usage(argv[1:])
    command, *rest = argv[1:]
    module = command_module(command)
    flags.adopt_module_key_flags(module)  # so that --helpfull shows them
    globals()["__doc__"] = module.__doc__  # and says what the command does

    def configured(argv: list[str]) -> Any:
        if command in COMPUTING:
            configure_process()
        return module.main(argv)

    app.run(configured, argv=[f"python -m meshtf {command}", *rest])


if __name__ == "__main__":
    main(sys.argv)
