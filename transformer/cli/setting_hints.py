"""The gin setting that a user may have meant by a flag that does not exist.

    settings_like("mesh", "data:8")      # ["Mesh.axes = 'data:8'"]
    settings_like("steps", "10")         # ["steps = 10", "train.steps = 10"]

The known settings are those in the gin files of the package. They are read as text, since
gin can only read files once the modules that they configure are imported.
"""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

from transformer.cli.config_files import config_folder, find_config

_DEFAULT_CONFIG = "lm_stdlib.gin"
# Names that other programs give to flags -> the settings with this meaning.
_SETTINGS_OF_FLAGS = {
    "mesh": "Mesh.axes",
    "mesh_shape": "Mesh.axes",
    "layout": "Mesh.layout",
    "devices": "Mesh.devices",
    "seed": "train.seed",
    "train_batch_size": "train.batch_size",
}
# The name of a setting at the start of a line, such as "Mesh.axes" of 'Mesh.axes = "data:8"'.
_SETTING_NAME = re.compile(r"^([A-Za-z_][\w./]*)\s*=\s*\S", re.MULTILINE)
_MAX_SUGGESTIONS = 3
_MIN_SIMILARITY = 0.75


def settings_like(flag: str, value: str | None) -> list[str]:
    """Returns gin settings whose parameter has the name of a flag, or a similar one.

    Args:
      flag: the name of the unknown flag, without "--".
      value: the flag's value on the command line; None: it is not known.

    Returns:
      Lines for --gin_param, at most three.
    """
    if flag in _SETTINGS_OF_FLAGS:
        settings = [_SETTINGS_OF_FLAGS[flag]]
    else:
        known_settings = _known_settings()
        parameters = {_parameter(setting) for setting in known_settings}
        similar = difflib.get_close_matches(
            flag, sorted(parameters), n=1, cutoff=_MIN_SIMILARITY
        )
        settings = [
            setting for setting in known_settings if _parameter(setting) in similar
        ]
    value_text = "..." if value is None else _gin_value(value)
    return [f"{setting} = {value_text}" for setting in settings[:_MAX_SUGGESTIONS]]


def _known_settings() -> list[str]:
    """Returns the settings in the package's gin files, those of the default file first."""
    default_path = find_config(_DEFAULT_CONFIG)
    all_paths = sorted(str(path) for path in Path(config_folder()).rglob("*.gin"))
    settings: dict[str, None] = {}  # an ordered set
    for path in (default_path, *all_paths):
        text = Path(path).read_text(encoding="utf-8")
        settings.update(dict.fromkeys(_SETTING_NAME.findall(text)))
    return list(settings)


def _parameter(setting: str) -> str:
    """Returns the parameter of a setting: "steps" of "train.steps"."""
    _, _, parameter = setting.rpartition(".")
    return parameter


def _gin_value(text: str) -> str:
    """Returns the value of a flag as gin writes it: strings in quotes."""
    if text[:1] in ("@", "%"):  # a reference to a configurable, or a macro
        return text
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return repr(text)
    return text
