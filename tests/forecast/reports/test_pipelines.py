"""What a forecast says of the scans that are pipelines."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.ops.loops.pipelined_layers import Scanned, arrays, dense


def forecast(num_layers=8, **settings):
    scanned = Scanned(dense, num_layers, **settings)
    step = scanned.function()
    return mtf.explain(step, *arrays(num_layers))


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 6, 8, 12, 24])
@pytest.mark.parametrize("stages", [2, 4])
def test_numbers(stages, microbatches, repeats):
    (pipeline,) = forecast(
        axes=f"stage:{stages}",
        layout="layers:stage",
        microbatches=microbatches,
        repeats=repeats,
    ).pipelines
    assert (pipeline.stages, pipeline.repeats) == (stages, repeats)
    assert (pipeline.dim, pipeline.axes) == ("layers", ("stage",))
    assert pipeline.layers == 8 // stages // repeats
    assert pipeline.microbatches == microbatches
    if microbatches % stages == 0:
        # Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
        formula = (stages - 1) / (repeats * microbatches + stages - 1)
        np.testing.assert_allclose(pipeline.bubble, formula)


def test_drawing():
    mesh = {"axes": "stage:3", "layout": "layers:stage", "microbatches": 4}
    (pipeline,) = forecast(**mesh).pipelines
    assert str(pipeline).splitlines() == [
        "stage 0   ####..",
        "stage 1   .####.",
        "stage 2   ..####",
    ]
    text = str(forecast(**mesh, repeats=2))
    assert "3 stages x 2 x 2 layers, 4 microbatches" in text
    assert "12 ticks, 33.3% bubble" in text
    assert "stage 1   .1111..2222." in text


def test_scans_that_are_none():
    assert forecast(axes="data:2", layout="batch:data").pipelines == ()
