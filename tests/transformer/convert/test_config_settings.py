"""Settings of config.json: those that are read, those that must have one value, and
activations.
"""

from __future__ import annotations

import pytest

import meshtf as mtf
from transformer.convert.config_settings import Settings, hugging_face_activation

SETTINGS = Settings(
    {"n_embd": 16, "n_inner": None, "act": "gelu_new", "odd": "mish", "tied": False}
)


def test_settings_of_config_json():
    assert SETTINGS["n_embd"] == 16
    assert SETTINGS.get("n_inner", 64) == SETTINGS.get("absent", 64) == 64
    assert SETTINGS.get("tied", True) is False
    with pytest.raises(mtf.CheckpointError, match="has no 'n_layer'"):
        SETTINGS["n_layer"]


def test_what_must_be():
    SETTINGS.require(n_embd=16, absent=True, n_inner=3)
    with pytest.raises(mtf.CheckpointError, match=r"tied: False\n.*tied: True"):
        SETTINGS.require(n_embd=16, tied=True)


def test_activations():
    assert SETTINGS.activation("act") == "gelu"
    assert (
        hugging_face_activation("gelu") == "gelu_new"
        and hugging_face_activation("gelu_exact") == "gelu"
    )
    with pytest.raises(mtf.CheckpointError, match="'mish'"):
        SETTINGS.activation("odd")
    with pytest.raises(mtf.CheckpointError, match="no name for the activation 'selu'"):
        hugging_face_activation("selu")
