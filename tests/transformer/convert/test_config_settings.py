"""What a config.json says: what is read, what must be as it is here, and
activations.
"""

from __future__ import annotations

import pytest

import meshtf as mtf
from transformer.convert.config_settings import Settings, their_activation

SETTINGS = Settings(
    {"n_embd": 16, "n_inner": None, "act": "gelu_new", "odd": "mish", "tied": False}
)


def test_what_is_said():
    assert SETTINGS["n_embd"] == 16
    assert SETTINGS.get("n_inner", 64) == SETTINGS.get("absent", 64) == 64
    assert SETTINGS.get("tied", True) is False
    with pytest.raises(mtf.CheckpointError, match="does not say 'n_layer'"):
        SETTINGS["n_layer"]


def test_what_must_be():
    SETTINGS.require(n_embd=16, absent=True, n_inner=3)
    with pytest.raises(mtf.CheckpointError, match=r"tied: False\n.*tied: True"):
        SETTINGS.require(n_embd=16, tied=True)


def test_activations():
    assert SETTINGS.activation("act") == "gelu"
    assert (
        their_activation("gelu") == "gelu_new"
        and their_activation("gelu_exact") == "gelu"
    )
    with pytest.raises(mtf.CheckpointError, match="'mish'"):
        SETTINGS.activation("odd")
    with pytest.raises(mtf.CheckpointError, match="'selu' has no name"):
        their_activation("selu")
