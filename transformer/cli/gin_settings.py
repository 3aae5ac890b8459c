"""Checks of gin settings: types of values, and names that nothing uses.

    statements = read_statements(files, params, allowed)     # of gin_statements.py
    gin.parse_config_files_and_bindings(files, params)
    check_statements(statements)     # ConfigError: names the setting, its file and its line

Gin accepts settings that are wrong: values of another type, and macros or scopes that
nothing refers to, such as `step = 4` for `steps = 4`. These checks find them before any
object is created.

Words of gin: in `encoder/Architecture.norm = %norm`, `encoder` is a *scope*, `Architecture` a
*configurable* (its full name with modules is the *selector*), `norm` a parameter, and `%norm`
a reference to a *macro*, which `norm = "rms"` binds.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gin import config as gin_config
from gin import config_parser
from gin.config import ConfigurableReference

from transformer.cli import value_types

Key = tuple[str, str, str]  # names a setting: scope, selector, parameter
# Gin's selector of macros. `norm = "rms"` has the key ("norm", _MACRO, "value").
_MACRO = "gin.macro"
# The minimum similarity of two names, from 0 to 1, at which one counts as the other misspelt.
_MIN_SIMILARITY = 0.75
# The minimum similarity at which a message suggests one name in place of the other.
_MIN_SUGGESTED_SIMILARITY = 0.5
_RUN_CONFIG = "config.gin"  # runs write it: it has all bindings, used or not
# File and line of each setting. `check_statements` fills it.
_locations: dict[Key, config_parser.Location] = {}


class ConfigError(ValueError):
    """Raised for a configuration that gin cannot read, or that lacks a required setting."""


class Statements(NamedTuple):
    """The statements of gin files and of single settings.

    Attributes:
      bindings: the settings, in the order in which gin binds them.
      used_macros: the names of the macros that values refer to.
      used_scopes: the scopes whose settings apply to what values refer to.
    """

    bindings: list[config_parser.BindingStatement]
    used_macros: set[str]
    used_scopes: set[str]


def _key_of(statement: config_parser.BindingStatement) -> Key:
    """Returns the key of the parameter or macro that a statement binds."""
    if not statement.arg_name:
        # A macro, such as `norm = "rms"`: gin parses its name as a selector.
        prefix = f"{statement.scope}/" if statement.scope else ""
        return f"{prefix}{statement.selector}", _MACRO, "value"
    configurable = gin_config._REGISTRY.get_match(statement.selector)
    selector = configurable.selector if configurable else statement.selector
    return statement.scope, selector, statement.arg_name


def location_text(location: config_parser.Location) -> str:
    """Returns two lines with the location of a setting, in the form of gin's errors."""
    file = f'file "{location.filename}",' if location.filename else "--gin_param"
    return (
        f"\n  In {file} line {location.line_num}\n    {location.line_content.strip()}"
    )


def locations_in_message(text: str) -> str:
    """Returns the locations of the settings that a message names, such as
    "Architecture.norm"; "" if it names none, or has locations already.
    """
    if "\n  In " in text:
        return ""
    locations = []
    for (scope, selector, parameter), location in _locations.items():
        # `_CONFIG` has gin's bindings: (scope, selector) -> {parameter: value}.
        is_bound = parameter in gin_config._CONFIG.get((scope, selector), {})
        name = rf"\b{re.escape(_short_name(selector))}\.{parameter}\b"
        if is_bound and re.search(name, text):
            locations.append(location_text(location))
    return "".join(locations)


def is_from_command_line(key: Key) -> bool:
    """Returns whether a setting was given by --gin_param, not in a file."""
    return key in _locations and not _locations[key].filename


def location_of(key: Key) -> str:
    """Returns the location of a setting as text, or "" if it is not known."""
    return location_text(_locations[key]) if key in _locations else ""


def setting_name(key: Key) -> str:
    """Returns the name of a setting in a gin file, such as "encoder/Architecture.norm"."""
    scope, selector, parameter = key
    if selector == _MACRO:
        return scope
    prefix = f"{scope}/" if scope else ""
    return f"{prefix}{_short_name(selector)}.{parameter}"


def check_statements(statements: Statements) -> None:
    """Checks settings that gin has bound, and stores their locations for `location_of`.

    Raises:
      ConfigError: nothing refers to a macro or scope, or a value has the wrong type.
    """
    last_statements = {_key_of(binding): binding for binding in statements.bindings}
    for key, binding in last_statements.items():
        _locations[key] = binding.location
    for statement in statements.bindings:
        key = _key_of(statement)
        scope, selector, _parameter = key
        if selector == _MACRO:
            macro = scope  # the key of a macro has its name there
            if macro not in statements.used_macros:
                _check_unused_macro(statement, macro, statements.used_macros)
        elif scope and scope not in statements.used_scopes:
            _check_unused_scope(statement, scope, statements.used_scopes)
        if last_statements[key] is statement:  # no later setting replaces it
            _check_type(statement)


def _check_unused_macro(
    statement: config_parser.BindingStatement, name: str, used_names: Iterable[str]
) -> None:
    """Raises ConfigError for the binding of an unused macro, unless `_check_unused` accepts
    it.
    """
    _check_unused(
        statement,
        name,
        used_names,
        description=f"{name} is a name",
        reference=f"%{name}",
    )


def _check_unused_scope(
    statement: config_parser.BindingStatement, scope: str, used_names: Iterable[str]
) -> None:
    """Raises ConfigError for a binding in an unused scope, unless `_check_unused` accepts it."""
    _check_unused(
        statement,
        scope,
        used_names,
        description=f"{scope}/ is a scope",
        reference=f"@{scope}/{statement.selector}",
    )


def _check_unused(
    statement: config_parser.BindingStatement,
    name: str,
    used_names: Iterable[str],
    description: str,
    reference: str,
) -> None:
    """Raises ConfigError for an unused name that is given by --gin_param, or that resembles a
    used name.

    Other unused names in files are accepted: several configurations share a file, and
    later files override settings.

    Args:
      statement: the binding of the name.
      name: the name of an unused macro or scope.
      used_names: the names of used macros or scopes.
      description: the start of the message, such as "norm is a name".
      reference: the form of a reference to the name, such as "%norm".
    """
    filename = statement.location.filename
    cutoff = _MIN_SIMILARITY if filename else _MIN_SUGGESTED_SIMILARITY
    similar = difflib.get_close_matches(name, sorted(used_names), n=3, cutoff=cutoff)
    is_misspelt = bool(similar) and Path(filename or "").name != _RUN_CONFIG
    if not filename or is_misspelt:
        suggestion = f"Did you mean {', '.join(similar)}? " if similar else ""
        raise ConfigError(
            f"{description} that no setting refers to, as {reference}: it has no "
            f"effect.{location_text(statement.location)}\n  {suggestion}Else remove it."
        )


def _check_type(statement: config_parser.BindingStatement) -> None:
    """Raises ConfigError if a value does not fit the annotation of its parameter."""
    key = _key_of(statement)
    scope, selector, parameter = key
    # `_CONFIG` has gin's bindings: (scope, selector) -> {parameter: value}.
    bound_value = gin_config._CONFIG[scope, selector][parameter]
    hints = hints_of(selector)
    hint = hints.get(parameter)
    if hint is None:
        _check_is_field(statement, selector, parameter, hints)
        return
    value = resolve_macros(bound_value)
    if not value_types.fits(value, hint):
        raise ConfigError(
            f"{setting_name(key)} is {value!r}, where {value_types.describe(hint)} is "
            f"expected.{_macro_location(bound_value)}"
            f"{location_text(statement.location)}"
        )


def _check_is_field(
    statement: config_parser.BindingStatement,
    selector: str,
    parameter: str,
    hints: dict[str, Any],
) -> None:
    """Raises ConfigError if a configurable takes the fields of a dataclass as `**`
    arguments, and the parameter is none of them. Gin accepts any name for `**` arguments.

    Args:
      statement: the binding of the parameter.
      selector: the full name of the configurable.
      parameter: the name of the parameter.
      hints: the annotations of the configurable's parameters, by name.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    gin_accepts = gin_config._might_have_parameter(wrapped, parameter)
    if hints and gin_accepts and _takes_fields(selector):
        name = _short_name(selector)
        raise ConfigError(
            f"{name} takes no {parameter!r}.{location_text(statement.location)}\n  "
            + _suggestion(parameter, name, hints)
        )


def _macro_location(value: Any) -> str:
    """Returns the location of the macro that a value refers to; "" for another value."""
    if _is_macro(value):
        return location_of((*value.config_key, "value"))
    return ""


def _is_macro(value: Any) -> bool:
    """Returns whether a value is a reference to a macro, such as `%norm`."""
    is_reference = isinstance(value, ConfigurableReference)
    return is_reference and value.configurable.selector == _MACRO


def hints_of(selector: str) -> dict[str, Any]:
    """Returns the annotations of a configurable's parameters, by name; {} if they cannot be
    resolved.
    """
    # The class or function that was registered with gin.
    wrapped = gin_config._REGISTRY[selector].wrapped
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    try:
        hints = typing.get_type_hints(function)
        signature = inspect.getfullargspec(function)
    except (NameError, TypeError):
        return {}
    parameters: dict[str, Any] = {}
    if _takes_fields(selector):
        parameters |= typing.get_type_hints(hints["return"])
    for name, hint in hints.items():
        if name not in ("return", signature.varargs, signature.varkw):
            parameters[name] = hint
    return parameters


def _takes_fields(selector: str) -> bool:
    """Returns whether a configurable is a function whose `**` arguments are the fields of
    the dataclass that it returns.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    if inspect.isclass(wrapped) or not inspect.getfullargspec(wrapped).varkw:
        return False
    return dataclasses.is_dataclass(value_types.return_annotation(wrapped))


def resolve_macros(value: Any) -> Any:
    """Returns a value in which references to macros are replaced by the macros' values."""
    if _is_macro(value):
        macro_bindings = gin_config._CONFIG.get(value.config_key, {})
        return resolve_macros(macro_bindings.get("value", value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(resolve_macros, value))
    if isinstance(value, dict):
        return {key: resolve_macros(element) for key, element in value.items()}
    return value


def _short_name(selector: str) -> str:
    """Returns the shortest unambiguous name of a configurable."""
    return str(gin_config._REGISTRY.minimal_selector(selector))


def add_suggestions(message: str) -> str:
    """Returns gin's message with suggestions, if it is about an unknown name; else the
    message unchanged.
    """
    match = re.search(
        r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'", message
    )
    if match is not None:
        configurable, parameter = match.groups()
        selector = gin_config._REGISTRY.get_match(configurable).selector
        known_parameters = list(hints_of(selector))
        if not known_parameters:
            return message
        suggestion = _suggestion(parameter, configurable, known_parameters)
        return f"{message}\n  {suggestion}"
    match = re.search(r"No configurable matching (?:reference )?'@?([\w./]+)", message)
    if match is not None:
        _, _, name = match.group(1).rpartition(".")
        known_names = {
            selector.rpartition(".")[2] for selector, _ in gin_config._REGISTRY.items()
        }
        similar = _similar_names(name, known_names)
        suggestion = f"Did you mean {similar}? " if similar else ""
        return f"{message}\n  {suggestion}Configurables of other modules must be imported first."
    return message


def _suggestion(parameter: str, configurable: str, known: Iterable[str]) -> str:
    """Returns a sentence with the parameters that resemble an unknown one, and a sentence with
    all known parameters of the configurable.
    """
    similar = _similar_names(parameter, known)
    question = f"Did you mean {similar}? " if similar else ""
    return f"{question}{configurable} takes {', '.join(known)}."


def _similar_names(name: str, known: Iterable[str]) -> str:
    """Returns the known names that resemble a name, as "a, b"; "" if none does."""
    similar = difflib.get_close_matches(
        name, sorted(known), n=3, cutoff=_MIN_SUGGESTED_SIMILARITY
    )
    return ", ".join(similar)
