"""Prints and assertions of a step run on the mesh; a warning tells those that do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

MESHES = [None, "spmd:cpu:8"]


class Calls(keras.layers.Layer):
    """A layer that calls a function of its input and returns the input."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(name="calls")
        self.function = function

    def call(self, x: Any) -> Any:
        result = self.function(x)
        return x if result is None else result


def fit(function: Callable[[Any], Any], devices: Any = None, value: float = 1) -> Any:
    """Trains a model with the layer for a step, and returns what `distribute` does."""
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(2, name="dense")
    model = keras.Sequential([keras.Input((4,)), Calls(function), dense])
    model.compile("sgd", "mse")
    mesh = mtf.Mesh("data:4; model:2", "batch:data", devices=devices)
    named = mtf.keras.distribute(model, mesh)
    x = np.full((16, 4), value, "float32")
    model.fit(x, np.ones((16, 2)), batch_size=16, verbose=0)
    return named


def is_less(x: Any) -> None:
    tf.debugging.assert_less(tf.reduce_max(x), 2.5, "too large")


@pytest.mark.parametrize("devices", MESHES)
def test_print(devices: Any, capfd: Any) -> None:
    """Once for all devices, in the form of `tf.print`; and names are those without it."""

    def show(x: Any) -> None:
        tf.print("x of", tf.shape(x), x, tf.reduce_sum(x, 0), summarize=1, sep="|")
        tf.print("only text")

    named = fit(show, devices)
    lines = capfd.readouterr().err.splitlines()
    printed = [line for line in lines if line.startswith(("x of", "only"))]
    assert printed == ["x of|[16 4]|[[1 ... 1]", "only text"]
    names = [row.name for row in named.dimensions]
    assert names == [row.name for row in fit(lambda x: None).dimensions]


@pytest.mark.parametrize("devices", MESHES)
def test_assertion(devices: Any) -> None:
    """It raises, with its text, numbers and layer, if the condition is false."""
    fit(is_less, devices)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        fit(is_less, devices, value=3)
    message = str(raised.value)
    assert "too large" in message
    assert "[3]" in message
    assert "the layer sequential" in message
    assert "calls" in message
    assert "{{" not in message


@pytest.mark.parametrize("devices", MESHES)
def test_check_numerics(devices: Any) -> None:
    def check(x: Any) -> Any:
        return tf.debugging.check_numerics(x / (x - 1), "not a number")

    fit(check, devices, value=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number : Tensor"):
        fit(check, devices, value=1)


def test_assertion_of_many_elements() -> None:
    """It tells their shape: they are not gathered."""

    def positive(x: Any) -> None:
        tf.debugging.assert_positive(tf.concat([x, x], 1))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"float32 of shape .16, 8"
    ):
        fit(positive, value=-1)


def test_what_is_left_out_is_told() -> None:
    """What is in a loop, and what depends on sizes that depend on values."""

    def within(x: Any) -> Any:
        def body(k: Any, y: Any) -> Any:
            tf.print("in a loop")
            return k + 1, y * 2

        tf.debugging.assert_equal(tf.size(tf.unique(x[:, 0])[0]), 1)
        return tf.while_loop(lambda k, _: k < 2, body, [0, x], maximum_iterations=2)[1]

    with pytest.warns(UserWarning, match="do not run on the mesh") as warned:
        fit(within)
    message = str(warned[0].message)
    assert "PrintV2 at" in message
    assert "assert_equal" in message


def test_an_imported_function_has_none() -> None:
    """It may be called in a loop, where nothing can have an effect."""
    mesh = mtf.Mesh("data:8", "batch:data")

    def function(x: Any) -> Any:
        is_less(x)
        return x + 1

    spec = tf.TensorSpec([8, 2])
    with pytest.warns(UserWarning, match="Assert at assert_less"):
        mtf.from_tensorflow(function, mesh, spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mtf.from_tensorflow(lambda x: x + 1, mesh, spec)
