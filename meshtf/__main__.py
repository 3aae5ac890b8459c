"""The programs of meshtf: python -m meshtf COMMAND [flags].

Usage:

    python -m meshtf                        # lists them
    python -m meshtf selfcheck --quick
    python -m meshtf selfcheck --help
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from meshtf.errors import near_misses
from meshtf.runtime.process import configure_process

# Modules by name: a program may stand above the library, and is imported only when it
# is called.
COMMANDS = {
    "checkpoint": (
        "meshtf.checkpoints.inspection.command",
        "what a checkpoint holds, and what differs between two of them",
    ),
    "explain": (
        "transformer.explain",
        "what a training configuration will cost on a mesh, before it runs",
    ),
    "export": (
        "transformer.export",
        "the training step of a configuration, as a StableHLO module",
    ),
    "launch": (
        "meshtf.cluster.launch",
        "a command, with workers on this machine that come and go with it",
    ),
    "selfcheck": (
        "meshtf.testing.selfcheck",
        "whether every op gives the right numbers on the devices of this machine",
    ),
    "supervise": (
        "meshtf.cluster.supervise",
        "a command, watched with its workers, and started again when one is lost",
    ),
    "worker": (
        "meshtf.cluster.worker",
        "the devices of this machine, for a driver elsewhere",
    ),
}
COMPUTING = ("selfcheck", "worker")  # for which the process is configured


def main(argv: Sequence[str]) -> None:
    """Runs the command that `argv` names after the program's own name; leaves with its
    exit code.
    """
    command, rest = (argv[1], argv[2:]) if len(argv) > 1 else ("help", [])
    if command in ("help", "-h", "--help"):
        print(_listed())
        sys.exit(0)
    if command not in COMMANDS:
        close = near_misses(command, COMMANDS)
        print(
            f"There is no command {command!r}."
            + (f" Did you mean {close}?" if close else "")
            + f"\n\n{_listed()}",
            file=sys.stderr,
        )
        sys.exit(2)
    module = importlib.import_module(COMMANDS[command][0])
    flags.adopt_module_key_flags(module)  # so that --help shows them
    globals()["__doc__"] = module.__doc__  # and says what the command does

    def configured(argv: list[str]) -> Any:
        if command in COMPUTING:
            configure_process()
        return module.main(argv)

    app.run(configured, argv=[f"python -m meshtf {command}", *rest])


def _listed() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "python -m meshtf COMMAND [flags]",
            "",
            *lines,
            "",
            "python -m meshtf COMMAND --help tells the flags of a command.",
        ]
    )


if __name__ == "__main__":
    main(sys.argv)
