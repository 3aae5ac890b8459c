"""The layer of context-parallel attention: its methods agree, and it takes the one in which
a device receives fewer bytes.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers


def attention_of(mesh, method, heads="heads:4", **settings):
    return layers.ContextParallelAttention(
        mesh, "d:8", heads, "key:4", "length:4", method, name="a", **settings
    )


@pytest.mark.parametrize("method", ["ring", "all_to_all", "fewest_bytes"])
@pytest.mark.parametrize("axes, layout", [("", ""), ("seq:4", "length:seq")])
def test_methods_agree_with_full_attention(rng, axes, layout, method):
    mesh = mtf.Mesh(axes, layout)
    x = mtf.asarray(
        mesh, rng.normal(size=(2, 16, 8)).astype("float32"), "batch;length;d"
    )
    full = layers.MultiHeadAttention(mesh, "d:8", "heads:4", "key:4", name="a")
    attention = attention_of(mesh, method)
    for variable, expected in zip(attention.variables, full.variables, strict=True):
        variable.assign(expected.numpy())
    np.testing.assert_allclose(attention(x).numpy(), full(x).numpy(), atol=2e-6)


@pytest.mark.parametrize(
    "axes, heads, kv_heads, method",
    [
        # Of 4 devices, a device receives 3 quarters of keys and values around the ring, and
        # by all_to_all 3 sixteenths of four tensors.
        ("seq:4", "heads:4", "heads", "all_to_all"),
        ("seq:2", "heads:4", "heads", "ring"),
        # Queries are four times as large as keys.
        ("seq:4", "groups:4;heads:4", "groups", "ring"),
        ("seq:8", "groups:8;heads:4", "groups", "all_to_all"),
        # No axis divides the heads.
        ("seq:4", "heads:3", "heads", "ring"),
        ("", "heads:4", "heads", "ring"),
    ],
)
def test_method_of_fewest_bytes(axes, heads, kv_heads, method):
    mesh = mtf.Mesh(axes, "length:seq", devices="abstract")
    attention = attention_of(mesh, "fewest_bytes", heads, kv_heads_dim=kv_heads)
    x = mtf.zeros(mesh, "batch:1;length:64;d:8")
    q, k, v = attention.project(x, None)
    k, v = (mtf.rename(x, "length", "kv_length") for x in (k, v))
    assert attention.method_for(q, k, v) == method


MASKS = [
    (axes, layout, method, zigzag, devices)
    for axes, layout in (
        ("", ""),
        ("seq:4", "length:seq"),
        ("seq:2;data:2", "length:seq;batch:data"),
    )
    for method in ("ring", "all_to_all", "fewest_bytes", "blockwise")
    for zigzag in (False, True)
    for devices in (None, "spmd:cpu")
    if axes or devices is None
    if not (zigzag and method == "blockwise")
]


def attention_with_dropout(mesh, cls, *block, broadcast="", order=None, **settings):
    """Returns a function of x and dy that returns attention with dropout and the gradient of
    x, and the attention.
    """
    attention = cls(
        mesh, "d:8", "heads:4", "key:4", *block, dropout_rate=0.5, name="a", **settings
    )
    attention.dropout.broadcast = broadcast
    zigzag = {} if order is None else {"zigzag": True}

    @mtf.function(mesh=mesh, x="batch;length;d", dy="batch;length;d")
    def run(x, dy):
        with mtf.seed(3):
            ordered_x = x if order is None else order.apply(x)
            y = attention(
                ordered_x, training=True, **bias_settings(mesh, order), **zigzag
            )
            y = y if order is None else order.undo(y)
        return y, *mtf.gradients([mtf.reduce_sum(y * dy)], [x])

    return run, attention


def bias_settings(mesh, order):
    """Returns a causal mask for attention in zigzag order, which needs one."""
    if order is None:
        return {}
    positions = order.apply(mtf.range(mesh, "length:16"))
    return {
        "bias_of": lambda q, k: layers.mask_bias(mtf.outer(q, k, mtf.greater_equal)),
        "query_inputs": positions,
        "kv_inputs": mtf.rename(positions, "length", "kv_length"),
    }


@pytest.mark.sampled(12, each="method")
@pytest.mark.parametrize("broadcast", ["", "length", "heads;kv_length"])
@pytest.mark.parametrize("axes, layout, method, zigzag, devices", MASKS)
def test_dropout_has_the_mask_of_full_attention(
    rng, axes, layout, method, zigzag, devices, broadcast
):
    x, dy = rng.normal(size=(2, 2, 16, 8)).astype("float32")
    one = mtf.Mesh("")
    full, expected_attention = attention_with_dropout(
        one, layers.MultiHeadAttention, broadcast=broadcast
    )
    if zigzag:
        full = causal_full_attention(one, expected_attention)
    expected = full(x, dy)
    mesh = mtf.Mesh(axes, layout, devices=devices)
    run, attention = attention_with_dropout(
        mesh,
        layers.BlockwiseAttention
        if method == "blockwise"
        else layers.ContextParallelAttention,
        "length:4",
        broadcast=broadcast,
        order=layers.ZigzagOrder("length:16", 4) if zigzag else None,
        **({} if method == "blockwise" else {"method": method}),
    )
    for variable, value in zip(attention.variables, expected_attention.variables):
        variable.assign(value.numpy())
    for have, want in zip(run(x, dy), expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want.numpy(), atol=1e-5)


def causal_full_attention(mesh, attention):
    """Returns what `attention_with_dropout` does, with a causal mask."""

    @mtf.function(mesh=mesh, x="batch;length;d", dy="batch;length;d")
    def run(x, dy):
        bias = layers.causal_bias(mesh, "length:16", "kv_length:16")
        with mtf.seed(3):
            y = attention(x, bias=bias, training=True)
        return y, *mtf.gradients([mtf.reduce_sum(y * dy)], [x])

    return run


def test_two_attentions_of_one_path_are_refused():
    mesh = mtf.Mesh("")
    _, attention = attention_with_dropout(
        mesh, layers.ContextParallelAttention, "length:4", method="ring"
    )
    x = mtf.ones(mesh, "batch:2;length:16;d:8")
    with pytest.raises(mtf.PlanError, match="two random ops"), mtf.seed(1):
        attention(attention(x, training=True), training=True)


def test_unknown_method_is_refused():
    with pytest.raises(mtf.ArgumentError, match="ring"):
        attention_of(mtf.Mesh(""), "circle")
