"""Warnings and log lines about a mesh, each given once.

What was given is remembered as long as the mesh lives, and beside it: nothing that a
program is, or that a forecast says, depends on it.

    warn_once(mesh, "rule bach", "the layout has a rule for dimension bach, ...")
"""

from __future__ import annotations

import warnings
import weakref

from absl import logging

from meshtf.errors import LayoutWarning
from meshtf.mesh.axes import caller_stacklevel

MAX_MESSAGES = 1_000  # about one mesh; further ones are left out
_given: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()


def warn_once(mesh: object, what: str, text: str) -> None:
    """Warns at the user's line, unless a warning of this was given.

    Args:
      mesh: what it is about.
      what: what the warning is of, such as an axis.
      text: the warning.
    """
    if _is_new(mesh, what):
        warnings.warn(text, LayoutWarning, stacklevel=caller_stacklevel())


def log_once(mesh: object, text: str) -> None:
    """Logs a line about a mesh, unless it was logged."""
    if _is_new(mesh, f"log {text}"):
        logging.info("%s", text)


def _is_new(mesh: object, what: str) -> bool:
    given = _given.setdefault(mesh, set())
    if what in given or len(given) >= MAX_MESSAGES:
        return False
    given.add(what)
    return True
