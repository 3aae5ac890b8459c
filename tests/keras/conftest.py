"""Keras runs on TensorFlow, and in float64 where a test does not say otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import pytest


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Makes float64 the type of new models."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])
