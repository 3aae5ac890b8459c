"""Warnings and log lines about a mesh, each issued once.

    warn_once(mesh, "rule bach", "the layout has a rule for dimension bach, ...")

The keys of issued messages are stored as long as the mesh exists. They are not attributes of
the mesh, since no program and no forecast depends on them.
"""

from __future__ import annotations

import warnings
import weakref

from absl import logging

from meshtf.errors import LayoutWarning
from meshtf.mesh.axes import caller_stacklevel

MAX_MESSAGES = 1_000  # for one mesh; further messages are dropped
# Mesh -> the keys of the messages that were issued.
_keys: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()


def warn_once(mesh: object, key: str, text: str) -> None:
    """Warns at the user's line, unless a warning with this key was issued before.

    Args:
      mesh: the mesh that the warning is about.
      key: the subject of the warning, such as an axis.
      text: the warning.
    """
    if _is_new(mesh, key):
        warnings.warn(text, LayoutWarning, stacklevel=caller_stacklevel())


def log_once(mesh: object, text: str) -> None:
    """Logs a line about a mesh, unless it was logged before."""
    if _is_new(mesh, f"log {text}"):
        logging.info("%s", text)


def _is_new(mesh: object, key: str) -> bool:
    """Returns whether a message is new and is to be issued, and stores its key."""
    keys = _keys.setdefault(mesh, set())
    if key in keys or len(keys) >= MAX_MESSAGES:
        return False
    keys.add(key)
    return True
