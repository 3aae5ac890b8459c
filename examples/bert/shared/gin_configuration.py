"""Gin settings in the three programs that train: meshes, layouts, sizes, optimizers.

    gin_configuration.read(argv, {"Mesh.axes": MESH})         # --gin_file and --gin_param
    adamw = gin_configuration.configured(mtf.optimizers.AdamW) # with the parameters of gin
    for line in gin_configuration.refuse_unused():            # overridden or unused settings
      print(line)

If a flag and a gin setting have the same meaning, a flag on the command line wins, and a
line says so; otherwise the flag gets gin's value. A setting that a program does not use is
an error if it was given by --gin_param. In a file, which may be shared with other
programs, it is only reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
from absl import flags
from gin import config as gin_config

from transformer.cli import command_line, gin_settings

# Settings that have an effect, or that a flag overrides. `read` clears them.
_used_settings: set[gin_settings.Key] = set()
# Lines to print about overridden settings, which `refuse_unused` returns. `read` clears
# them.
_notes: list[str] = []


def read(argv: Sequence[str], overlaps: Mapping[str, flags.FlagHolder[Any]]) -> None:
    """Reads the gin settings of the command line, and sets flags that are not given to the
    values of gin.

    Args:
      argv: the arguments of the command line that are no flags.
      overlaps: flags with the same meaning as gin settings, by the names of the settings.

    Raises:
      ConfigError: an argument is no flag, gin cannot read a setting, or two settings of
        one flag differ.
    """
    _used_settings.clear()
    _notes.clear()
    if gin.config_is_locked():  # by an earlier program in this process
        gin.clear_config()
    command_line.configure_by_flags(argv, files=())
    if command_line.CLUSTER.value:
        raise command_line.ConfigError(
            f"--cluster={command_line.CLUSTER.value}: this program runs on the "
            "devices of one host.\n  Leave it out; --devices names devices."
        )
    # For each flag: the setting that has set it, and the setting's value.
    setting_of_flag: dict[str, tuple[str, Any]] = {}
    for name, flag in overlaps.items():
        if not is_bound(name):
            continue
        if is_given(flag):
            record_override(name, flag)
            continue
        value = gin_settings.resolve_macros(gin.query_parameter(name))
        first_name, first_value = setting_of_flag.setdefault(flag.name, (name, value))
        if first_value != value:
            raise command_line.ConfigError(
                f"{name} is {value!r}, but {first_name} is {first_value!r}: in this "
                f"program both are --{flag.name}.\n  Set one of them, or the flag."
            )
        mark_used(name)
        flags.FLAGS[flag.name].value = value


def is_given(flag: flags.FlagHolder[Any]) -> bool:
    """Returns whether a flag was given on the command line."""
    return not flags.FLAGS[flag.name].using_default_value


def is_bound(name: str) -> bool:
    """Returns whether gin has a setting, such as "Mesh.axes"."""
    selector, _, parameter = name.rpartition(".")
    return parameter in gin.get_bindings(selector, resolve_references=False)


def mark_used(name: str) -> None:
    """Records that a setting has an effect in this program."""
    _used_settings.add(_key(name))


def record_override(name: str, flag: flags.FlagHolder[Any]) -> None:
    """Records that a flag overrides a setting."""
    mark_used(name)
    _notes.append(
        f"--{flag.name}={flag.value} wins over {name} = "
        f"{gin_settings.resolve_macros(gin.query_parameter(name))!r}"
    )


def note(line: str) -> None:
    """Adds a line to those that `refuse_unused` returns."""
    _notes.append(line)


def train_settings(**defaults: Any) -> dict[str, Any]:
    """Returns settings of gin's configurable `train`, and marks them as used.

    Args:
      **defaults: the values of settings that gin does not bind, by name.
    """
    settings = {}
    for name, default in defaults.items():
        settings[name] = default
        if is_bound(f"train.{name}"):
            mark_used(f"train.{name}")
            # A copy, since gin's value may have references that must not be resolved.
            settings[name] = copy.deepcopy(gin.query_parameter(f"train.{name}"))
    return settings


def configured(configurable: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a class or function with the parameters that gin binds."""
    return gin.get_configurable(configurable)


def parameter_names(name: str) -> Sequence[str]:
    """Returns the parameters of a class or function, given its name in gin."""
    return list(gin_settings.hints_of(gin_config._REGISTRY.get_match(name).selector))


def refuse_unused() -> list[str]:
    """Returns lines about settings that were overridden or have no effect. To be called
    when everything is configured.

    Raises:
      ConfigError: a setting without effect was given by --gin_param.
    """
    unused = [
        key
        for key in _bound_settings()
        if key not in _used_settings and not _is_used(key)
    ]
    refused = [key for key in unused if gin_settings.is_from_command_line(key)]
    if refused:
        key = refused[0]
        raise command_line.ConfigError(
            f"{gin_settings.setting_name(key)} has no effect here.{gin_settings.location_of(key)}\n"
            f"  {_way_out(key)}"
        )
    names = sorted({gin_settings.setting_name(key) for key in unused})
    lines = list(_notes)
    if names:
        lines.append(f"without effect here: {', '.join(names)}")
    return lines


def _bound_settings() -> list[gin_settings.Key]:
    """Returns the keys of all settings that gin binds: (scope, selector, parameter)."""
    return [
        (scope, selector, name)
        for (scope, selector), values in gin_config._CONFIG.items()
        for name in values
        if not selector.startswith("gin.")
    ]


def _is_used(key: gin_settings.Key) -> bool:
    """Returns whether gin has passed a setting to a call, in its scope or a scope inside."""
    scope, selector, name = key
    for (call_scope, call_selector), values in gin_config._OPERATIVE_CONFIG.items():
        in_scope = not scope or f"{call_scope}/".startswith(f"{scope}/")
        if name in values and call_selector == selector and in_scope:
            return True
    return False


def _way_out(key: gin_settings.Key) -> str:
    """Returns what an error suggests for a setting without effect."""
    _, selector, name = key
    if selector.endswith(".Architecture"):
        return f"BERT's sizes are set by bert_architecture.{name}."
    return "Leave it out, or use a flag of this program: --help shows them."


def _key(name: str) -> gin_settings.Key:
    """Returns the key of a setting without scope, given its name."""
    selector, _, parameter = name.rpartition(".")
    return "", gin_config._REGISTRY.get_match(selector).selector, parameter
