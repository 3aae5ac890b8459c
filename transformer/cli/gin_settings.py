"""Checks of gin settings: file and line of each one, types, and unused names.

    with recorded() as statements:
      gin.parse_config_files_and_bindings(files, params)
    check(statements)              # ConfigError: names the setting, its file and its line

gin accepts settings that are wrong: values of another type, and macros or scopes that
nothing refers to, such as `step = 4` for `steps = 4`. These checks find them before any
object is created.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gin import config as gin_config
from gin import config_parser
from gin.config import ConfigurableReference

from transformer.cli import value_types

Key = tuple[str, str, str]  # scope, full name of the configurable, parameter
_MACRO = "gin.macro"
_MISSPELT = 0.75  # names of at least this similarity count as misspelt
_RUN_CONFIG = "config.gin"  # written by runs: all bindings, used or not
_locations: dict[Key, config_parser.Location] = {}


class ConfigError(ValueError):
    """A configuration that gin cannot read, or that lacks a required setting."""


@contextlib.contextmanager
def recorded() -> Iterator[list[config_parser.BindingStatement]]:
    """Gives a list of the bindings that gin parses in the `with` block; records their
    locations.
    """
    statements: list[config_parser.BindingStatement] = []
    original = config_parser.ConfigParser.parse_statement

    def parse_statement(self: Any) -> Any:
        statement = original(self)
        if isinstance(statement, config_parser.BindingStatement):
            statements.append(statement)
        return statement

    config_parser.ConfigParser.parse_statement = parse_statement
    try:
        yield statements
    finally:
        config_parser.ConfigParser.parse_statement = original
    for statement in statements:
        _locations[key_of(statement)] = statement.location


def key_of(statement: config_parser.BindingStatement) -> Key:
    """Returns the parameter or macro that a statement binds."""
    if not statement.arg_name:
        scope = f"{statement.scope}/" if statement.scope else ""
        return f"{scope}{statement.selector}", _MACRO, "value"
    configurable = gin_config._REGISTRY.get_match(statement.selector)
    selector = configurable.selector if configurable else statement.selector
    return statement.scope, selector, statement.arg_name


def described_location(location: config_parser.Location) -> str:
    """Returns two lines with the location of a setting, in the form of gin's errors."""
    file = f'file "{location.filename}",' if location.filename else "--gin_param"
    return (
        f"\n  In {file} line {location.line_num}\n    {location.line_content.strip()}"
    )


def named_locations(text: str) -> str:
    """Returns the locations of settings that a message names, such as
    "Architecture.norm", or "".
    """
    if "\n  In " in text:
        return ""
    locations = [
        described_location(location)
        for (scope, selector, name), location in _locations.items()
        if name in gin_config._CONFIG.get((scope, selector), {})
        and re.search(rf"\b{re.escape(_short(selector))}\.{name}\b", text)
    ]
    return "".join(locations)


def is_from_command_line(key: Key) -> bool:
    """Returns whether a setting was given as a single line, by --gin_param, rather than
    in a file.
    """
    return key in _locations and not _locations[key].filename


def location_of(key: Key) -> str:
    """Returns the location of a setting as text, or "" if it is not known."""
    return described_location(_locations[key]) if key in _locations else ""


def setting_name(key: Key) -> str:
    """Returns the name of a setting as in a gin file."""
    scope, selector, name = key
    if selector == _MACRO:
        return scope
    return (f"{scope}/" if scope else "") + f"{_short(selector)}.{name}"


def check(statements: Sequence[config_parser.BindingStatement]) -> None:
    """Checks that something refers to each name, and that values have the right types.
    Raises ConfigError.
    """
    references = _references([statement.value for statement in statements])
    used = {
        (scope, reference.configurable.selector)
        for reference in references
        for scope in _scopes(reference)
    }
    macros = {scope for scope, selector in used if selector == _MACRO}
    scopes = {scope for scope, selector in used if selector != _MACRO}
    for statement in statements:
        scope, selector, _ = key_of(statement)
        if selector == _MACRO and scope not in macros:
            _refuse_unused(f"{scope} is a name", f"%{scope}", scope, macros, statement)
        if selector != _MACRO and scope and scope not in scopes:
            reference = f"@{scope}/{statement.selector}"
            _refuse_unused(f"{scope}/ is a scope", reference, scope, scopes, statement)
        _check_type(statement)


def _refuse_unused(
    description: str,
    reference: str,
    name: str,
    known: Iterable[str],
    statement: config_parser.BindingStatement,
) -> None:
    """Raises ConfigError for an unused name that --gin_param gives, or that is similar to
    a used one.

    Other unused names in files are accepted: several configurations share a file, and
    later files override settings.
    """
    filename = statement.location.filename
    cutoff = _MISSPELT if filename else 0.5
    close = difflib.get_close_matches(name, sorted(known), 3, cutoff)
    if not filename or close and Path(filename).name != _RUN_CONFIG:
        raise ConfigError(
            f"{description} that no setting refers to, as {reference}: it has no "
            f"effect.{described_location(statement.location)}\n  "
            + (f"Did you mean {', '.join(close)}? " if close else "")
            + "Else remove it."
        )


def _references(values: Any) -> Iterator[ConfigurableReference]:
    return gin_config.iterate_references(values)


def _scopes(reference: ConfigurableReference) -> Iterator[str]:
    """Yields the scope of a reference, and the scopes around it: a/b/ is also within a/."""
    scopes = reference.scopes
    if reference.configurable.selector == _MACRO:
        yield "/".join(scopes)
    else:
        yield from (
            "/".join(scopes[i:k])
            for i in range(len(scopes))
            for k in range(i + 1, len(scopes) + 1)
        )


def _check_type(statement: config_parser.BindingStatement) -> None:
    """Raises ConfigError if a value does not fit the annotation of its parameter."""
    key = key_of(statement)
    scope, selector, name = key
    if gin_config._CONFIG.get((scope, selector), {}).get(name) is not statement.value:
        return  # a later setting replaced it
    hints = hints_of(selector)
    hint = hints.get(name)
    value = resolved(statement.value)
    if (
        hint is None
        and hints
        and gin_config._might_have_parameter(
            gin_config._REGISTRY[selector].wrapped, name
        )
        and _takes_fields(selector)
    ):
        raise ConfigError(
            f"{_short(selector)} takes no {name!r}.{described_location(statement.location)}\n  "
            + _meant(name, _short(selector), hints)
        )
    if hint is not None and not value_types.fits(value, hint):
        raise ConfigError(
            f"{setting_name(key)} is {value!r}, where {value_types.described(hint)} is "
            f"expected.{_of_macro(statement.value)}{described_location(statement.location)}"
        )


def _of_macro(value: Any) -> str:
    """Returns the location of the macro that a value refers to, or ""."""
    if (
        not isinstance(value, ConfigurableReference)
        or value.configurable.selector != _MACRO
    ):
        return ""
    return location_of((*value.config_key, "value"))


def hints_of(selector: str) -> dict[str, Any]:
    """Returns the annotations of a configurable's parameters, as far as they can be
    resolved.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    try:
        hints = typing.get_type_hints(function)
        signature = inspect.getfullargspec(function)
    except (NameError, TypeError):
        return {}
    fields = typing.get_type_hints(hints["return"]) if _takes_fields(selector) else {}
    return fields | {
        name: hint
        for name, hint in hints.items()
        if name not in ("return", signature.varargs, signature.varkw)
    }


def _takes_fields(selector: str) -> bool:
    """Returns whether a configurable is a function whose `**` arguments are the fields of
    the dataclass that it returns.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    if inspect.isclass(wrapped) or not inspect.getfullargspec(wrapped).varkw:
        return False
    return dataclasses.is_dataclass(value_types.result(wrapped))


def resolved(value: Any) -> Any:
    """Returns a value with macros replaced by their values."""
    if (
        isinstance(value, ConfigurableReference)
        and value.configurable.selector == _MACRO
    ):
        return resolved(
            gin_config._CONFIG.get(value.config_key, {}).get("value", value)
        )
    if isinstance(value, (list, tuple)):
        return type(value)(map(resolved, value))
    return (
        {k: resolved(v) for k, v in value.items()} if isinstance(value, dict) else value
    )


def _short(selector: str) -> str:
    return str(gin_config._REGISTRY.minimal_selector(selector))


def with_near_misses(message: str) -> str:
    """Returns gin's message about an unknown name, with suggestions."""
    if match := re.search(
        r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'", message
    ):
        known = list(hints_of(gin_config._REGISTRY.get_match(match[1]).selector))
        return f"{message}\n  {_meant(match[2], match[1], known)}" if known else message
    if match := re.search(
        r"No configurable matching (?:reference )?'@?([\w./]+)", message
    ):
        last = match[1].rpartition(".")[2]
        names = {
            selector.rpartition(".")[2] for selector, _ in gin_config._REGISTRY.items()
        }
        close = _near_misses(last, names)
        suggestion = f"Did you mean {close}? " if close else ""
        return f"{message}\n  {suggestion}Configurables of other modules must be imported first."
    return message


def _meant(name: str, taker: str, known: Iterable[str]) -> str:
    close = _near_misses(name, known)
    return (
        f"Did you mean {close}? " if close else ""
    ) + f"{taker} takes {', '.join(known)}."


def _near_misses(name: str, known: Iterable[str]) -> str:
    """Returns known names that resemble a name, as "a, b", or ""."""
    return ", ".join(difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5))
