"""What gin was given: where each setting stands, and which of them cannot be meant so.

    with recorded() as statements:
      gin.parse_config_files_and_bindings(files, params)
    check(statements)              # ConfigError: names the setting, its file and its line

A setting that gin takes may still be wrong: a value of another type, and a macro or a
scope that nothing refers to, such as `step = 4` for `steps = 4`. They are found before
anything is made.
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

import meshtf as mtf
from transformer.cli import value_types

Key = tuple[str, str, str]  # scope, full name of the configurable, parameter
_MACRO = "gin.macro"
_MISSPELT = 0.75  # from here on difflib takes a name for another one misspelt
_OF_A_RUN = "config.gin"  # what gin wrote itself: all that was bound, used or not
_places: dict[Key, config_parser.Location] = {}


class ConfigError(ValueError):
    """A configuration that gin cannot read, or that leaves out what is needed."""


@contextlib.contextmanager
def recorded() -> Iterator[list[config_parser.BindingStatement]]:
    """Gives a list of the bindings that gin parses in the `with` block; remembers their
    places.
    """
    statements: list[config_parser.BindingStatement] = []
    before = config_parser.ConfigParser.parse_statement

    def parse_statement(self: Any) -> Any:
        statement = before(self)
        if isinstance(statement, config_parser.BindingStatement):
            statements.append(statement)
        return statement

    config_parser.ConfigParser.parse_statement = parse_statement
    try:
        yield statements
    finally:
        config_parser.ConfigParser.parse_statement = before
    _places.update({key_of(one): one.location for one in statements})


def key_of(statement: config_parser.BindingStatement) -> Key:
    """Returns what a statement binds."""
    if not statement.arg_name:
        scope = f"{statement.scope}/" if statement.scope else ""
        return f"{scope}{statement.selector}", _MACRO, "value"
    found = gin_config._REGISTRY.get_match(statement.selector)
    return (
        statement.scope,
        found.selector if found else statement.selector,
        statement.arg_name,
    )


def place(location: config_parser.Location) -> str:
    """Returns two lines that say where a setting stands, as gin says it."""
    file = f'file "{location.filename}",' if location.filename else "--gin_param"
    return (
        f"\n  In {file} line {location.line_num}\n    {location.line_content.strip()}"
    )


def places_named(text: str) -> str:
    """Returns the places of settings that a message names, such as "Architecture.norm",
    or "".
    """
    found = [
        place(location)
        for (scope, selector, name), location in _places.items()
        if name in gin_config._CONFIG.get((scope, selector), {})
        and re.search(rf"\b{re.escape(_short(selector))}\.{name}\b", text)
    ]
    return "".join(found) if "\n  In " not in text else ""


def by_line(key: Key) -> bool:
    """Returns whether a setting was given as a single line, by --gin_param, rather than
    in a file.
    """
    return key in _places and not _places[key].filename


def place_of(key: Key) -> str:
    """Returns where a setting stands, or "" if that is not known."""
    return place(_places[key]) if key in _places else ""


def shown(key: Key) -> str:
    """Returns a setting by the name that people give it."""
    scope, selector, name = key
    if selector == _MACRO:
        return scope
    return (f"{scope}/" if scope else "") + f"{_short(selector)}.{name}"


def check(statements: Sequence[config_parser.BindingStatement]) -> None:
    """Refuses settings that nothing refers to, and values of other types. Raises
    ConfigError.
    """
    used = {
        (scope, reference.configurable.selector)
        for reference in _references([one.value for one in statements])
        for scope in _scopes(reference)
    }
    macros = {scope for scope, selector in used if selector == _MACRO}
    scopes = {scope for scope, selector in used if selector != _MACRO}
    for one in statements:
        scope, selector, _ = key_of(one)
        if selector == _MACRO and scope not in macros:
            _refuse_unused(f"{scope} is a name", f"%{scope}", scope, macros, one)
        if selector != _MACRO and scope and scope not in scopes:
            _refuse_unused(
                f"{scope}/ is a scope", f"@{scope}/{one.selector}", scope, scopes, one
            )
        _check_type(one)


def _refuse_unused(
    what: str,
    as_in: str,
    name: str,
    known: Iterable[str],
    one: config_parser.BindingStatement,
) -> None:
    """Refuses what was given by itself, or resembles a name that is used.

    Files may hold more than one run uses: names that several configurations share, and
    what a later file made needless.
    """
    close = difflib.get_close_matches(
        name, sorted(known), 3, 0.5 if not one.location.filename else _MISSPELT
    )
    if (
        not one.location.filename
        or close
        and Path(one.location.filename).name != _OF_A_RUN
    ):
        raise ConfigError(
            f"{what} that no setting refers to, as {as_in}: it does "
            f"nothing.{place(one.location)}\n  "
            + (f"Did you mean {', '.join(close)}? " if close else "")
            + "Else leave it out."
        )


def _references(values: Any) -> Iterator[ConfigurableReference]:
    return gin_config.iterate_references(values)


def _scopes(reference: ConfigurableReference) -> Iterator[str]:
    """Yields a reference's scope, and the scopes that hold it: a/b/ is within
    a/, too.
    """
    scopes = reference.scopes
    if reference.configurable.selector == _MACRO:
        yield "/".join(scopes)
    else:
        yield from (
            "/".join(scopes[i:k])
            for i in range(len(scopes))
            for k in range(i + 1, len(scopes) + 1)
        )


def _check_type(one: config_parser.BindingStatement) -> None:
    scope, selector, name = key = key_of(one)
    if gin_config._CONFIG.get((scope, selector), {}).get(name) is not one.value:
        return  # a later setting replaced it
    hints = hints_of(selector)
    hint, value = hints.get(name), resolved(one.value)
    if (
        hint is None
        and hints
        and gin_config._might_have_parameter(
            gin_config._REGISTRY[selector].wrapped, name
        )
        and _takes_fields(selector)
    ):
        raise ConfigError(
            f"{_short(selector)} takes no {name!r}.{place(one.location)}\n  "
            + _meant(name, _short(selector), hints)
        )
    if hint is not None and not value_types.fits(value, hint):
        raise ConfigError(
            f"{shown(key)} is {value!r}, where {value_types.described(hint)} is "
            f"wanted.{_of_macro(one.value)}{place(one.location)}"
        )


def _of_macro(value: Any) -> str:
    """Returns where a macro is bound that a value consists of, or ""."""
    if (
        not isinstance(value, ConfigurableReference)
        or value.configurable.selector != _MACRO
    ):
        return ""
    return place_of((*value.config_key, "value"))


def hints_of(selector: str) -> dict[str, Any]:
    """Returns the annotations of a configurable's parameters; of those that are there
    to be read.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    function = wrapped.__init__ if inspect.isclass(wrapped) else wrapped
    try:
        hints = typing.get_type_hints(function)
        various = inspect.getfullargspec(function)
    except (NameError, TypeError):
        return {}
    fields = typing.get_type_hints(hints["return"]) if _takes_fields(selector) else {}
    return fields | {
        name: hint
        for name, hint in hints.items()
        if name not in ("return", various.varargs, various.varkw)
    }


def _takes_fields(selector: str) -> bool:
    """Returns whether it is a function with `**` arguments that returns a dataclass:
    its fields.
    """
    wrapped = gin_config._REGISTRY[selector].wrapped
    if inspect.isclass(wrapped) or not inspect.getfullargspec(wrapped).varkw:
        return False
    return dataclasses.is_dataclass(value_types.result(wrapped))


def resolved(value: Any) -> Any:
    """Returns a value with what macros stand for in their places."""
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
    """Returns gin's message about a name that it does not know, and after it what may
    be meant.
    """
    if found := re.search(
        r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'", message
    ):
        known = list(hints_of(gin_config._REGISTRY.get_match(found[1]).selector))
        return f"{message}\n  {_meant(found[2], found[1], known)}" if known else message
    if found := re.search(
        r"No configurable matching (?:reference )?'@?([\w./]+)", message
    ):
        last = found[1].rpartition(".")[2]
        close = mtf.near_misses(
            last,
            {
                selector.rpartition(".")[2]
                for selector, _ in gin_config._REGISTRY.items()
            },
        )
        more = f"Did you mean {close}? " if close else ""
        return f"{message}\n  {more}What other modules define must be imported first."
    return message


def _meant(name: str, taker: str, known: Iterable[str]) -> str:
    close = mtf.near_misses(name, known)
    return (
        f"Did you mean {close}? " if close else ""
    ) + f"{taker} takes {', '.join(known)}."
