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


def test_unknown_method_is_refused():
    with pytest.raises(mtf.ArgumentError, match="ring"):
        attention_of(mtf.Mesh(""), "circle")
