"""Sizes of matrix products and convolutions in HLO text."""

from __future__ import annotations

import pytest

from meshtf.hardware import MatmulShape
from meshtf.runtime.spmd.compiled.hlo_products import is_product, product_shape
from meshtf.runtime.spmd.compiled.hlo_text import parse_hlo
from tests.runtime.spmd.compiled.hlo_texts import module


def shape(left: str, right: str, product: str) -> MatmulShape | None:
    """Returns the sizes of a product of %l and %r, arrays of the types `left` and `right`."""
    text = module(f"  %l = {left} parameter(2)\n  %r = {right} parameter(3)\n{product}")
    entry = parse_hlo(text).entry
    instruction = entry.instructions[-1]
    assert is_product(instruction)
    return product_shape(instruction, entry)


def test_a_dot_with_batch_dimensions():
    dims = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}"
    dot = f"  %y = f32[96,16,32] dot(%l, %r), {dims}, rhs_contracting_dims={{1}}"
    assert shape("bf16[96,16,64]", "bf16[96,64,32]", dot) == MatmulShape(
        96, 16, 32, 64, "bfloat16"
    )


def test_a_product_of_a_library():
    config = (
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"lhs_batch_dimensions":[]}}'
    )
    call = (
        "  %y = (f32[16,32], s8[1024]) custom-call(%l, %r), "
        f'custom_call_target="__cublas$gemm", backend_config={config}'
    )
    assert shape("f32[16,64]", "f32[64,32]", call) == MatmulShape(
        1, 16, 32, 64, "float32"
    )
    unknown = '  %y = f32[16] custom-call(%l, %r), custom_call_target="triton_gemm"'
    assert shape("f32[16,64]", "f32[64,32]", unknown) is None


@pytest.mark.parametrize("name, count", [("", 2), ("Backward", 5)])
def test_the_products_of_fused_attention(name, count):
    target = f'custom_call_target="__cudnn$fmhaScaleBiasSoftmax{name}"'
    call = f"  %y = bf16[2,12,512,64] custom-call(%l, %r), {target}"
    assert shape("bf16[2,12,512,64]", "bf16[2,4,256,64]", call) == MatmulShape(
        count * 2 * 12, 512, 256, 64, "bfloat16"
    )


@pytest.mark.parametrize(
    "left, right, convolution, sizes",
    [
        # A plain product.
        (
            "bf16[4096,768]",
            "bf16[768,3072]",
            "f32[4096,3072] convolution(%l, %r), dim_labels=bf_io->bf",
            (4096, 3072, 768),
        ),
        # The gradient of a weight: the examples are a dimension of the window.
        (
            "bf16[4,1024,3072]",
            "bf16[4,1024,768]",
            "f32[3072,768,1] convolution(%l, %r), window={size=4}, "
            "dim_labels=0fb_0io->bf0",
            (3072, 768, 4 * 1024),
        ),
        # A product of a batch of 4 x 12: each output meets one element of its window.
        (
            "bf16[4,12,1024,64]",
            "bf16[4,12,1024,64]",
            "f32[4,12,1024,1024] convolution(%l, %r), "
            "window={size=4x12 stride=3x11 lhs_dilate=4x12}, dim_labels=01bf_01oi->01bf",
            (4 * 12 * 1024, 1024, 64),
        ),
        # The same, written with padding.
        (
            "bf16[4,12,1024,1024]",
            "bf16[4,12,64,1024]",
            "f32[4,12,1024,64] convolution(%l, %r), window={size=4x12 stride=4x12 "
            "pad=3_3x11_11 lhs_dilate=3x11 rhs_reversal=1x1}, "
            "dim_labels=01bf_01oi->01bf",
            (4 * 12 * 1024, 64, 1024),
        ),
        # Images: at the borders a window of 3 x 3 is 2 wide or high: (3 * 8 - 2)^2 products.
        (
            "f32[2,8,8,16]",
            "f32[3,3,16,32]",
            "f32[2,8,8,32] convolution(%l, %r), window={size=3x3 pad=1_1x1_1}, "
            "dim_labels=b01f_01io->b01f",
            (2 * 64, 32, 16 * 22 * 22 / 64),
        ),
    ],
)
def test_convolutions(left, right, convolution, sizes):
    result = shape(left, right, f"  %y = {convolution}")
    assert result is not None
    assert (result.m, result.n, result.k) == sizes
    assert result.batch == 1
