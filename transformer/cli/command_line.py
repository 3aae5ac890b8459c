"""What the commands share: the flags that name a configuration, and how they leave
without one.

    def main(argv):
      with command.leaving_plainly():          # errors are told without a traceback
        command.configure_by_flags(argv)       # gin has what --gin_file and --gin_param say
        ...

`transformer.train` and `python -m meshtf explain` so read the same configuration in the
same way.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import gin
from absl import flags, logging

import meshtf as mtf
from transformer import data
from transformer.cli import config_files, gin_settings
from transformer.cli.gin_settings import ConfigError

GIN_FILE = flags.DEFINE_multi_string(
    "gin_file",
    ["lm_stdlib.gin"],
    "Configuration: a path, or the name of a file in configs/; the settings of later "
    "ones win.",
)
GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], "One more setting, such as 'Mesh.axes = \"data:8\"'."
)
GIN_IMPORT = flags.DEFINE_multi_string(
    "gin_import",
    [],
    "A module that configuration files may import, with all in it; those of "
    "transformer and meshtf they may import anyway.",
)
_OURS = ("transformer", "meshtf")

# `python -m meshtf supervise` has a flag of this name as well.
CLUSTER = flags.DEFINE_string(
    "cluster",
    None,
    "Workers whose devices the mesh lies on: host1:port,host2:port.",
    allow_override=True,
)
WAIT = flags.DEFINE_float(
    "cluster_wait",
    60.0,
    "Seconds that are waited for workers to be there.",
    lower_bound=0.0,
)


__all__ = ["ConfigError"]


def configure(
    files: Sequence[str], params: Sequence[str], allowed: Sequence[str] = ()
) -> None:
    """Gives gin the settings of files and of single lines.

    Args:
      files: paths, or names of files in configs/.
      params: single lines.
      allowed: modules that may be imported, besides ours. Importing runs a module, and
        a file from elsewhere should run nothing that its reader did not name.

    Raises:
      ConfigError: gin cannot read a setting, a value is of another type than is wanted,
        nothing refers to a name, or another module is imported; with the place.
    """
    gin.add_config_file_search_path(config_files.config_folder())
    verbosity = logging.get_verbosity()
    logging.set_verbosity(
        logging.FATAL
    )  # gin logs an error where it looks for an include first
    try:
        with _imports_of((*_OURS, *allowed)), gin_settings.recorded() as statements:
            gin.parse_config_files_and_bindings(
                [config_files.find_config(f) for f in files], list(params)
            )
    except (ValueError, TypeError, SyntaxError, ImportError, OSError) as error:
        message = gin_settings.with_near_misses(
            str(error).replace("bindings string", "--gin_param")
        )
        raise ConfigError(message) from None
    finally:
        logging.set_verbosity(verbosity)
    gin_settings.check(statements)


@contextlib.contextmanager
def _imports_of(allowed: Sequence[str]) -> Iterator[None]:
    """Lets gin import these modules, and what is in them, and no others."""
    context = gin.config.ParseContext
    before = context.process_import

    def process_import(self: Any, statement: Any) -> None:
        name = statement.module
        if not any(
            name == module or name.startswith(f"{module}.") for module in allowed
        ):
            raise ImportError(
                f"a configuration may not import {name!r}, since that runs it "
                f"(line {statement.location.line_num} of "
                f"{statement.location.filename or '--gin_param'}).\n  If you trust it: "
                f"--gin_import={name.partition('.')[0]}."
            )
        before(self, statement)

    context.process_import = process_import
    try:
        yield
    finally:
        context.process_import = before


def configure_by_flags(
    argv: Sequence[str],
    *more: str,
    model_dir: str | None = None,
    files: Sequence[str] | None = None,
) -> None:
    """Gives gin the settings of the flags, and then some more.

    Args:
      argv: what is left of the command line.
      *more: settings.
      model_dir: the folder of a run, whose config.gin is taken if the flags name no
        file.
      files: what is taken if the flags name none; None: what --gin_file stands at.

    Raises:
      ConfigError: an argument is no flag, or gin cannot read a setting.
    """
    _refuse_arguments(argv)
    named, own = GIN_FILE.value, Path(model_dir or "", "config.gin")
    if flags.FLAGS[GIN_FILE.name].using_default_value:
        if model_dir is not None and own.exists():
            named = [str(own)]
        elif files is not None:
            named = files
    configure(named, [*GIN_PARAM.value, *more], GIN_IMPORT.value)


def refuse_gin(argv: Sequence[str]) -> None:
    """Refuses settings of gin, in programs that have other flags for all, and what is
    no flag.

    Raises:
      ConfigError: there is one.
    """
    _refuse_arguments(argv)
    for flag in (GIN_FILE, GIN_PARAM, GIN_IMPORT):
        if not flags.FLAGS[flag.name].using_default_value:
            raise ConfigError(
                f"--{flag.name}={flag.value[0]}: nothing that this program does is set "
                "by "
                "gin.\n  --help shows the flags that it has."
            )


def _refuse_arguments(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise ConfigError(
            f"{argv[1]!r} is not a flag: all settings are flags, such as "
            "--gin_file=lm_stdlib.gin."
        )


def default_model_dir() -> str:
    """Returns the folder of a run that is not told where: runs/ and the name of the
    last gin_file.
    """
    return str(Path("runs", Path(GIN_FILE.value[-1]).stem))


def connect_by_flags() -> int:
    """Reaches the workers that --cluster names, and returns how many there are, at
    least one.

    Raises:
      ParseError, ClusterError: the flag names none, or one is not there.
    """
    if not CLUSTER.value:
        return 1
    asked = gin.get_bindings(
        "train", resolve_references=False
    )  # no data are made for this
    deterministic = gin_settings.resolved(asked.get("deterministic", False))
    mtf.connect(CLUSTER.value, WAIT.value, deterministic=deterministic)
    return len(CLUSTER.value.split(","))


@contextlib.contextmanager
def leaving_plainly() -> Iterator[None]:
    """Ends the program with a message, and no traceback, for errors that are the user's
    to mend.
    """
    try:
        yield
    except (mtf.MeshtfError, data.DataError, ConfigError) as error:
        text = re.sub(
            r"\n  In call to configurable .*", "", str(error)
        )  # gin's, of no use here
        leave(f"{type(error).__name__}: {text}{gin_settings.places_named(text)}")
    except OSError as error:
        if error.filename is None:
            raise
        leave(f"{type(error).__name__}: {error.filename}: {error.strerror}.")
    except RuntimeError as error:
        if "Required bindings" not in str(
            error
        ):  # gin's, for a setting that has no default
            raise
        leave(
            f"ConfigError: {str(error).splitlines()[0]}.\n  Bind it in a gin file or "
            "by --gin_param."
        )


def leave(message: str, code: int = 1) -> NoReturn:
    """Ends the program with a message."""
    print(message, file=sys.stderr)
    sys.exit(code)
