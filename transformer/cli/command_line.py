"""The flags that all commands share, such as --gin_file, and exits with a message.

    def main(argv):
      with command_line.exit_on_user_errors():   # user errors exit without a traceback
        command_line.configure_by_flags(argv)    # gin reads --gin_file and --gin_param
        ...

So `transformer.train` and `python -m meshtf explain` read a configuration in the same way.
This module and the modules of the commands import TensorFlow only in functions: so --help
and errors of usage take a fraction of a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import gin
from absl import flags, logging

from transformer.cli import config_files, gin_settings
from transformer.cli.gin_settings import ConfigError
from transformer.cli.gin_statements import read_statements
from transformer.cli.setting_hints import settings_like

GIN_FILE = flags.DEFINE_multi_string(
    "gin_file",
    ["lm_stdlib.gin"],
    "A configuration: a path, or the name of a file in configs/; later files override "
    "earlier ones.",
)
GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], "A further setting, such as 'Mesh.axes = \"data:8\"'."
)
GIN_IMPORT = flags.DEFINE_multi_string(
    "gin_import",
    [],
    "A module that configuration files may import, with its submodules; transformer and "
    "meshtf are always allowed.",
)
_ALWAYS_ALLOWED = ("transformer", "meshtf")

# `allow_override`: `python -m meshtf supervise` has a flag of this name as well.
CLUSTER = flags.DEFINE_string(
    "cluster",
    None,
    "Workers that provide the devices of the mesh: host1:port,host2:port; or `auto`: the "
    'processes of SLURM, Open MPI, Kubernetes or TF_CONFIG, for Mesh.devices = "spmd".',
    allow_override=True,
)
WAIT = flags.DEFINE_float(
    "cluster_wait",
    60.0,
    "The maximum time to wait for workers, in seconds.",
    lower_bound=0.0,
)
__all__ = ["ConfigError"]  # other modules import it from here


def configure(
    files: Sequence[str], params: Sequence[str], allowed: Sequence[str] = ()
) -> None:
    """Binds the settings of files and of single lines in gin.

    Args:
      files: paths of gin files, or names of files in configs/.
      params: single settings, such as 'Mesh.axes = "data:8"'.
      allowed: further modules that files may import. An import runs a module, so a file
        must not import modules that its user did not allow.

    Raises:
      ConfigError: gin cannot read a setting, a value has the wrong type, nothing refers
        to a name, or a file imports a module that is not allowed. The message names file
        and line.
    """
    import transformer.data  # noqa: F401  registers its classes with gin

    gin.add_config_file_search_path(config_files.config_folder())
    verbosity = logging.get_verbosity()
    # While gin looks for included files, it logs errors for folders that lack them.
    logging.set_verbosity(logging.FATAL)
    try:
        paths = [config_files.find_config(name) for name in files]
        statements = read_statements(paths, params, (*_ALWAYS_ALLOWED, *allowed))
        gin.parse_config_files_and_bindings(paths, list(params))
    except SyntaxError as error:
        raise ConfigError(_syntax_message(error, params)) from None
    except (ValueError, TypeError, ImportError, OSError) as error:
        # Gin calls single settings "bindings string"; users know the flag.
        message = str(error).replace("bindings string", "--gin_param")
        raise ConfigError(gin_settings.add_suggestions(message)) from None
    finally:
        logging.set_verbosity(verbosity)
    gin_settings.check_statements(statements)


def _syntax_message(error: SyntaxError, params: Sequence[str]) -> str:
    """Returns the message of an error of gin's parser, with the text that it cannot parse.

    Args:
      error: the error of a gin file, of a single setting, or of a module in Python that a
        gin file imports.
      params: the single settings.
    """
    filename = error.filename or ""
    if filename.endswith(".py"):
        return f"{error.msg} ({filename}, line {error.lineno})"
    line_number = error.lineno or 1
    location = f'file "{filename}",'
    text = error.text or ""
    if not filename:
        location = "--gin_param"
        lines = "\n".join(params).split("\n")
        # At the end of the last setting, the line may be one after it.
        text = lines[min(line_number, len(lines)) - 1]
    return (
        f"{error.msg}\n  In {location} line {line_number}\n    {text.strip()}\n"
        "  A setting is written as NAME = VALUE, and text has quotes: "
        "Mesh.axes = 'data:8'."
    )


def configure_by_flags(
    argv: Sequence[str],
    *extra_params: str,
    model_dir: str | None = None,
    files: Sequence[str] | None = None,
) -> None:
    """Binds the settings of the flags in gin.

    Args:
      argv: the command line after the flags were parsed.
      *extra_params: further settings, bound last.
      model_dir: the folder of a run, whose config.gin is read if no --gin_file is given;
        None: there is no run.
      files: the gin files that are read if neither --gin_file nor a run is given; None:
        the default of --gin_file.

    Raises:
      ConfigError: an argument is not a flag, or gin cannot read a setting.
    """
    _check_no_arguments(argv)
    gin_files = GIN_FILE.value
    run_config = Path(model_dir or "", "config.gin")
    if flags.FLAGS[GIN_FILE.name].using_default_value:
        if model_dir is not None and run_config.exists():
            gin_files = [str(run_config)]
        elif files is not None:
            gin_files = files
    configure(
        gin_files,
        params=[*GIN_PARAM.value, *extra_params],
        allowed=GIN_IMPORT.value,
    )


def runtime_of_abstract_mesh() -> str | None:
    """Replaces the devices of the configured mesh by "abstract", which has shapes and a layout,
    but no devices. Returns "spmd" or "placed", the runtime that the devices need; None: the
    configuration does not say them.
    """
    bound = gin.get_bindings("Mesh", resolve_references=False).get("devices")
    devices = gin_settings.resolve_macros(bound)
    with gin.unlock_config():
        gin.bind_parameter("Mesh.devices", "abstract")
    if devices is None or devices == "abstract":
        return None
    return "spmd" if str(devices).split(":")[0] == "spmd" else "placed"


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line that can be found without TensorFlow, as text: an
    argument that is not a flag, or a gin file that does not exist; "" without an error.
    """
    try:
        _check_no_arguments(argv)
        for name in GIN_FILE.value:
            config_files.find_config(name)
    except (ConfigError, FileNotFoundError) as error:
        return f"ConfigError: {error}"
    return ""


def flag_error(error: flags.Error) -> str:
    """Returns absl's message about wrong flags; for an unknown flag that resembles no
    known one, with the gin setting that the user may have meant.
    """
    message = str(error)
    if not isinstance(error, flags.UnrecognizedFlagError) or "Did you mean" in message:
        return message
    # absl's `flagvalue` is the entire argument, such as "--steps=10".
    _, equals_sign, value = str(error.flagvalue).partition("=")
    settings = settings_like(error.flagname, value if equals_sign else None)
    lines = [f'  --gin_param="{setting}"' for setting in settings]
    if lines:
        lines.insert(0, "  This is a setting of gin, not a flag. Did you mean:")
    return "\n".join([message, *lines])


def refuse_gin(argv: Sequence[str]) -> None:
    """Raises ConfigError if the command line has flags of gin or positional arguments.

    It is for programs that do not use gin.
    """
    _check_no_arguments(argv)
    for flag in (GIN_FILE, GIN_PARAM, GIN_IMPORT):
        if not flags.FLAGS[flag.name].using_default_value:
            raise ConfigError(
                f"--{flag.name}={flag.value[0]}: this program has no gin settings.\n"
                "  --help shows its flags."
            )


def _check_no_arguments(argv: Sequence[str]) -> None:
    """Raises ConfigError if the command line has arguments that are not flags."""
    if len(argv) > 1:
        raise ConfigError(
            f"{argv[1]!r} is not a flag: all settings are flags, such as "
            "--gin_file=lm_stdlib.gin."
        )


def default_model_dir() -> str:
    """Returns the default folder of a run: runs/ and the name of the last --gin_file."""
    return str(Path("runs", Path(GIN_FILE.value[-1]).stem))


def connect_by_flags() -> int:
    """Connects to the workers of --cluster; returns their count, 1 without a cluster.

    If several processes run this program on one mesh, it first waits for all of them. Only
    the first process prints to standard output.

    Raises:
      ParseError, ClusterError: the flag is malformed, or a worker or process does not
        answer.
    """
    import meshtf as mtf

    detect = CLUSTER.value == "auto"
    processes = mtf.cluster.join_processes(detect=detect)
    if not processes.is_first:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    if detect or not CLUSTER.value:
        return 1
    # Without `resolve_references=False`, gin would create the data set and the model, to
    # which the bindings of `train` refer.
    bindings = gin.get_bindings("train", resolve_references=False)
    deterministic = gin_settings.resolve_macros(bindings.get("deterministic", False))
    mtf.connect(CLUSTER.value, wait=WAIT.value, deterministic=deterministic)
    return len(CLUSTER.value.split(","))


def read_text(path: str | None) -> str:
    """Returns the text of a file.

    Args:
      path: the path of the file; None: standard input.

    Raises:
      ConfigError: the file cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8") if path else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        name = path or "standard input"
        raise ConfigError(f"cannot read {name}: {error}.") from None


@contextlib.contextmanager
def output_file(path: str | None) -> Iterator[TextIO]:
    """A context with a file to write, which exists only if the `with` block succeeds.

    Args:
      path: the path of the file; None: standard output.

    Raises:
      ConfigError: the file cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    from transformer.data.atomic_files import atomic_file

    try:
        with (
            atomic_file(path) as temporary_path,
            open(temporary_path, "w", encoding="utf-8") as file,
        ):
            yield file
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from None


@contextlib.contextmanager
def exit_on_user_errors() -> Iterator[None]:
    """A context in which an error that the user can fix ends the program with a message,
    without a traceback.
    """
    try:
        yield
    except Exception as error:
        message = _user_message(error)
        if not message:
            raise
        exit_with_message(message)


def _user_message(error: Exception) -> str:
    """Returns the message for an error that the user can fix; "" for other errors."""
    import meshtf as mtf
    from transformer import data

    text = str(error)
    if isinstance(error, (mtf.MeshtfError, data.DataError, ConfigError)):
        # Gin appends the chain of configurables, which does not help the user.
        text = re.sub(r"\n  In call to configurable .*", "", text)
        locations = gin_settings.locations_in_message(text)
        return f"{type(error).__name__}: {text}{locations}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{type(error).__name__}: {error.filename}: {error.strerror}."
    # Gin raises this for an argument that is gin.REQUIRED and has no binding.
    if isinstance(error, RuntimeError) and "Required bindings" in text:
        return (
            f"ConfigError: {text.splitlines()[0]}.\n  Bind it in a gin file or by "
            "--gin_param."
        )
    return ""


def exit_with_message(message: str, code: int = 1) -> NoReturn:
    """Prints a message to standard error and exits."""
    print(message, file=sys.stderr)
    sys.exit(code)
