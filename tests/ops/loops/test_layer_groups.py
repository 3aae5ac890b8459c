"""The layers that a pipeline computes in each of its groups, and how they move there."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.graph.arguments import as_tensor
from meshtf.ops.loops.layer_groups import into_groups, out_of_groups
from meshtf.ops.loops.schedule import Schedule


def schedule(num_layers, num_stages, repeats):
    return Schedule(
        dim=mtf.Dimension("layers", num_layers),
        axes=("stage",),
        batch=mtf.Dimension("batch", 4),
        num_stages=num_stages,
        num_microbatches=2,
        repeats=repeats,
    )


def test_a_group_has_consecutive_layers():
    mesh = mtf.Mesh("")
    x = mtf.asarray(mesh, np.arange(8.0), "layers:8")
    groups = into_groups(x, schedule(8, 2, 2))
    assert groups.shape.names == ("layers", ".repeat", ".layers")
    np.testing.assert_array_equal(groups.numpy(), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
    without = into_groups(x, schedule(8, 2, 1))
    assert without.shape.names == ("layers", ".layers")


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("num_layers", [5, 6, 12])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_out_of_groups(num_layers, num_stages, repeats):
    mesh = mtf.Mesh("")
    values = np.arange(3.0 * num_layers).reshape(3, num_layers)
    x = mtf.asarray(mesh, values, f"d:3; layers:{num_layers}")
    groups = into_groups(x, schedule(num_layers, num_stages, repeats))
    y = out_of_groups(groups, schedule(num_layers, num_stages, repeats))
    assert y.shape == mtf.Shape(f"layers:{num_layers}; d:3")
    np.testing.assert_array_equal(y.numpy(), values.T)


def moves(layout, shape, **settings):
    """Returns the collectives that bring a variable into groups, and its gradient back."""
    mesh = mtf.Mesh("stage:4; data:2; model:2", layout, **settings)
    ones = mtf.layers.initializers.ones
    w = mtf.Variable(mesh, shape, ones, name="w")

    @mtf.function(mesh=mesh)
    def step():
        groups = into_groups(as_tensor("w", w), schedule(16, 4, 2))
        loss = mtf.reduce_sum(mtf.square(groups))
        return mtf.gradients([loss], [w])

    return [c for c in step.lower().collectives if "layers" in str(c)]


@pytest.mark.parametrize(
    "layout, settings",
    [
        ("layers:stage", {}),
        ("layers:stage; d_ff:model", {}),
        ("layers:stage; d_ff:model", {"variable_layout": "d_model:data"}),
    ],
)
def test_layers_move_by_two_all_to_alls(layout, settings):
    collectives = moves(layout, "layers:16; d_model:16; d_ff:32", **settings)
    assert len(collectives) == 4
    assert all("all_to_all over stage" in str(c) for c in collectives)


def test_layers_without_a_dimension_to_shard_are_gathered():
    collectives = moves("layers:stage", "layers:16; d_model:6")
    assert len(collectives) >= 2
    assert all("all_gather over stage" in str(c) for c in collectives)
