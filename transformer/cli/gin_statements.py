"""Reads the statements of gin files before gin runs any of them.

    statements = read_statements(["lm_stdlib.gin"], ["steps = 4"], allowed=("transformer",))
    statements.bindings[-1].location.line_num     # 1
    "steps" in statements.used_macros             # True: lm_stdlib.gin refers to %steps

Gin runs a file's imports while it reads the file, and stores no lines of settings. So its parser
reads the files twice: here, where nothing runs and nothing is bound, and then for gin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gin import config_parser

from transformer.cli.config_files import find_config
from transformer.cli.gin_settings import ConfigError, Statements, location_text


class _References(config_parser.ParserDelegate):
    """Notes the macros and scopes that values refer to; gin's parser calls it."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def configurable_reference(self, name: str, evaluate: bool) -> None:
        """Notes the scopes of a reference, such as those of `@encoder/Architecture`."""
        *scopes, _configurable = name.split("/")
        self._statements.used_scopes.update(_nested_scopes(scopes))

    def macro(self, name: str) -> None:
        """Notes a macro."""
        self._statements.used_macros.add(name)


def read_statements(
    files: Sequence[str], params: Sequence[str], allowed: Sequence[str]
) -> Statements:
    """Returns the bindings of files and of single settings, and what they refer to.

    Args:
      files: paths of gin files.
      params: single settings.
      allowed: the modules that files may import, with their submodules.

    Raises:
      ConfigError: a file imports another module, or includes a file that does not exist.
      SyntaxError: gin's parser cannot read a statement.
    """
    statements = Statements([], set(), set())
    for path in files:
        _read_file(path, allowed, statements)
    _read("\n".join(params), allowed, statements)
    return statements


def _read_file(path: str, allowed: Sequence[str], statements: Statements) -> None:
    """Adds the statements of a file to `statements`."""
    with open(path, encoding="utf-8") as file:
        _read(file, allowed, statements)


def _read(source: Any, allowed: Sequence[str], statements: Statements) -> None:
    """Adds the statements of a file, or of a text, to `statements`."""
    parser = config_parser.ConfigParser(source, _References(statements))
    for statement in parser:
        if isinstance(statement, config_parser.BindingStatement):
            statements.bindings.append(statement)
        elif isinstance(statement, config_parser.ImportStatement):
            _check_import(statement, allowed)
        elif isinstance(statement, config_parser.IncludeStatement):
            _read_file(_included_file(statement), allowed, statements)


def _included_file(statement: config_parser.IncludeStatement) -> str:
    """Returns the path of the file that a statement includes.

    Raises:
      ConfigError: there is none.
    """
    try:
        return find_config(statement.filename)
    except FileNotFoundError as error:
        raise ConfigError(f"{error}{location_text(statement.location)}") from None


def _check_import(
    statement: config_parser.ImportStatement, allowed: Sequence[str]
) -> None:
    """Raises ConfigError if a file must not import a module."""
    name = statement.module
    if not any(name == module or name.startswith(f"{module}.") for module in allowed):
        raise ConfigError(
            f"a configuration may not import {name!r}, since that runs it "
            f"(line {statement.location.line_num} of "
            f"{statement.location.filename or '--gin_param'}).\n  If you trust it: "
            f"--gin_import={name.partition('.')[0]}.{location_text(statement.location)}"
        )


def _nested_scopes(scopes: Sequence[str]) -> Iterator[str]:
    """Yields the scopes whose bindings apply to a reference: for a/b, these are a, a/b
    and b.
    """
    for start in range(len(scopes)):
        for stop in range(start + 1, len(scopes) + 1):
            yield "/".join(scopes[start:stop])
