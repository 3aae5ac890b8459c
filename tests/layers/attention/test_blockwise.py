"""Blockwise attention: the numbers of plain attention, under every layout, in linear
context.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

LAYOUTS = [
    ("", ""),
    ("x:2;y:2", "length:x;heads:y"),
    ("x:2;y:2", "batch:x;heads:y"),
    ("x:2;y:2", "kv_length:x;length:y"),
]


def arrays(rng):
    return [rng.normal(size=(2, 2, 8, 4)).astype("float32") for _ in range(3)]


def attend(mesh, q, k, v, block, rows=True):
    """Returns attention and its gradients; without a block, by all scores at once."""
    positions = mtf.range(mesh, "length:8")
    context = mtf.rename(positions, "length", "kv_length")

    def bias_of(at):
        visible = layers.mask_bias(
            mtf.outer(at["positions"], context, mtf.greater_equal)
        )
        return visible + layers.distance_slopes(at["positions"], context, "heads:2")

    at = {"positions": positions, "segments": None}
    if block:
        y = layers.blockwise_attention(q, k, v, f"length:{block}", bias_of, at)
    else:
        y = layers.dot_product_attention(q, k, v, bias=bias_of(at))
    return [y, *mtf.gradients([mtf.reduce_sum(mtf.sin(y))], [q, k, v])]


@pytest.mark.parametrize("axes, layout", LAYOUTS)
@pytest.mark.parametrize("block", [2, 4, 8, 16])
def test_blocks_change_no_number(rng, axes, layout, block):
    mesh = mtf.Mesh(axes, layout)
    names = {
        "q": "batch;heads;length;key",
        "k": "batch;heads;kv_length;key",
        "v": "batch;heads;kv_length;key",
    }
    inputs = arrays(rng)

    def run(size):
        step = mtf.function(
            lambda q, k, v: attend(mesh, q, k, v, size), mesh=mesh, **names
        )
        return [x.numpy() for x in step(*inputs)]

    for have, expected in zip(run(block), run(None), strict=True):
        np.testing.assert_allclose(have, expected, atol=2e-6)


def test_scores_of_all_positions_are_never_in_memory():
    mesh = mtf.Mesh("", devices="abstract")
    names = {
        "q": "batch;heads;length;key",
        "k": "batch;heads;kv_length;key",
        "v": "batch;heads;kv_length;key",
    }

    def peak(length, block):
        def step(q, k, v):
            y = (
                layers.blockwise_attention(q, k, v, f"length:{block}")
                if block
                else layers.dot_product_attention(q, k, v)
            )
            return mtf.gradients([mtf.reduce_sum(mtf.sin(y))], [q, k, v])

        array = np.broadcast_to(np.float32(0), [1, 4, length, 16])
        return mtf.explain(
            mtf.function(step, mesh=mesh, **names), *[array] * 3
        ).memory.peak

    assert peak(4096, 64) < 2.2 * peak(2048, 64)
    assert peak(4096, 64) < 0.1 * peak(4096, None)


def test_the_layer_is_multi_head_attention(rng):
    mesh = mtf.Mesh("x:2;y:2", "batch:x;heads:y")
    sizes = ("d_model:8", "heads:2", "key:4")
    plain = layers.MultiHeadAttention(mesh, *sizes)
    small_blocks = layers.BlockwiseAttention(mesh, *sizes, block="length:2")
    x = mtf.asarray(
        mesh, rng.normal(size=(2, 8, 8)).astype("float32"), "batch;length;d_model"
    )
    rope = layers.rope(mtf.range(mesh, "length:8"), "key:4")
    for variable, other in zip(small_blocks.variables, plain.variables, strict=True):
        variable.assign(other.numpy())
    np.testing.assert_allclose(
        small_blocks(x, rope=rope).numpy(), plain(x, rope=rope).numpy(), atol=1e-6
    )


def test_blocks_that_do_not_divide_are_refused(rng):
    mesh = mtf.Mesh("")
    q, k, v = (
        mtf.asarray(mesh, x, names)
        for x, names in zip(
            arrays(rng),
            ["batch;heads;length;key", *["batch;heads;kv_length;key"] * 2],
        )
    )
    with pytest.raises(
        mtf.ShapeError, match="length:8 cannot be split into blocks of 3"
    ):
        layers.blockwise_attention(q, k, v, "length:3")
