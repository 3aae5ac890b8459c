"""The command line of `python -m meshtf`: its commands, their help, and errors of usage.

Python imports the package meshtf before it runs `meshtf/__main__.py`, and TensorFlow takes
seconds to import. So the first lines of the package call

    answer_usage()

which prints help or an error of usage and exits, if the command line needs nothing else:
no command, --help, an unknown command, a wrong flag, a file that does not exist.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from absl import app, flags

from meshtf.errors import near_misses

USAGE_ERROR = 2  # the exit code
# Modules by name: a command may be above the library, and is imported only when it is
# called.
COMMANDS = {
    "checkpoint": (
        "meshtf.commands.checkpoint",
        "contents of a checkpoint, or the differences between two",
    ),
    "explain": (
        "transformer.explain",
        "costs of a training configuration on a mesh, before it runs",
    ),
    "export": (
        "transformer.export",
        "the training step of a configuration, as a StableHLO module",
    ),
    "launch": (
        "meshtf.commands.launch",
        "a command with workers on this machine, which end with it",
    ),
    "selfcheck": (
        "meshtf.commands.selfcheck",
        "checks that every op computes correct values on the devices of this machine",
    ),
    "supervise": (
        "meshtf.commands.supervise",
        "a command with its workers, monitored, and restarted after a fault",
    ),
    "worker": (
        "meshtf.commands.worker",
        "offers the devices of this machine to a driver on another one",
    ),
}
# TensorFlow imports these packages if they are installed. Keras, which may import
# scikit-learn, and JAX take almost half of the time of TensorFlow's import.
_OPTIONAL_PACKAGES = ("keras", "jax")
# These commands need none of the optional packages.
_WITHOUT_OPTIONAL_PACKAGES = ("explain",)
_HELP = ("--help", "-help", "-h", "help", "-?")


def answer_usage() -> None:
    """Prints help or an error of usage and exits, if this process is a
    `python -m meshtf ...` that needs nothing else; otherwise prepares the process for the
    import of TensorFlow. Called by `meshtf/__init__.py`.
    """
    # While Python looks for the module of -m, sys.argv[0] is "-m", and the name of the
    # module comes before the remaining arguments.
    if sys.argv[0] == "-m" and sys.orig_argv[-len(sys.argv)] == "meshtf":
        check_usage(sys.argv[1:])
        _shorten_imports(sys.argv[1])


def _shorten_imports(command: str) -> None:
    """Makes the import of TensorFlow faster for a command; `end_imports` undoes it."""
    # The imports make a million objects and no garbage, and the collector would visit
    # them again and again.
    gc.disable()
    if command in _WITHOUT_OPTIONAL_PACKAGES:
        for package in _OPTIONAL_PACKAGES:
            # Python raises ImportError for a module that is None.
            sys.modules[package] = None  # type: ignore[assignment]


def end_imports() -> None:
    """Restores the process once TensorFlow is imported: Keras and JAX can be imported, and
    the garbage collector runs, but passes over the objects of the imports.
    """
    for package in _OPTIONAL_PACKAGES:
        if package in sys.modules and sys.modules[package] is None:
            del sys.modules[package]
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def check_usage(arguments: Sequence[str]) -> None:
    """Exits with help or an error of usage, unless the command can run.

    Args:
      arguments: the command and its flags.
    """
    command, *rest = arguments or ["help"]
    if command in _HELP:
        _print_and_exit(list_of_commands())
    if command not in COMMANDS:
        close = near_misses(command, COMMANDS)
        suggestion = f" Did you mean {close}?" if close else ""
        _exit(f"There is no command {command!r}.{suggestion}\n\n{list_of_commands()}")
    module = command_module(command)
    own_arguments = rest[: rest.index("--")] if "--" in rest else rest
    if any(argument in _HELP for argument in own_arguments):
        _print_and_exit(f"{module.__doc__}\n{flags.FLAGS.module_help(module)}")
    message = _usage_error(module, [f"python -m meshtf {command}", *rest])
    if message:
        _exit(f"{message}\n  python -m meshtf {command} --help lists its flags.")


def command_module(command: str) -> ModuleType:
    """Returns the module of a command."""
    return importlib.import_module(COMMANDS[command][0])


def list_of_commands() -> str:
    """Returns a line for each command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "python -m meshtf COMMAND [flags]",
            "",
            *lines,
            "",
            "python -m meshtf COMMAND --help lists the flags of a command.",
        ]
    )


def _usage_error(module: ModuleType, argv: Sequence[str]) -> str:
    """Returns what is wrong with the flags of a command, or ""; the flags keep their
    defaults.

    A command module may have a function `usage_error`, which gets the arguments that are
    no flags, and returns the same; and a function `flag_error`, which returns the message
    about an error of absl.
    """
    app.define_help_flags()
    try:
        remaining = flags.FLAGS(argv)
        check = getattr(module, "usage_error", None)
        return "" if check is None else check(remaining)
    except flags.Error as error:
        return str(getattr(module, "flag_error", str)(error))
    finally:
        for name in flags.FLAGS:
            flags.FLAGS[name].unparse()
        flags.FLAGS.unparse_flags()


def _print_and_exit(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _exit(message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(USAGE_ERROR)
