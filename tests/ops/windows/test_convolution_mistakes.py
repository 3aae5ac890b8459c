"""Convolutions that cannot be meant so are refused by name."""

from __future__ import annotations

import pytest

import meshtf as mtf
from tests.ops.windows.test_convolution import K, X
from tests.support.refusals import refuses

REFUSED = [
    (X, K, {"window": "h:i;v:j"}, 'no dimension "v"'),
    (X, K, {"window": "h:i;w:k"}, 'no dimension "k"'),
    (X, K, {"window": "h:i;w:i"}, "each with a name of the kernel"),
    (X, K, {"window": {}}, "1 to 3 names"),
    (X, "i:3;h:3;c:4", {"window": "h:i"}, 'both called "h".*"k_h"'),
    (X, "w:3;c:4", {"window": "h:w"}, 'both called "w"'),
    (X, K, {"groups": "o"}, 'no dimension "o"'),
    (X, K, {"stride": 0}, "stride.*at least 1"),
    (X, K, {"dilation": {"w": -1}}, 'dilation of "w".*at least 1'),
    (X, K, {"stride": {"c": 2}}, 'the stride names "c"'),
    (X, K, {"padding": "full"}, '"same", "valid", "causal" or elements'),
    (X, K, {"padding": (1, -1)}, '"same", "valid", "causal" or elements'),
    (
        X,
        K,
        {"padding": "valid", "dilation": 4},
        "no window of 9 elements fits.*smaller window",
    ),
    (X, "i:3;j:3;c:3;o:2", {}, '"c" has size 4 in one input and 3 in another'),
]


@pytest.mark.parametrize(
    "x, kernel, how, words", REFUSED, ids=[words for *_, words in REFUSED]
)
def test_what_is_refused(x, kernel, how, words):
    mesh = mtf.Mesh("")
    with refuses(mtf.ShapeError, words):
        mtf.conv(
            mtf.ones(mesh, x), mtf.ones(mesh, kernel), **({"window": "h:i;w:j"} | how)
        )


def test_data_types_that_are_refused():
    mesh = mtf.Mesh("")
    x, kernel = mtf.ones(mesh, X), mtf.ones(mesh, K)
    with refuses(mtf.DTypeError, "does not take int32"):
        mtf.conv(mtf.cast(x, "int32"), mtf.cast(kernel, "int32"), "h:i;w:j")
    with refuses(mtf.DTypeError, "float32 and bfloat16", "mtf.cast"):
        mtf.conv(x, mtf.cast(kernel, "bfloat16"), "h:i;w:j")


def test_sizes_that_no_convolution_gives_are_refused():
    mesh = mtf.Mesh("")
    x, kernel = mtf.ones(mesh, X), mtf.ones(mesh, K)
    with refuses(mtf.ShapeError, 'of 20 elements of "h" gives 10, not the 8'):
        mtf.conv_transpose(x, kernel, "h:i;w:j", stride=2, output_size={"h": 20})
    with refuses(mtf.ShapeError, 'the output_size names "b"'):
        mtf.conv_transpose(x, kernel, "h:i;w:j", output_size={"b": 20})
