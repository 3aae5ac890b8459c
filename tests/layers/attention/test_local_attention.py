"""Local attention against numpy with masks; what moves where positions are sharded;
refusals.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses

LAYOUTS = ["batch:x;heads:y", "length:x", "length:x;heads:y", "key:x;length:y"]


def random_array(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def masked(q, k, v, visible):
    """Returns attention [b h l k] of flat positions, by a mask [l m] or [b 1 l m]."""
    scores = np.where(
        visible, np.einsum("bhlk,bhmk->bhlm", q, k) / np.sqrt(q.shape[-1]), -np.inf
    )
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhlm,bhmk->bhlk", weights / weights.sum(-1, keepdims=True), v)


def near(size, block, radius):
    """Returns a mask: which positions of one dimension see which."""
    i = np.arange(size)[:, None]
    j = np.arange(size)
    blocks = abs(i // block - j // block) <= 1
    return blocks if radius is None else blocks & (abs(i - j) <= radius)


@pytest.mark.parametrize(
    "block, radius, causal",
    [
        (4, None, True),
        (4, 4, True),
        (4, 3, False),
        (4, None, False),
        (4, 1, False),
        (16, 5, True),
    ],
)
def test_one_dimension(rng, block, radius, causal):
    q, k, v = (random_array(rng, 2, 2, 16, 4) for _ in range(3))
    names = "batch;heads;length;key"
    y, _ = agree(
        lambda mesh: (
            None,
            lambda q, k, v: layers.local_attention(
                q,
                k,
                v,
                [("length", block)],
                causal=causal,
                radius="" if radius is None else [("length", radius)],
            ),
        ),
        {"q": (q, names), "k": (k, names), "v": (v, names)},
        LAYOUTS if radius is None else LAYOUTS[1:2],
    )
    visible = near(16, block, radius) & (np.tri(16, dtype=bool) if causal else True)
    np.testing.assert_allclose(y, masked(q, k, v, visible), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "radius, causal",
    [("", False), ("height:1", True), ("", True), ("height:2;width:1", False)],
)
def test_images(rng, radius, causal):
    q, k, v = (random_array(rng, 2, 2, 8, 4, 4) for _ in range(3))
    names = "batch;heads;height;width;key"
    y, _ = agree(
        lambda mesh: (
            None,
            lambda q, k, v: layers.local_attention(
                q, k, v, "height:2;width:2", radius=radius, causal=causal
            ),
        ),
        {"q": (q, names), "k": (k, names), "v": (v, names)},
        ["height:x;width:y", "batch:x;height:y"] if not radius else ["width:x"],
    )
    reach = {d.name: d.size for d in mtf.Shape(radius)}
    rows, columns = (
        near(size, 2, reach.get(name)) for name, size in (("height", 8), ("width", 4))
    )
    visible = (rows[:, None, :, None] & columns[None, :, None, :]).reshape(32, 32)
    visible &= np.tri(32, dtype=bool) if causal else True
    flat = [x.reshape(2, 2, 32, 4) for x in (q, k, v)]
    np.testing.assert_allclose(
        y, masked(*flat, visible).reshape(y.shape), rtol=1e-4, atol=1e-5
    )


def test_segments(rng):
    q, k, v = (random_array(rng, 2, 2, 8, 4) for _ in range(3))
    segments = np.array([[1, 1, 1, 2, 2, 2, 3, 3], [0, 0, 0, 0, 0, 1, 1, 0]], "int32")
    names = "batch;heads;length;key"
    y, _ = agree(
        lambda mesh: (
            None,
            lambda q, k, v, s: layers.local_attention(
                q, k, v, "length:4", segments=s, causal=True
            ),
        ),
        {
            "q": (q, names),
            "k": (k, names),
            "v": (v, names),
            "s": (segments, "batch;length"),
        },
        ["length:x", "batch:x"],
    )
    same = segments[:, None, :, None] == segments[:, None, None, :]
    np.testing.assert_allclose(
        y, masked(q, k, v, same & np.tri(8, dtype=bool)), rtol=1e-4, atol=1e-5
    )


def test_layer(rng):
    def make(mesh):
        local = layers.LocalAttention(
            mesh,
            "d:8",
            "heads:2",
            "key:4",
            "length:4",
            dropout_rate=0.25,
            kv_heads_dim="",
        )
        rope = layers.rope(mtf.range(mesh, "length:16"), "key:4")
        return local, lambda x: local(x, rope=rope, training=True, sink_logit=0.0)

    x = random_array(rng, 2, 16, 8)
    agree(make, {"x": (x, "batch;length;d")}, ["length:x;heads:y", "batch:x", "d:x"])


def test_a_layer_of_images(rng):
    def make(mesh):
        local = layers.LocalAttention(
            mesh, "d:8", "heads:2", "key:4", "height:2;width:2"
        )
        return local, local

    x = random_array(rng, 2, 8, 4, 8)
    y, _ = agree(
        make,
        {"x": (x, "batch;height;width;d")},
        ["height:x;heads:y", "height:x;width:y"],
    )
    changed = x.copy()
    changed[:, 5, 1] += 1.0
    changed_output, _ = agree(make, {"x": (changed, "batch;height;width;d")}, [])
    seen = np.abs(changed_output - y).max((0, -1)) > 1e-5
    np.testing.assert_array_equal(
        np.flatnonzero(seen),
        np.flatnonzero(np.array([[0] * 4] * 5 + [[0, 1, 1, 1]] + [[1] * 4] * 2)),
    )


def test_layer_equals_attention_with_a_mask(rng):
    mesh = mtf.Mesh("x:2", "length:x")
    x = mtf.asarray(mesh, random_array(rng, 2, 16, 8), "batch;length;d")
    local = layers.LocalAttention(
        mesh, "d:8", "heads:2", "key:4", "length:4", "length:3"
    )
    full_attention = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4")
    ahead = mtf.outer(
        mtf.range(mesh, "kv_length:16"), mtf.range(mesh, "length:16"), mtf.subtract
    )
    bias = layers.mask_bias((ahead <= 0) & (ahead >= -3))
    np.testing.assert_allclose(
        local(x).numpy(), full_attention(x, bias=bias).numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("radius, rows", [("", 128), ("length:16", 16)])
def test_only_rows_next_to_a_slice_move(radius, rows):
    mesh = mtf.Mesh("x:4", "length:x", devices="abstract")

    @mtf.function(
        mesh=mesh, q="heads;length;key", k="heads;length;key", v="heads;length;key"
    )
    def attention(q, k, v):
        y = layers.local_attention(q, k, v, "length:128", radius=radius, causal=True)
        return y, mtf.gradients([mtf.reduce_sum(mtf.square(y))], [q, k, v])

    x = np.zeros([2, 1024, 8], "float32")
    forecast = mtf.explain(attention, x, x, x)
    assert {collective.kind for collective in forecast.collectives} == {"window"}
    # Keys and values, and their gradients: one block's rows each, at most, on its way
    # each time.
    assert 0 < forecast.bytes_moved() <= 4 * 2 * rows * 8 * 4


def test_what_is_refused():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "batch:2;heads:2;length:12;key:4")
    with refuses(
        mtf.ShapeError, "length:12 cannot be split into blocks of 8", "mtf.pad"
    ):
        layers.local_attention(x, x, x, "length:8")
    with refuses(
        mtf.ShapeError, 'a radius of 5 along "length" is not within', "block of 4"
    ):
        layers.local_attention(x, x, x, "length:4", radius="length:5")
    with refuses(mtf.ShapeError, 'no dimension "width"'):
        layers.local_attention(x, x, x, "length:4", radius="width:5")
    with refuses(mtf.ShapeError, 'no dimension "lenght"'):
        layers.local_attention(x, x, x, "lenght:4")
    both = layers.LocalAttention(
        mesh, "d:8", "heads:2", "key:4", "length:4", causal=False
    )
    with refuses(mtf.ShapeError, "steps are for causal attention along one dimension"):
        both.init_cache(mtf.ones(mesh, "batch:2;d:8"))
