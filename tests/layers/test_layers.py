"""Layers against numpy, on one device and under layouts that shard every name
they have.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

MESHES = [
    ("", ""),
    ("data:2;model:2", "batch:data;heads:model;d_ff:model;vocab:model"),
    ("data:2;model:2", "length:data;d_model:model"),
    ("data:2;model:2", "key:data;kv_length:model"),
]


@pytest.fixture(params=MESHES, ids=[layout or "one device" for _, layout in MESHES])
def mesh(request):
    return mtf.Mesh(*request.param)


def close(have, expected):
    np.testing.assert_allclose(have.numpy(), expected, rtol=2e-5, atol=2e-5)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_dense(mesh, rng):
    x = rng.normal(size=(4, 8)).astype("float32")
    dense = layers.Dense(mesh, "d_model:8", "heads:4;d_kv:12")
    dense.bias.assign(rng.normal(size=(4, 12)).astype("float32"))
    y = dense(mtf.asarray(mesh, x, "batch:4;d_model:8"))
    assert y.shape == mtf.Shape("batch:4;heads:4;d_kv:12")
    close(y, np.einsum("bd,dhf->bhf", x, dense.kernel.numpy()) + dense.bias.numpy())
    assert {v.name for v in dense.variables} == {"dense/kernel", "dense/bias"}


def test_norms(mesh, rng):
    x = rng.normal(size=(4, 8)).astype("float32") * 3 + 1
    scale, bias = rng.normal(size=(2, 8)).astype("float32")
    named = mtf.asarray(mesh, x, "batch:4;d_model:8")
    norm = layers.LayerNorm(mesh, "d_model:8")
    norm.scale.assign(scale)
    norm.bias.assign(bias)
    centred = x - x.mean(-1, keepdims=True)
    stddev = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    close(norm(named), centred / stddev * scale + bias)
    rms = layers.RMSNorm(mesh, "d_model:8")
    rms.scale.assign(scale)
    close(rms(named), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale)


def test_embedding(mesh, rng):
    embed = layers.Embedding(mesh, "vocab:12", "d_model:8")
    table = embed.table.numpy()
    ids = rng.integers(0, 12, (4, 4)).astype("int32")
    x = embed(mtf.asarray(mesh, ids, "batch:4;length:4"))
    close(x, table[ids])
    close(embed.attend(x), table[ids] @ table.T)


def attend(q, k, v, mask):
    """Returns attention of heads: q [b l h k], k and v [b m h k], mask [l m]."""
    scores = np.einsum("blhk,bmhk->bhlm", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("bhlm,bmhk->blhk", softmax(np.where(mask, scores, -np.inf)), v)


@pytest.mark.parametrize(
    "causal, cross", [(True, False), (False, False), (False, True)]
)
def test_attention(mesh, rng, causal, cross):
    x = rng.normal(size=(2, 4, 8)).astype("float32")
    context = rng.normal(size=(2, 8, 8)).astype("float32") if cross else x
    attention = layers.MultiHeadAttention(mesh, "d_model:8", "heads:4", "key:4")
    w = {
        part: getattr(attention, part).kernel.numpy()
        for part in ("query", "key", "value", "output")
    }
    q = np.einsum("bld,dhk->blhk", x, w["query"])
    k, v = (np.einsum("bmd,dhk->bmhk", context, w[name]) for name in ("key", "value"))
    mask = np.tri(4, dtype=bool) if causal else np.ones((4, context.shape[1]), bool)
    results = attention(
        mtf.asarray(mesh, x, "batch:2;length:4;d_model:8"),
        mtf.asarray(mesh, context, "batch:2;length:8;d_model:8") if cross else None,
        layers.causal_bias(mesh, "length:4", "kv_length:4") if causal else None,
    )
    close(results, np.einsum("blhk,hkd->bld", attend(q, k, v, mask), w["output"]))


def test_rotary_scores_depend_only_on_distance(mesh, rng):
    q, k = rng.normal(size=(2, 1, 8)).astype("float32")
    rope = layers.rope(mtf.range(mesh, "length:8"), "key:8")
    named = [mtf.asarray(mesh, np.repeat(x, 8, 0), "length:8;key:8") for x in (q, k)]
    rotated = [layers.apply_rope(x, "key", rope) for x in named]
    scores = np.einsum("lk,mk->lm", *(x.numpy() for x in rotated))
    for distance in range(8):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-4)
    assert np.ptp(scores) > 0.1
    np.testing.assert_allclose(
        rotated[0].numpy()[0], q[0], rtol=1e-6
    )  # position 0 stays


def test_rotary_needs_pairs():
    with pytest.raises(mtf.ShapeError, match="key:5 must have an even size"):
        layers.rope(mtf.range(mtf.Mesh(""), "length:8"), "key:5")


def test_dropout(mesh):
    ones = mtf.ones(mesh, "batch:64;d_model:32")
    drop = layers.Dropout(0.25)
    assert drop(ones) is ones
    with mtf.seed(0, 1):
        output = drop(ones, training=True).numpy()
    assert set(np.unique(output)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (output == 0).mean() == pytest.approx(0.25, abs=0.05)
    with mtf.seed(0, 1):
        full_mask = drop(
            mtf.ones(mtf.Mesh(""), "batch:64;d_model:32"), training=True
        ).numpy()
    np.testing.assert_array_equal(output, full_mask)


def test_cross_entropy(mesh, rng):
    logits = rng.normal(size=(4, 8)).astype("float32")
    labels = rng.integers(0, 8, 4).astype("int32")
    weights = np.array([1, 0, 2, 1], "float32")
    lse = np.log(np.exp(logits).sum(-1))
    losses = lse - logits[np.arange(4), labels] + 0.1 * lse**2
    arguments = [
        mtf.asarray(mesh, x, shape)
        for x, shape in (
            (logits, "batch:4;vocab:8"),
            (labels, "batch:4"),
            (weights, "batch:4"),
        )
    ]
    close(layers.softmax_cross_entropy(*arguments[:2], "vocab", 0.1), losses.mean())
    close(
        layers.softmax_cross_entropy(*arguments[:2], "vocab", 0.1, arguments[2]),
        (losses * weights).sum() / 4,
    )
