"""Rotary positions that are scaled for longer texts, as Llama 3.1 publishes them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers import RotaryScaling

SCALING = RotaryScaling(8.0, 1.0, 4.0, 64)


def published(frequency, scaling):
    """Returns the new frequency of a pair, by the cases of Llama 3.1."""
    wave_length = 2 * math.pi / frequency
    if wave_length < scaling.length / scaling.high_frequency:
        return frequency
    if wave_length > scaling.length / scaling.low_frequency:
        return frequency / scaling.factor
    periods = scaling.length / wave_length
    smooth = (periods - scaling.low_frequency) / (
        scaling.high_frequency - scaling.low_frequency
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


@pytest.mark.parametrize(
    "axes, layout, devices",
    [
        ("", "", None),
        ("data:2; model:2", "length:data; key:model", None),
        ("data:2; model:2", "length:data; key:model", "spmd:cpu:4"),
    ],
)
def test_angles(axes, layout, devices):
    mesh = mtf.Mesh(axes, layout, devices=devices)
    old = 100.0 ** -(np.arange(8) / 8)
    new = np.array([published(frequency, SCALING) for frequency in old])
    assert new[0] == old[0] and new[-1] == old[-1] / 8  # all three cases occur
    assert any((new < old) & (new > old / 8))
    angles = np.arange(6)[:, None] * np.concatenate([new, new])

    @mtf.function(mesh=mesh)
    def embedding():
        positions = mtf.range(mesh, "length:6")
        return mtf.layers.rope(positions, "key:16", theta=100.0, scaling=SCALING)

    for x in (
        embedding(),
        mtf.layers.rope(
            mtf.range(mesh, "length:6"), "key:16", theta=100.0, scaling=SCALING
        ),
    ):
        np.testing.assert_allclose(x.cos.numpy(), np.cos(angles), atol=1e-5)
        sign = np.repeat([-1.0, 1.0], 8)
        np.testing.assert_allclose(x.sin.numpy(), sign * np.sin(angles), atol=1e-5)


@pytest.mark.parametrize(
    "numbers", [(0.0, 1.0, 4.0, 64), (8.0, 4.0, 4.0, 64), (8.0, 1.0, 4.0, 0)]
)
def test_numbers_that_are_no_scaling(numbers):
    positions = mtf.range(mtf.Mesh(""), "length:6")
    with pytest.raises(mtf.ParseError, match="scales no rotary positions"):
        mtf.layers.rope(positions, "key:4", scaling=RotaryScaling(*numbers))
