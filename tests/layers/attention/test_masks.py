"""Masks against numpy, under layouts that shard either name of the positions."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

TOKENS = np.array([[3, 1, 2, 0], [5, 0, 0, 0]], "int32")
SEGMENTS = np.array([[1, 1, 2, 2], [1, 2, 3, 0]], "int32")


@pytest.fixture(
    params=["", "length:x", "kv_length:x", "length:x;kv_length:y", "batch:x"],
    ids=str,
)
def mesh(request):
    return mtf.Mesh("x:2;y:2", request.param)


def test_causal(mesh):
    mask = layers.causal_mask(mesh, "length:4", "kv_length:4").numpy()
    np.testing.assert_array_equal(mask, np.tri(4, dtype=bool))
    mask = layers.causal_mask(mesh, "length:4", "kv_length:2", stride=2).numpy()
    np.testing.assert_array_equal(mask, [[0, 0], [1, 0], [1, 0], [1, 1]])
    bias = layers.causal_bias(mesh, "length:4", "kv_length:4").numpy()
    np.testing.assert_array_equal(bias, np.where(np.tri(4), 0, np.float32(-1e9)))


def test_padding_and_segments(mesh):
    tokens, segments = (
        mtf.asarray(mesh, x, "batch;length") for x in (TOKENS, SEGMENTS)
    )
    padding = layers.padding_mask(tokens)
    assert padding.shape.names == ("batch", "kv_length")
    np.testing.assert_array_equal(padding.numpy(), TOKENS != 0)
    same = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    np.testing.assert_array_equal(layers.segment_mask(segments).numpy(), same)
    other = mtf.asarray(mesh, SEGMENTS[:, :2], "batch;length")
    np.testing.assert_array_equal(
        layers.segment_mask(segments, other).numpy(), same[..., :2]
    )
    both = (layers.segment_mask(segments) & padding).numpy()
    np.testing.assert_array_equal(both, same & (TOKENS != 0)[:, None])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_that_sees_nothing_has_no_nan(dtype):
    mesh = mtf.Mesh("")
    bias = layers.mask_bias(
        mtf.full(mesh, "length:2;kv_length:4", False, "bool"), dtype
    )
    assert bias.dtype == dtype
    weights = mtf.softmax(bias, "kv_length").numpy().astype("float32")
    np.testing.assert_allclose(weights, np.full((2, 4), 0.25))
