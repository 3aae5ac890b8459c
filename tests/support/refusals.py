"""What tests of errors share.

Example:

    with refuses(mtf.LayoutError, "want mesh axis", r"from +mtf\\.einsum", "Give one") as
    error:
      mtf.einsum([x, w], "batch;heads")
    assert "mtf.einsum([x, w]" in line_of(str(error.value), __file__)
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import meshtf as mtf


def ones(mesh, shape, name):
    """An initializer."""
    return mtf.ones(mesh, shape)


def refuses(error, *words):
    """Expects an error whose message has all words (regular expressions), in their
    order.
    """
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def line_of(message, file):
    """Returns the line of a file that a message points at."""
    path = Path(file)
    line_number = int(re.search(re.escape(path.name) + r":(\d+)", message).group(1))
    return path.read_text(encoding="utf-8").split("\n")[line_number - 1]
