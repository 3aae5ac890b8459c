"""Names as callers give them: sizes that do not hold are refused by every function."""

from __future__ import annotations

import functools
from operator import attrgetter

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers import GroupNorm, dot_product_attention, initializers
from meshtf.names import Dimension, Shape, names_of
from meshtf.ops.linear.correlation import correlation, rms

WRONG = "has the size [0-9]+, not 9"


@pytest.fixture(params=["", "d:model"])
def x(request):
    mesh = mtf.Mesh("data:2; model:2", request.param)
    return mtf.asarray(mesh, np.arange(24, dtype="float32").reshape(4, 6), "batch;d")


def named(name, x):
    return attrgetter(name)(mtf)(x, "d:9")


def heads(x):
    return mtf.unflatten(x, "d", "h:3;key:2")


CALLS = {
    "einsum": lambda x: mtf.einsum([x, x], "batch:9;d:6"),
    "einsum of dimensions": lambda x: mtf.einsum([x, x], [Dimension("d", 9)]),
    "transpose": lambda x: mtf.transpose(x, "d:9;batch:4"),
    "transpose to a shape": lambda x: mtf.transpose(x, Shape("d:9;batch:4")),
    "flatten": lambda x: mtf.flatten(x, "batch:4;d:9", "all"),
    "merge into": lambda x: mtf.flatten(x, "batch;d", "all:9"),
    "stack": lambda x: mtf.stack([x, x], "pair:9"),
    "rename": lambda x: mtf.rename(x, "d:9", "e"),
    "rename to": lambda x: mtf.rename(x, "d", "e:9"),
    "math.fft": lambda x: mtf.math.fft(mtf.cast(x, "complex64"), "d:9"),
    "math.ifft": lambda x: mtf.math.ifft(mtf.cast(x, "complex64"), "d:9"),
    "math.rfft": lambda x: mtf.math.rfft(x, "batch:9;d"),
    "math.irfft": lambda x: mtf.math.irfft(mtf.cast(x, "complex64"), "d:9"),
    "dropout": lambda x: mtf.dropout(x, 0.5, seed=1, broadcast="d:9"),
    "segment_sum": lambda x: mtf.segment_sum(
        x, mtf.cast(x, "int32") * 0, "bins:2", "batch:9"
    ),
    "conv": lambda x: mtf.conv(x, mtf.ones(x.mesh, "k:3;d:6"), "batch:k", groups="d:9"),
    "GroupNorm": lambda x: GroupNorm(x.mesh, "d:6", 2, over="batch:9")(x),
    "attention": lambda x: dot_product_attention(
        heads(x), heads(x), heads(x), "h", "key:9"
    ),
    "correlation": lambda x: correlation(x, x, "batch:9"),
    "rms": lambda x: rms(x, "d:9"),
    "initializer": lambda x: initializers.he("d:9")(x.mesh, x.shape, "w"),
    "slicewise": lambda x: mtf.slicewise(lambda t: t, [x], shardable="batch:9"),
    **{
        name: functools.partial(named, name)
        for name in (
            "reduce_sum",
            "reduce_mean",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_variance",
            "reduce_std",
            "reduce_rms",
            "reduce_logsumexp",
        )
    },
    "reduce_any": lambda x: mtf.reduce_any(x > 0, "d:9"),
    "reduce_all": lambda x: mtf.reduce_all(x > 0, "batch;d:9"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_size_that_does_not_hold_is_refused(name, x):
    with pytest.raises(mtf.ShapeError, match=WRONG):
        CALLS[name](x)


def test_a_size_that_holds_is_welcome(x):
    expected = x.numpy()
    np.testing.assert_array_equal(mtf.transpose(x, "d:6; batch:4").numpy(), expected.T)
    np.testing.assert_array_equal(mtf.reduce_sum(x, "d:6").numpy(), expected.sum(1))
    np.testing.assert_array_equal(
        mtf.reduce_sum(x, Dimension("d", 6)).numpy(), expected.sum(1)
    )
    np.testing.assert_allclose(
        mtf.einsum([x, x], "batch:4").numpy(), np.square(expected).sum(1)
    )
    assert mtf.rename(x, "d:6", "e:6").shape == Shape("batch:4;e:6")
    assert mtf.flatten(x, "batch:4;d:6", "all:24").shape == Shape("all:24")
    assert mtf.stack([x, x], "pair:2").shape == Shape("pair:2;batch:4;d:6")


# Functions of one name take it without a size.
ONE_NAME = [
    "softmax",
    "log_softmax",
    "cumsum",
    "math.cumprod",
    "math.cummax",
    "math.cummin",
    "argmax",
    "argmin",
    "math.cumulative_logsumexp",
    "layer_norm",
    "rms_norm",
    "sort",
    "argsort",
    "unstack",
]


@pytest.mark.parametrize("name", ONE_NAME)
def test_functions_of_one_name(name, x):
    with pytest.raises(mtf.ShapeError, match='no dimension "d:9".*Did you mean'):
        attrgetter(name)(mtf)(x, "d:9")


def test_no_name_has_what_parts_names():
    for name in ("d:9", "a;b", "a,b", "a b"):
        with pytest.raises(mtf.ShapeError, match="has no ':'"):
            Dimension(name, 9)


def test_sizes_that_nothing_is_held_against_are_refused():
    with pytest.raises(mtf.ShapeError, match="names alone are taken"):
        names_of("a;b:4")
    assert names_of("a;b") == ("a", "b")
    assert names_of(Shape("a:2;b:4")) == ("a", "b")
