"""Rates that change, at chosen steps, against what they say."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from tests.support.refusals import refuses


def at(schedule, step):
    return float(schedule(mtf.asarray(mtf.Mesh(""), np.int32(step), "")))


CASES = {
    "linear_warmup": (optimizers.linear_warmup(4), {0: 0.25, 2: 0.75, 3: 1, 99: 1}),
    "linear_decay": (
        optimizers.linear_decay(10, 4),
        {0: 1, 6: 1, 7: 0.75, 9: 0.25, 10: 0, 11: 0},
    ),
    "cosine_decay": (
        optimizers.cosine_decay(10, 0.2),
        {0: 1, 5: 0.6, 10: 0.2, 11: 0.2},
    ),
    "inverse_sqrt": (optimizers.inverse_sqrt(4), {0: 0.5, 3: 0.5, 15: 0.25}),
    "slanted_triangular": (
        optimizers.slanted_triangular(3.2, 20, 0.2, 32.0),
        {0: 0.1, 2: 0.1 + 3.1 / 2, 4: 3.2, 12: 0.1 + 3.1 / 2, 20: 0.1, 30: 0.1},
    ),
    "product": (
        optimizers.product(
            2.0, optimizers.inverse_sqrt(4), 0.5, optimizers.linear_decay(10, 4)
        ),
        {0: 0.5, 7: 0.75 / 8**0.5},
    ),
    "numbers": (optimizers.product(2.0, 0.25), {0: 0.5, 7: 0.5}),
    "delay": (
        optimizers.delay(optimizers.linear_warmup(4), 3),
        {0: 0.25, 3: 0.25, 5: 0.75},
    ),
}


@pytest.mark.parametrize(
    "name, step", [(name, step) for name in CASES for step in CASES[name][1]]
)
def test_rates(name, step):
    schedule, expected = CASES[name]
    assert at(schedule, step) == pytest.approx(expected[step], rel=1e-5, abs=1e-7)


def test_a_product_of_nothing_is_refused():
    with refuses(mtf.PlanError, "at least one factor"):
        optimizers.product()
