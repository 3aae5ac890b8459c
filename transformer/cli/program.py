"""Starts a command: parses its flags, and configures the process for speed.

    if __name__ == "__main__":
        run_main(main)

TensorFlow reads its log level when it is imported, so each command sets
TF_CPP_MIN_LOG_LEVEL in its first lines.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags, logging

from transformer.cli import command_line
from transformer.cli.native_notes import without_native_notes


def run_main(main: Callable[[list[str]], Any]) -> None:
    """Runs a command: parses its flags, configures the process, calls `main`, and exits with
    the code that `main` returns.

    The log has warnings only; --verbosity=0 also logs the configuration of the process.

    Args:
      main: a function of the arguments that are no flags. Since a command has no such
        arguments, it gets a list with the name of the program only.
    """

    def configure_and_run(argv: list[str]) -> Any:
        """Does what follows the parsing of flags; `app.run` calls it."""
        _exit_on_usage_error(argv)
        import_meshtf()
        import meshtf as mtf

        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # `app.run` has set it to INFO
        mtf.configure_process()
        return main(argv)

    app.run(configure_and_run, flags_parser=_parse_flags)


def import_meshtf() -> None:
    """Imports meshtf, and with it TensorFlow, without its notes on stderr."""
    with without_native_notes(), _jax_hidden():
        importlib.import_module("meshtf")


@contextlib.contextmanager
def _jax_hidden() -> Iterator[None]:
    """Within the context, imports do not find JAX, unless it is imported already.

    TensorFlow, which meshtf imports, imports JAX if it is installed. It works without JAX,
    and its import then takes a fifth less time.
    """
    if "jax" in sys.modules:
        yield
        return
    # To import a module that is None in `sys.modules` raises ImportError.
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["jax"]


def answer_usage() -> None:
    """Prints help and exits if the command line has --help; prints an error and exits if it
    has wrong flags or arguments.

    A program whose module imports TensorFlow calls it after it has defined its flags, and
    before that import. If it returns, it has imported meshtf, and `run_main` parses the
    flags again.
    """
    app.define_help_flags()
    _exit_on_usage_error(_parse_flags(sys.argv))
    # Back to the defaults, as if the flags had not been parsed.
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()
    import_meshtf()


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags, and returns the arguments that are no flags; exits with a message if
    a flag is unknown or has a wrong value.
    """
    try:
        remaining: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        message = str(error)
        # If the program has --gin_param, the message about an unknown flag suggests similar
        # settings of gin. Key flags are those of the program, which --help shows.
        key_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
        if command_line.GIN_PARAM.name in {flag.name for flag in key_flags}:
            message = command_line.flag_error(error)
        command_line.exit_with_message(f"{message}\n  --help lists the flags.")
    return remaining


def _exit_on_usage_error(argv: Sequence[str]) -> None:
    """Exits with a message if an argument is not a flag, or a gin file does not exist."""
    message = command_line.usage_error(argv)
    if message:
        command_line.exit_with_message(message)
