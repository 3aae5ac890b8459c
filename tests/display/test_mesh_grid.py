"""Drawings of placements: a cell for each position, colours by shard."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.display import MAX_POSITIONS, html_placement, placement_text


def cells(html):
    """Returns the labels of all cells, and how many colours there are."""
    found = re.findall(r"<td style=\"[^\"]*background:([^\"]*)\">([^<]*)</td>", html)
    return [label for _, label in found], len({colour for colour, _ in found})


@pytest.mark.parametrize(
    "layout, labels, colours",
    [
        ("", ["all"] * 4, 1),
        ("b:x", ["b 0:4", "b 0:4", "b 4:8", "b 4:8"], 2),
        (
            "b:x;d:y",
            ["b 0:4, d 0:1", "b 0:4, d 1:2", "b 4:8, d 0:1", "b 4:8, d 1:2"],
            4,
        ),
    ],
)
def test_shards_have_colours(layout, labels, colours):
    x = mtf.asarray(mtf.Mesh("x:2;y:2", layout), np.ones((8, 2)), "b;d")
    assert cells(x._repr_html_()) == (labels, colours)
    assert "1." in x._repr_html_().partition("<pre")[2]  # and the values
    v = mtf.Variable(x.mesh, "b:8;d:2", "zeros", "v")
    assert cells(v._repr_html_()) == (labels, colours)


def test_a_dimension_over_two_axes_has_shards_of_both():
    states = {"x": "b", "y": "b"}
    drawing = html_placement("b", {"x": 2, "y": 2}, states, {"b": 8})
    assert cells(drawing)[0] == ["b 0:2", "b 2:4", "b 4:6", "b 6:8"]


def test_shards_of_another_order_and_with_padding():
    mesh = mtf.Mesh("x:2;y:2", "b:y+x")
    even = mtf.asarray(mesh, np.ones(8), "b")
    assert placement_text(mesh.states(even.placement)) == "b/y b/x"
    labels, _colours = cells(even._repr_html_())
    assert labels == ["b 0:2", "b 4:6", "b 2:4", "b 6:8"]
    labels, _colours = cells(mtf.asarray(mesh, np.ones(5), "b")._repr_html_())
    assert labels == ["b 0:2", "b 3:5", "b 2:3", "b 5:5"]


def test_partial_sums_and_stages():
    mesh = mtf.Mesh("stage:2;x:2", "d:x")
    x = mtf.asarray(mesh, np.ones((8, 2)), "b;d")
    partial = mtf.einsum([x, x], "b")
    assert "partial sum over x" in partial._repr_html_()
    assert placement_text(mesh.states(partial.placement)) == "+x"
    with mtf.stage(1):
        v = mtf.Variable(mesh, "d:2", "zeros", "v")
    assert cells(v._repr_html_())[0] == ["", "", "d 0:1", "d 1:2"]
    assert placement_text(mesh.states(v.placement)) == "stage 1 of stage d/x"


def test_large_meshes_are_cut_off():
    mesh = mtf.Mesh("x:32;y:32", "b:x", devices="abstract")
    v = mtf.Variable(mesh, "b:32", "zeros", "v")
    labels, _ = cells(v._repr_html_())
    assert len(labels) == MAX_POSITIONS
    assert f"... and {1024 - MAX_POSITIONS} more positions" in v._repr_html_()
    assert len(cells(mesh._repr_html_())[0]) == MAX_POSITIONS


def test_meshes_show_their_devices():
    html = mtf.Mesh("x:2", devices=["CPU:0", "CPU:<1>"])._repr_html_()
    assert cells(html)[0] == ["CPU:0", "CPU:&lt;1&gt;"]


def test_recorded_tensors_have_no_drawing():
    @mtf.function(x="b", mesh=mtf.Mesh("x:2"))
    def drawn(x):
        assert "<table" not in x._repr_html_()
        return x

    drawn(np.ones(2, "float32"))
