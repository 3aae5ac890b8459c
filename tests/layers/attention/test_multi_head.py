"""Attention against numpy: heads that share, sink logits, contexts; steps against
whole passes.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses

LAYOUTS = ["batch:x;heads:y", "length:x", "kv_length:y", "key:x;batch:y"]


def random_array(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def softmax(scores, extra=None):
    """Returns the softmax along the last axis, with one more logit if there is an extra
    one.
    """
    e = np.exp(scores)
    extra_weight = 0.0 if extra is None else np.exp(extra)
    return e / (e.sum(-1, keepdims=True) + extra_weight)


@pytest.mark.parametrize("extra", [None, 0.7, "heads"], ids=str)
def test_dot_product_attention(rng, extra):
    q = random_array(rng, 2, 4, 8, 4)
    k = random_array(rng, 2, 4, 6, 4)
    v = random_array(rng, 2, 4, 6, 2)
    bias = random_array(rng, 8, 6)
    logit = random_array(rng, 4) if extra == "heads" else extra
    inputs = {
        "q": (q, "batch;heads;length;key"),
        "k": (k, "batch;heads;kv_length;key"),
        "v": (v, "batch;heads;kv_length;value"),
        "bias": (bias, "length;kv_length"),
    }
    inputs |= {"extra": (logit, "heads")} if extra == "heads" else {}

    def call(q, k, v, bias, sink_logit=extra):
        return layers.dot_product_attention(
            q, k, v, bias=bias, sink_logit=sink_logit, scale=0.3
        )

    y, _ = agree(lambda mesh: (None, call), inputs, LAYOUTS)
    scores = np.einsum("bhlk,bhmk->bhlm", q, k) * 0.3 + bias
    logit = logit[:, None, None] if extra == "heads" else logit
    np.testing.assert_allclose(
        y, np.einsum("bhlm,bhmv->bhlv", softmax(scores, logit), v), rtol=1e-4, atol=1e-5
    )


def test_who_sees_nothing_looks_at_the_extra_row(rng):
    mesh = mtf.Mesh("")
    q, k = (
        mtf.asarray(mesh, random_array(rng, 4, 8), f"{n};key")
        for n in ("length", "kv_length")
    )
    nothing = mtf.full(mesh, "kv_length:4", -1e9)
    y = layers.dot_product_attention(q, k, k, bias=nothing, sink_logit=0.0)
    assert not y.numpy().any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "heads, shared",
    [
        ("heads:4", ""),
        ("groups:2;heads:2", "groups:2"),
        ("groups:2;heads:2", "heads:2"),
    ],
)
def test_heads_that_share_keys_and_values(rng, heads, shared):
    kernels = {}

    def make(mesh):
        attention = layers.MultiHeadAttention(
            mesh, "d:8", heads, "key:4", kv_heads_dim=shared
        )
        kernels.update({v.name.split("/")[1]: v.numpy() for v in attention.variables})
        return attention, lambda x: attention(
            x, bias=layers.causal_bias(x.mesh, x.shape.dim("length"), "kv_length:4")
        )

    x = random_array(rng, 2, 4, 8)
    y, _ = agree(
        make, {"x": (x, "batch;length;d")}, [*LAYOUTS, "groups:x;heads:y", "d:x"]
    )
    q = (x @ kernels["query"].reshape(8, 16)).reshape(2, 4, 2, 2, 4)
    spell = {"": "bmk", "groups:2": "bmgk", "heads:2": "bmhk"}[shared]
    k, v = (np.einsum("bmd,d...->bm...", x, kernels[part]) for part in ("key", "value"))
    scores = np.einsum(f"blghk,{spell}->bghlm", q, k) / 2
    weights = softmax(np.where(np.tri(4, dtype=bool), scores, -np.inf))
    seen = np.einsum(f"bghlm,{spell}->blghk", weights, v)
    np.testing.assert_allclose(
        y,
        seen.reshape(2, 4, 16) @ kernels["output"].reshape(16, 8),
        rtol=1e-4,
        atol=1e-5,
    )


def test_heads_that_share_are_some_of_all():
    with refuses(
        mtf.ShapeError,
        r"of heads \[heads:2\] do not fit queries of \[heads:8\]",
        "Split the heads by names",
    ):
        layers.MultiHeadAttention(
            mtf.Mesh(""), "d:8", "heads:8", "key:4", kv_heads_dim="heads:2"
        )


def test_one_mask_serves_names_that_are_broadcast(rng):
    def make(mesh):
        attention = layers.MultiHeadAttention(
            mesh,
            "d:8",
            "heads:2",
            "key:4",
            dropout_rate=0.5,
            dropout_broadcast="batch;heads",
        )
        return attention, lambda x: attention(x, training=True)

    x = np.repeat(random_array(rng, 1, 4, 8), 2, 0)
    y, _ = agree(make, {"x": (x, "batch;length;d")}, ["batch:x;heads:y", "length:x"])
    np.testing.assert_allclose(y[0], y[1], rtol=1e-5, atol=1e-6)


def test_compressed_memory(rng):
    def make(mesh):
        attention = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4")

        def call(x):
            context = layers.compress_mean(x, "length", 2)
            visible = layers.causal_mask(x.mesh, "length:8", "kv_length:4", stride=2)
            return attention(x, context, layers.mask_bias(visible), sink_logit=0.0)

        return attention, call

    x = random_array(rng, 2, 8, 8)
    y, _ = agree(
        make,
        {"x": (x, "batch;length;d")},
        ["length:x", "batch:x;heads:y", "length:y;d:x"],
    )
    assert not y[:, 0].any()  # no whole row of context lies behind the first
    changed = x.copy()
    changed[:, 5] += 1.0  # which is seen when its row is full
    changed_output, _ = agree(make, {"x": (changed, "batch;length;d")}, [])
    np.testing.assert_allclose(changed_output[:, :5], y[:, :5], rtol=1e-5, atol=1e-6)
    assert (np.abs(changed_output - y)[:, 5:].max(-1) > 1e-4).all()


def test_compressed_rows_are_means(rng):
    x = random_array(rng, 2, 8, 4)
    y, _ = agree(
        lambda mesh: (None, lambda x: layers.compress_mean(x, "length", 4)),
        {"x": (x, "batch;length;d")},
        ["length:x", "batch:x;d:y"],
    )
    np.testing.assert_allclose(y, x.reshape(2, 2, 4, 4).mean(2), rtol=1e-5, atol=1e-6)
    with refuses(mtf.ShapeError, "length:8 cannot be split into groups of 3"):
        layers.compress_mean(mtf.ones(mtf.Mesh(""), "length:8"), "length", 3)


def test_names_of_kv_heads_have_the_sizes_of_heads():
    def kv_dims(kv_heads_dim):
        attention = layers.MultiHeadAttention(
            mtf.Mesh(""), "d:8", "groups:2;heads:4", "key:4", kv_heads_dim=kv_heads_dim
        )
        return attention.kv_dims

    assert kv_dims("groups") == kv_dims("groups:2") == mtf.Shape("groups:2;key:4")
    with refuses(mtf.ShapeError, "there is no dimension 'group'"):
        kv_dims("group")
