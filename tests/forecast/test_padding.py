"""Padding in forecasts: bytes, FLOPs, and the remark on sizes without it."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.mark.parametrize(
    ("rows", "axes", "local", "note"),
    [
        (8, "data:4", 2, ""),
        (
            5,
            "data:4",
            2,
            "rows:5 over data is stored as 8: 60% more memory and work; "
            "sizes without padding: 4 or 8.",
        ),
        (
            3,
            "data:4",
            1,
            "rows:3 over data is stored as 4: 33% more memory and work; "
            "sizes without padding: 4.",
        ),
        (39, "data:4", 10, ""),
        (
            9,
            "data:2; fsdp:2",
            3,
            "rows:9 over data+fsdp is stored as 12: 33% more memory "
            "and work; sizes without padding: 8 or 12.",
        ),
    ],
)
def test_padding_is_counted_and_told(rows, axes, local, note):
    layout = "rows:data+fsdp" if "fsdp" in axes else "rows:data"
    mesh = mtf.Mesh(axes, layout, devices="abstract")
    function = mtf.function(lambda x: x * 2.0, mesh=mesh, x="rows;d")
    forecast = mtf.explain(function, np.ones((rows, 100), "float32"))
    assert forecast.notes == ((note,) if note else ())
    (multiply,) = (op for op in forecast.ops if op.title == "multiply")
    assert multiply.flops == pytest.approx(local * 100)
    assert forecast.memory.arguments == local * 100 * 4
