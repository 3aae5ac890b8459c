"""Gin in the three programs that train: meshes, layouts, sizes, optimizers, from files
or by line.

    configuring.read(argv, {"Mesh.axes": settings.MESH})      # --gin_file and --gin_param
    kind = configuring.configured(mtf.optimizers.AdamW)       # with what gin binds of it
    for line in configuring.refuse_unused():                  # what was overruled, or has no effect
      print(line)

Where a flag says the same as a setting of gin, the flag wins if it is given, and a line
tells so; else gin's setting is what the flag stands at. Settings that a program does
not heed are refused if they were given by --gin_param, and told if they are in a file,
which may serve other programs, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
from absl import flags
from gin import config as gin_config

from transformer.cli import command_line, gin_settings

_heeded: set[gin_settings.Key] = (
    set()
)  # settings that were taken, or overruled by a flag
_notes: list[str] = []


def read(argv: Sequence[str], overlaps: Mapping[str, flags.FlagHolder[Any]]) -> None:
    """Gives gin the settings of the flags, and flags that are not given those of gin.

    Args:
      argv: what is left of the command line.
      overlaps: by names of settings, flags that say the same.

    Raises:
      ConfigError: an argument is no flag, gin cannot read a setting, or two settings of
        one flag differ.
    """
    _heeded.clear()
    _notes.clear()
    if gin.config_is_locked():  # by a program that ran in this process before
        gin.clear_config()
    command_line.configure_by_flags(argv, files=())
    if command_line.CLUSTER.value:
        raise command_line.ConfigError(
            f"--cluster={command_line.CLUSTER.value}: this program runs on the "
            "devices of one host.\n  Leave it out; --devices names devices."
        )
    taken: dict[str, tuple[str, Any]] = {}
    for name, flag in overlaps.items():
        if not is_bound(name):
            continue
        if given(flag):
            overruled(name, flag)
            continue
        value = gin_settings.resolved(gin.query_parameter(name))
        other, before = taken.setdefault(flag.name, (name, value))
        if before != value:
            raise command_line.ConfigError(
                f"{name} is {value!r}, and {other} is {before!r}: here both are "
                f"--{flag.name}.\n  Set one of them, or the flag."
            )
        heed(name)
        flags.FLAGS[flag.name].value = value


def given(flag: flags.FlagHolder[Any]) -> bool:
    """Returns whether a flag was given on the command line."""
    return not flags.FLAGS[flag.name].using_default_value


def is_bound(name: str) -> bool:
    """Returns whether gin has a setting, such as "Mesh.axes"."""
    selector, _, parameter = name.rpartition(".")
    return parameter in gin.get_bindings(selector, resolve_references=False)


def heed(name: str) -> None:
    """Says that a setting has an effect here."""
    _heeded.add(_key(name))


def overruled(name: str, flag: flags.FlagHolder[Any]) -> None:
    """Says that a flag wins over a setting."""
    heed(name)
    _notes.append(
        f"--{flag.name}={flag.value} wins over {name} = "
        f"{gin_settings.resolved(gin.query_parameter(name))!r}"
    )


def note(line: str) -> None:
    """Keeps a line that `refuse_unused` returns."""
    _notes.append(line)


def of_train(**defaults: Any) -> dict[str, Any]:
    """Returns some settings of `train` by gin, or else these."""
    found = {}
    for name, default in defaults.items():
        found[name] = default
        if is_bound(f"train.{name}"):
            heed(f"train.{name}")
            found[name] = copy.deepcopy(
                gin.query_parameter(f"train.{name}")
            )  # no other reference
    return found


def configured(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a class or function that takes what gin binds of it."""
    return gin.get_configurable(kind)


def takes(name: str) -> Sequence[str]:
    """Returns the names of the parameters of a class or function that gin knows by a
    name.
    """
    return list(gin_settings.hints_of(gin_config._REGISTRY.get_match(name).selector))


def refuse_unused() -> list[str]:
    """Returns lines about settings that were overruled or have no effect; called when
    all is made.

    Raises:
      ConfigError: one without effect was given by --gin_param.
    """
    idle = [key for key in _all_bound() if key not in _heeded and not _used(key)]
    for key in filter(gin_settings.is_from_command_line, idle):
        raise command_line.ConfigError(
            f"{gin_settings.setting_name(key)} has no effect here.{gin_settings.location_of(key)}\n"
            f"  {_instead(key)}"
        )
    shown = sorted({gin_settings.setting_name(key) for key in idle})
    return [
        *_notes,
        *([f"without effect here: {', '.join(shown)}"] if shown else []),
    ]


def _all_bound() -> list[gin_settings.Key]:
    return [
        (scope, selector, name)
        for (scope, selector), values in gin_config._CONFIG.items()
        for name in values
        if not selector.startswith("gin.")
    ]


def _used(key: gin_settings.Key) -> bool:
    """Returns whether gin has given a setting to something that was made."""
    scope, selector, name = key
    return any(
        name in values
        and one == selector
        and (not scope or inside == scope or inside.startswith(f"{scope}/"))
        for (inside, one), values in gin_config._OPERATIVE_CONFIG.items()
    )


def _instead(key: gin_settings.Key) -> str:
    _, selector, name = key
    if selector.endswith(".Architecture"):
        return f"BERT has its own: bert_architecture.{name}."
    return (
        "Leave it out; the flags of this program say what it does: --help shows them."
    )


def _key(name: str) -> gin_settings.Key:
    selector, _, parameter = name.rpartition(".")
    return "", gin_config._REGISTRY.get_match(selector).selector, parameter
