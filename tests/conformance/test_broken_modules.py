"""The suite of exported modules must fail for every broken collective, window or
coordinate.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.indexing.gather import Gather
from meshtf.ops.indexing.one_hot_and_range import OneHot
from meshtf.ops.reductions.reduce import Reduce
from meshtf.ops.scans.cumulative import Scan
from meshtf.ops.shapes.reshape import Rename
from meshtf.ops.shapes.slice import Concat, Slice
from meshtf.runtime.spmd.module import replica, stablehlo_collectives, window_exchange
from meshtf.testing import check_export, difference
from meshtf.testing.conformance.exported_suite import run_exported


def wrong_groups(groups):
    """Returns groups along the other axis of a 2x2 mesh; of a group along both axes, the
    wrong order.
    """
    return tuple(zip(*groups)) if len(groups) > 1 else tuple(backwards(groups))


def backwards(groups):
    """Returns each group in the wrong order."""
    return [tuple(reversed(group)) for group in groups]


def swapped(real):
    """Returns the coordinates of the other axis."""

    def coordinates(mesh):
        results = real(mesh)
        return dict(zip(results, reversed(results.values())))

    return coordinates


# What is broken: (op whose samples need it, where it stands, its name, what takes its
# place).
LIES = {
    "all_reduce among the wrong replicas": (
        Reduce,
        stablehlo_collectives,
        "all_reduce",
        lambda real: lambda x, groups, kind: real(x, wrong_groups(groups), kind),
    ),
    "all_reduce of maxima as minima": (
        Reduce,
        stablehlo_collectives,
        "all_reduce",
        lambda real: (
            lambda x, groups, kind: real(x, groups, "min" if kind == "max" else kind)
        ),
    ),
    "all_reduce left out": (
        Reduce,
        stablehlo_collectives,
        "all_reduce",
        lambda real: lambda x, groups, kind: x,
    ),
    "reduce_scatter gives the other piece": (
        Gather,
        stablehlo_collectives,
        "reduce_scatter",
        lambda real: (
            lambda x, groups, kind, axis: real(x, backwards(groups), kind, axis)
        ),
    ),
    "all_gather in the wrong order": (
        Rename,
        stablehlo_collectives,
        "all_gather",
        lambda real: lambda x, groups, axis: real(x, backwards(groups), axis),
    ),
    "all_to_all among the wrong replicas": (
        Rename,
        stablehlo_collectives,
        "all_to_all",
        lambda real: (
            lambda x, groups, split_axis, concat_axis: real(
                x, wrong_groups(groups), split_axis, concat_axis
            )
        ),
    ),
    "told in the wrong order": (
        Scan,
        stablehlo_collectives,
        "stack",
        lambda real: lambda x, groups: real(x, backwards(groups)),
    ),
    "coordinates of the other axis": (OneHot, replica, "_coordinates", swapped),
    "window from the wrong side": (
        Concat,
        window_exchange,
        "permute",
        lambda real: (
            lambda x, pairs: real(x, [(target, source) for source, target in pairs])
        ),
    ),
    "window one row late": (
        Concat,
        window_exchange,
        "_slice_axis",
        lambda real: lambda x, axis, start, length: real(x, axis, start + 1, length),
    ),
    "window not filled": (
        Slice,
        window_exchange,
        "_fill_outside",
        lambda real: lambda x, axis, low, size, fill: x,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_broken_runtime_is_detected(lie, seed, monkeypatch):
    op, module_name, name, replace = lie
    monkeypatch.setattr(module_name, name, replace(getattr(module_name, name)))
    report = check_export(op, seed, meshes=["x:2;y:2"], fail_fast=True)
    assert any("values at" in text for text in report.failures), report


def test_a_missing_permute_is_detected(monkeypatch):
    mesh = mtf.Mesh("x:2;y:2", "b:x;d:y")
    array = np.arange(16, dtype="float32").reshape(4, 4)
    x = mtf.asarray(mesh, array, "b;d")

    def moved():
        (y,) = run_exported(lambda x: [mtf.shard(x, "b:y;d:x")], [x])
        return difference(y, x.shape, array)

    assert moved() == ""
    monkeypatch.setattr(stablehlo_collectives, "permute", lambda x, pairs: x)
    assert "values at (0, 1)" in moved()
