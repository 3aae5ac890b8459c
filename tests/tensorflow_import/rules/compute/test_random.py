"""Random numbers of imported functions: by the seed, under every layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.tensorflow_import.imported import AXES, imported

LAYOUTS = ("", "batch:data", "batch:model; features:data")
DRAWS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "uniform": lambda seed: tf.random.stateless_uniform([64, 32], seed),
    "normal": lambda seed: tf.random.stateless_normal([64, 32], seed),
    "truncated": lambda seed: tf.random.stateless_truncated_normal([64, 32], seed),
    "integers": lambda seed: tf.random.stateless_uniform(
        [64, 32], seed, 0, 7, dtype=tf.int32
    ),
    "gamma": lambda seed: tf.random.stateless_gamma([64, 32], seed, 3.0),
    "small gamma": lambda seed: tf.random.stateless_gamma([64, 32], seed, 0.5),
    "shuffled": lambda seed: tf.reshape(
        tf.random.experimental.stateless_shuffle(tf.range(64 * 32), seed), [64, 32]
    ),
    "classes": lambda seed: tf.random.stateless_categorical(
        tf.zeros([64, 7]), 32, seed
    ),
}


def _drawn(draw: Callable, seed: tuple[int, int], layout: str) -> np.ndarray:
    """Returns a draw, on data that name its dimensions."""
    arrays = [np.asarray(seed, "int32"), np.zeros([64, 32], "float32")]

    def function(key: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.cast(draw(key), x.dtype) + x

    return imported(function, arrays).run(mtf.Mesh(AXES, layout), arrays, False)[0]


@pytest.mark.parametrize("name", DRAWS)
def test_equal_under_layouts(name: str) -> None:
    drawn = [_drawn(DRAWS[name], (3, 4), layout) for layout in LAYOUTS]
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], drawn[2])
    other = _drawn(DRAWS[name], (3, 5), LAYOUTS[1])
    assert not np.array_equal(drawn[0], other)
    mean, width = {
        "uniform": (0.5, 12**-0.5),
        "normal": (0.0, 1.0),
        "truncated": (0.0, 0.88),
        "gamma": (3.0, 3.0**0.5),
        "small gamma": (0.5, 0.5**0.5),
        "shuffled": (1023.5, 2048 / 12**0.5),
        "integers": (3.0, 2.0),
        "classes": (3.0, 2.0),
    }[name]
    assert abs(drawn[0].mean() - mean) < 0.1 * width
    assert abs(drawn[0].std() - width) < 0.1 * width


def test_draws_without_a_seed_of_their_own() -> None:
    """They follow the seed of the run; two of them differ."""
    arrays = [np.zeros([64, 32], "float32")]

    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x + tf.random.uniform([64, 32]), x + tf.random.uniform([64, 32])

    program = imported(function, arrays)
    first, second = program.run(mtf.Mesh(AXES, "batch:data"), arrays, False)
    again, _ = program.run(mtf.Mesh(AXES, "features:data"), arrays, False)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)
