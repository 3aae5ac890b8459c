"""Attention by all_to_all: the numbers of plain attention, with heads sharded inside."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

MESHES = [
    ("", ""),
    ("seq:4", "length:seq"),
    ("seq:2;model:2", "length:seq;heads:model"),
    ("model:2;seq:2", "length:seq;heads:model"),
    ("data:2;seq:2", "batch:data;length:seq;kv_length:seq"),
]


def step_of(mesh, block, heads="heads"):
    def step(q, k, v):
        positions = mtf.range(mesh, "length:8")
        kv_positions = mtf.rename(positions, "length", "kv_length")

        def bias_of(queries, keys):
            visible = mtf.outer(queries, keys, mtf.greater_equal)
            return layers.mask_bias(visible)

        if block:
            y = layers.all_to_all_attention(
                q, k, v, f"length:{block}", heads, bias_of, positions, kv_positions
            )
        else:
            y = layers.dot_product_attention(
                q, k, v, bias=bias_of(positions, kv_positions)
            )
        return [y, *mtf.gradients([mtf.reduce_sum(mtf.sin(y))], [q, k, v])]

    return mtf.function(step, mesh=mesh)


def run(axes, layout, block, shapes, rng, heads="heads"):
    mesh = mtf.Mesh(axes, layout)
    inputs = [
        mtf.asarray(
            mesh, rng.normal(size=mtf.Shape(shape).sizes).astype("float32"), shape
        )
        for shape in shapes
    ]
    return [x.numpy() for x in step_of(mesh, block, heads)(*inputs)]


@pytest.mark.parametrize("kv_heads", ["heads:4;", ""])
@pytest.mark.parametrize("axes, layout", MESHES)
def test_numbers_are_those_of_plain_attention(axes, layout, kv_heads):
    key = f"batch:2;{kv_heads}kv_length:8;key:4"
    shapes = ["batch:2;heads:4;length:8;key:4", key, key]
    expected = run("", "", None, shapes, np.random.default_rng(0))
    for block in (4, 8):
        have = run(axes, layout, block, shapes, np.random.default_rng(0))
        for x, y in zip(have, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=3e-6)


def forward_collectives(axes, layout, q, k, heads):
    mesh = mtf.Mesh(axes, layout, devices="abstract")

    def step(q, k, v):
        return layers.all_to_all_attention(q, k, v, "length:8", heads)

    forecast = mtf.explain(
        mtf.function(step, mesh=mesh), *(mtf.zeros(mesh, shape) for shape in (q, k, k))
    )
    return sorted((c.kind, c.bytes) for c in forecast.collectives)


def test_bytes_are_those_of_four_all_to_alls():
    q, k = "heads:4;length:8;key:4", "heads:4;kv_length:8;key:4"
    shard = 4 * 8 * 4 * 4 / 4  # bytes of a device's shard of queries
    collectives = forward_collectives(
        "seq:4", "length:seq;kv_length:seq", q, k, "heads"
    )
    assert {kind for kind, _ in collectives} == {"all_to_all"}
    assert sum(size for _, size in collectives) == 4 * shard * 3 / 4


def test_heads_of_keys_come_first():
    """Keys and values are gathered only where no axis divides their heads."""
    collectives = forward_collectives(
        "seq:2",
        "length:seq;kv_length:seq",
        "heads:2;groups:2;length:8;key:4",
        "groups:2;kv_length:8;key:4",
        "heads groups",
    )
    assert {kind for kind, _ in collectives} == {"all_to_all"}
    collectives = forward_collectives(
        "seq:2",
        "length:seq;kv_length:seq",
        "heads:2;groups:3;length:8;key:4",
        "groups:3;kv_length:8;key:4",
        "heads groups",
    )
    assert {kind for kind, _ in collectives} == {"all_gather", "all_to_all"}


def test_heads_that_no_axis_divides_are_refused():
    mesh = mtf.Mesh("seq:4", "length:seq")
    q = mtf.zeros(mesh, "heads:3;length:8;key:4")
    k = mtf.zeros(mesh, "heads:3;kv_length:8;key:4")
    with pytest.raises(mtf.LayoutError, match=r"(?s)seq.*heads:3.*ring attention"):
        layers.all_to_all_attention(q, k, k, "length:8")
