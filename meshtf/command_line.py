"""The command line of `python -m meshtf`: its commands, their help, and usage errors.

    answer_usage()

Python imports the package meshtf before it runs `meshtf/__main__.py`, and TensorFlow takes
seconds to import. So the package calls `answer_usage` in its first lines. If the command line
has no command, --help, an unknown command, a wrong flag, or a file that does not exist, the
function prints help or a usage error, and exits without importing TensorFlow.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from absl import app, flags, logging

from meshtf.deferred_tensorflow import defer
from meshtf.errors import near_misses

USAGE_ERROR = 2  # the exit code
# Command -> (module, description). Modules are imported only when a command is called: some
# belong to packages that import meshtf.
COMMANDS = {
    "calibrate": (
        "transformer.calibrate",
        "measures this machine, for the predicted time of a step",
    ),
    "checkpoint": (
        "meshtf.commands.checkpoint",
        "contents of a checkpoint, or the differences between two",
    ),
    "compile": (
        "transformer.compile",
        "what XLA makes of a training step, for devices that need not be there",
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
    "search": (
        "transformer.search",
        "the fastest mesh and layout of a training configuration, predicted",
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
# TensorFlow imports these packages if they are installed: Keras, which may import
# scikit-learn, with h5py and SciPy, which only Keras's code uses, and JAX. They take about
# half of the time of TensorFlow's import.
_OPTIONAL_PACKAGES = ("keras", "h5py", "scipy", "jax")
# These commands run nothing, but for layouts that `search` measures. So they need no TensorFlow,
# and no Keras if they measure; no command needs JAX while TensorFlow is imported. And what
# they compute is needed until they end: the garbage collector would traverse the ops of a
# model again and again, and find nothing.
_PLANNING = ("explain", "search")
_HELP = ("--help", "-help", "-h", "help", "-?")


def answer_usage() -> None:
    """Does nothing unless this process is `python -m meshtf ...`. There, prints help or a
    usage error and exits, if no command is to run; otherwise prepares the process for the
    import of TensorFlow. Called by `meshtf/__init__.py`.
    """
    # While Python imports the package of `-m`, sys.argv[0] is "-m". sys.orig_argv also has
    # the options of Python, and at the place of this "-m", counted from the end, the package.
    if sys.argv[0] == "-m" and sys.orig_argv[-len(sys.argv)] == "meshtf":
        check_usage(sys.argv[1:])
        command, *rest = sys.argv[1:]
        _shorten_imports(command)
        if command in _PLANNING and not any("measure" in argument for argument in rest):
            defer()


def _shorten_imports(command: str) -> None:
    """Makes the import of TensorFlow faster for a command; `end_imports` undoes it."""
    # The imports create a million objects and no garbage. Python's garbage collector would
    # traverse them again and again.
    gc.disable()
    for package in _OPTIONAL_PACKAGES:
        if package == "jax" or command in _PLANNING:
            # Python raises ImportError for a module that is None.
            sys.modules[package] = None  # type: ignore[assignment]


def end_imports(command: str) -> None:
    """Undoes `_shorten_imports` once TensorFlow is imported: Keras and JAX can be imported,
    and the garbage collector runs, though it ignores the objects that exist already.
    """
    for package in _OPTIONAL_PACKAGES:
        if package in sys.modules and sys.modules[package] is None:
            del sys.modules[package]
    if not gc.isenabled():
        gc.freeze()
        if command in _PLANNING:
            atexit.register(gc.freeze)  # Python collects garbage when it exits, too
        else:
            gc.enable()


def check_usage(arguments: Sequence[str]) -> None:
    """Prints help or a usage error and exits, unless the command can run.

    Args:
      arguments: the command and its flags.
    """
    command, *rest = arguments or ["help"]
    if command in _HELP:
        _print_and_exit(list_of_commands())
    if command not in COMMANDS:
        similar = near_misses(command, COMMANDS)
        suggestion = f" Did you mean {similar}?" if similar else ""
        _exit(f"There is no command {command!r}.{suggestion}\n\n{list_of_commands()}")
    module = command_module(command)
    # The arguments after "--" are another program's command line.
    end = rest.index("--") if "--" in rest else len(rest)
    if any(argument in _HELP for argument in rest[:end]):
        _print_and_exit(f"{module.__doc__}\n{flags.FLAGS.module_help(module)}")
    message = _usage_error(module, [f"python -m meshtf {command}", *rest])
    if message:
        _exit(f"{message}\n  python -m meshtf {command} --help lists its flags.")


def command_module(command: str) -> ModuleType:
    """Imports and returns the module of a command."""
    module, _description = COMMANDS[command]
    return importlib.import_module(module)


def list_of_commands() -> str:
    """Returns help that lists all commands, a line for each."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  {command:<{width}}  {description}"
        for command, (_module, description) in COMMANDS.items()
    ]
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
    """Returns a message about wrong arguments of a command; "" if they are right.

    Parsing sets the flags; afterwards they have their default values again. A command module
    may define two functions: `usage_error` takes the arguments that are no flags, and returns
    a message about them or ""; `flag_error` takes an error of absl, and returns a message.

    Args:
      module: the module of the command.
      argv: the name of the program, and the arguments.
    """
    app.define_help_flags()
    try:
        remaining = flags.FLAGS(argv)
        check = getattr(module, "usage_error", None)
        return "" if check is None else check(remaining)
    except flags.Error as error:
        flag_error = getattr(module, "flag_error", str)
        return str(flag_error(error))
    finally:
        for name in flags.FLAGS:
            flags.FLAGS[name].unparse()
        flags.FLAGS.unparse_flags()


def _print_and_exit(text: str) -> None:
    """Prints a text and exits with code 0."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe, such as `| head`. Without this, Python reports
        # the error again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _exit(message: str) -> None:
    """Prints a usage error and exits."""
    print(message, file=sys.stderr)
    sys.exit(USAGE_ERROR)


def log_warnings_only() -> None:
    """Makes absl log no information, unless --verbosity asks for it: a program that
    `app.run` starts logs it otherwise.
    """
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
