"""Checks of the arguments of saving and restoring.

check_variables({v.name: v for v in model.variables})
check_settings(step=600, keep=2, keep_every=0, extra={"seed": 1})
"""

from __future__ import annotations

import json
from typing import Any

from meshtf.names.arguments import as_int, as_mapping, refuse
from meshtf.runtime.variable import Variable

# What the arguments must be, for errors.
_BY_NAME = "variables by name"
_JSON = "a dict of what JSON can hold"
_WAY_OUT = "Write {v.name: v for v in model.variables}."


def check_variables(variables: Any) -> None:
    """Checks the argument `variables`.

    Raises:
      ArgumentError: it is no mapping from names to variables.
    """
    if not hasattr(variables, "items"):
        refuse("variables", variables, takes=_BY_NAME, way_out=_WAY_OUT)
    for name, variable in variables.items():
        if not isinstance(name, str) or not isinstance(variable, Variable):
            refuse("variables", {name: variable}, takes=_BY_NAME, way_out=_WAY_OUT)


def check_settings(step: Any, keep: Any, keep_every: Any, extra: Any) -> None:
    """Checks the settings of a checkpoint, which are arguments of `save`.

    Raises:
      ArgumentError: an integer is negative or no integer, or JSON cannot represent
        `extra`.
    """
    # Each of these calls raises ArgumentError for a wrong value.
    as_int("step", step, least=0)
    as_int("keep", keep, least=0)
    as_int("keep_every", keep_every, least=0)
    if extra is None:
        return
    as_mapping("extra", extra, _JSON)
    try:
        json.dumps(dict(extra))
    except (TypeError, ValueError) as error:
        refuse("extra", extra, takes=_JSON, way_out=f"{error}.")
