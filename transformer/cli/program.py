"""Starts a command: parses its flags, and configures the process for speed.

    if __name__ == "__main__":
        run_main(main)

TensorFlow reads its log level when it is imported, so each command sets
TF_CPP_MIN_LOG_LEVEL in its first lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from transformer.cli import command_line


def run_main(main: Callable[[list[str]], Any]) -> None:
    """Parses the flags, configures the process, calls `main` with the remaining command
    line, and exits. --verbosity=0 logs the configuration of the process.
    """

    def configure_and_run(argv: list[str]) -> Any:
        _exit_on_usage_error(argv)
        # TensorFlow imports JAX if it is there, a fifth of its time, and goes on without
        # it: Python raises ImportError for a module that is None.
        without_jax = sys.modules.setdefault("jax", None) is None  # type: ignore[arg-type]
        import meshtf as mtf

        if without_jax:
            del sys.modules["jax"]
        from meshtf.command_line import log_warnings_only

        log_warnings_only()
        mtf.configure_process()
        return main(argv)

    app.run(configure_and_run, flags_parser=_parse_flags)


def answer_usage() -> None:
    """Prints help or an error of usage and exits, if the command line needs nothing else.

    For a program whose module imports TensorFlow: it calls this once its flags are
    defined, before that import. The flags keep their defaults.
    """
    app.define_help_flags()
    _exit_on_usage_error(_parse_flags(sys.argv))
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags, and returns the arguments that are no flags; exits with a message if
    a flag is unknown or has a wrong value.
    """
    try:
        remaining: list[str] = flags.FLAGS(argv)
    except flags.Error as error:
        message = str(error)
        key_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
        if command_line.GIN_PARAM.name in {flag.name for flag in key_flags}:
            message = command_line.flag_error(error)
        command_line.exit_with_message(f"{message}\n  --help lists the flags.")
    return remaining


def _exit_on_usage_error(argv: Sequence[str]) -> None:
    message = command_line.usage_error(argv)
    if message:
        command_line.exit_with_message(message)
