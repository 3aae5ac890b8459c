"""An outline has the totals of the forecast."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.outline import outline
from meshtf.function.without_running import as_function
from meshtf.hardware import as_hardware
from meshtf.partition import build
from tests.layout_search.programs import STACK_ARGUMENTS, stack

H100 = as_hardware("h100")


def check(fn, *args):
    """Compares the outline of a call with its forecast."""
    function, args = as_function(fn, args)
    recorded = function.record_call(args, {}).recorded
    program = build(recorded.nodes, recorded.results, recorded.mesh)
    totals = outline(program, H100)
    forecast = function.forecast_call(args, {}, under_xla=True, hardware=H100)
    assert totals.time == forecast.time
    assert totals.peak == forecast.memory.peak
    assert totals.received == pytest.approx(forecast.bytes_moved())
    return totals


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "batch:data"},
        {"layout": "batch:data; d_ff:model", "optimizer_layout": "d_model:data"},
        {"layout": "batch:data", "variable_layout": "d_model:data"},
    ],
)
def test_the_totals_of_a_training_step(settings, microbatches):
    mesh = mtf.Mesh("data:4; model:2", devices="abstract", **settings)
    totals = check(stack(mesh, microbatches=microbatches), *STACK_ARGUMENTS)
    assert totals.received > 0


def test_windows_statistics_and_branches():
    mesh = mtf.Mesh("data:4", "length:data", devices="abstract")

    @mtf.function(mesh=mesh, x="batch;length")
    def f(x):
        y = mtf.cumsum(mtf.softmax(mtf.shift(x, "length", 1), "length"), "length")
        is_large = mtf.reduce_sum(y) > 3.0
        return mtf.cond(is_large, lambda: mtf.reduce_sum(y), lambda: mtf.reduce_max(y))

    assert check(f, np.zeros([8, 64], "float32")).received > 0


def test_a_pipeline_has_the_peak_of_its_fullest_stage():
    mesh = mtf.Mesh("stage:2; data:2", "batch:data", devices="abstract")
    with mtf.stage(0):
        first = mtf.Variable(mesh, "d:64; e:64", "zeros", "first")
    with mtf.stage(1):
        second = mtf.Variable(mesh, "e:64; f:8", "zeros", "second")

    @mtf.function(mesh=mesh, x="batch; d")
    def f(x):
        with mtf.stage(0):
            h = mtf.einsum([x, first], "batch; e")
        with mtf.stage(1):
            return mtf.einsum([h, second], "batch; f")

    check(f, np.zeros([8, 64], "float32"))
