"""Layers that take the size of the batch as a number are no pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.ops.loops.pipelined_layers import dense, run

PIPELINE = {"axes": "stage:2; data:2", "layout": "layers:stage; batch:data"}


def mean_by_size(h, inputs, outside):
    h, _, _ = dense(h, inputs, outside)
    return h, None, mtf.reduce_sum(h, "batch") / h.shape["batch"]


def scaled_by_size(h, inputs, outside):
    scale = mtf.full(h.mesh, "", 8.0 / h.shape["batch"], dtype=h.dtype)
    return dense(h, inputs, outside)[0] * scale, None, None


def sized_in_a_loop(h, inputs, outside):
    def step(y, _):
        return y * (1.0 / h.shape["batch"]), None

    h, _, _ = dense(h, inputs, outside)
    y, _ = mtf.scan(step, h, None, "steps", length=2)
    return h + y, None, None


def longer_for_small_batches(h, inputs, outside):
    if h.shape["batch"] < 24:
        h = mtf.sin(h)
    return dense(h, inputs, outside)


LAYERS = [mean_by_size, scaled_by_size, sized_in_a_loop, longer_for_small_batches]


@pytest.mark.parametrize("layer", LAYERS)
def test_numbers_of_the_batch_are_refused(layer):
    with pytest.raises(mtf.PlanError, match="as a number") as e:
        run(layer, **PIPELINE, microbatches=4)
    assert 'mtf.layout("layers:")' in str(e.value)
    assert "test_batch_size.py:" in str(e.value) or layer is longer_for_small_batches


@pytest.mark.parametrize("layer", LAYERS[:2])
def test_without_microbatches_they_are_right(layer):
    with pytest.warns(mtf.LayoutWarning, match="as a number"):
        results = run(layer, **PIPELINE)
    for y, value in zip(results, run(layer), strict=True):
        np.testing.assert_allclose(y, value, rtol=1e-10)


def test_one_microbatch_has_the_size_of_the_batch():
    results = run(mean_by_size, **PIPELINE, microbatches=1)
    for y, value in zip(results, run(mean_by_size), strict=True):
        np.testing.assert_allclose(y, value, rtol=1e-10)
