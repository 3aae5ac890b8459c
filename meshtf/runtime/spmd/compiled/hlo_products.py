"""Matrix products and convolutions among the instructions of a compiled program: their sizes as
those of products [m, k] times [k, n].

On TPUs all products are convolutions. A product of a batch is one with a dilated input, of which
each element of the window meets no more than one element that is not padding:

    f32[4,12,1024,64] convolution(%x, %y), window={size=4x12 stride=3x11 lhs_dilate=4x12},
        dim_labels=01bf_01oi->01bf
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

import numpy as np

from meshtf.hardware import MatmulShape
from meshtf.runtime.spmd.compiled.hlo_text import (
    HloArray,
    HloComputation,
    HloInstruction,
)

# Kernels of libraries, in targets of custom calls such as "__cublas$gemm".
_LIBRARY = re.compile(r'custom_call_target="[^"]*(gemm|matmul|conv|cublas|fmha|triton)')
_ATTENTION = "__cudnn$fmha"
# XLA's name of a type -> the name in profiles of hardware.
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")


def is_product(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a matrix product, a convolution, or a kernel of a
    library for one, such as for fused attention.
    """
    if instruction.opcode == "custom-call":
        return _LIBRARY.search(instruction.attributes) is not None
    return instruction.opcode in ("dot", "convolution")


def product_shape(
    instruction: HloInstruction, computation: HloComputation
) -> MatmulShape | None:
    """Returns the sizes of a product; None: it is none, or a library's whose sizes the text does
    not say.

    Args:
      instruction: the instruction.
      computation: the computation that it is in, which has its operands.
    """
    if not is_product(instruction):
        return None
    operands = computation.operands(instruction)
    if len(operands) < 2 or not operands[0].results or not operands[1].results:
        return None
    left, right = operands[0].results[0], operands[1].results[0]
    if _ATTENTION in instruction.attributes:
        return _attention_shape(instruction, left, right)
    if instruction.opcode == "convolution":
        return _convolution_shape(instruction, left, right)
    if instruction.opcode == "dot":
        contracted = _dims(instruction.attributes, "lhs_contracting_dims")
        batch_dims = _dims(instruction.attributes, "lhs_batch_dims")
    else:
        contracted = _json_dims(instruction.attributes, "lhs_contracting_dimensions")
        batch_dims = _json_dims(instruction.attributes, "lhs_batch_dimensions")
        if not contracted:
            return None
    batch = math.prod(left.sizes[dim] for dim in batch_dims)
    k = math.prod(left.sizes[dim] for dim in contracted)
    m = left.num_elements // max(batch * k, 1)
    n = instruction.results[0].num_elements // max(batch * m, 1)
    return MatmulShape(batch, m, n, k, _dtype(left))


def _attention_shape(
    instruction: HloInstruction, q: HloArray, k: HloArray
) -> MatmulShape:
    """Returns the size of the products of fused attention, or of its gradient, together.

    Args:
      instruction: the call of cuDNN's kernel.
      q: the queries, [batch, heads, length, key].
      k: the keys, [batch, heads of keys, kv_length, key].
    """
    batch, heads, length, key = q.sizes
    is_gradient = "Backward" in instruction.attributes
    num_products = 5 if is_gradient else 2
    return MatmulShape(num_products * batch * heads, length, k.sizes[2], key, _dtype(q))


def _dims(attributes: str, name: str) -> list[int]:
    """Returns an attribute such as lhs_contracting_dims={0,1}; [] if it is missing."""
    match = re.search(rf"{name}=\{{([\d,]*)\}}", attributes)
    return [int(dim) for dim in match[1].split(",") if dim] if match else []


def _json_dims(attributes: str, name: str) -> list[int]:
    """Returns a list in a backend_config, such as "lhs_batch_dimensions":["0"]; [] if it is
    missing.
    """
    match = re.search(rf'"{name}":(\[[^\]]*\])', attributes)
    return [int(dim) for dim in json.loads(match[1])] if match else []


def _dtype(array: HloArray) -> str:
    """Returns the type of an element as profiles of hardware name it."""
    return _DTYPES.get(array.dtype, array.dtype)


class _Window(NamedTuple):
    """How a convolution goes over one dimension.

    Attributes:
      size: the elements of the window.
      stride: the elements of the padded input between two windows.
      padding: the padding before the first element.
      dilation: the elements of the input, dilated by zeros, from one to the next.
      window_dilation: the same between elements of the window.
    """

    size: int
    stride: int
    padding: int
    dilation: int
    window_dilation: int


def _windows(attributes: str, count: int) -> list[_Window]:
    """Returns the window along each of `count` dimensions."""
    match = _WINDOW.search(attributes)
    settings = match[1].split() if match is not None else []
    values = dict(setting.split("=") for setting in settings)

    def along_dims(name: str, default: str) -> list[int]:
        sizes = [default] * count
        if name in values:
            sizes = values[name].split("x")
        return [int(size.split("_")[0]) for size in sizes]

    return [
        _Window(*fields)
        for fields in zip(
            along_dims("size", "1"),
            along_dims("stride", "1"),
            along_dims("pad", "0_0"),
            along_dims("lhs_dilate", "1"),
            along_dims("rhs_dilate", "1"),
        )
    ]


def _convolution_shape(
    convolution: HloInstruction, left: HloArray, right: HloArray
) -> MatmulShape | None:
    """Returns the sizes of the product that a convolution is, without products with padding.

    Args:
      convolution: the convolution.
      left: the input.
      right: the kernel.
    """
    labels = _DIM_LABELS.search(convolution.attributes)
    if labels is None:
        return None
    inputs = dict(zip(labels[1], left.sizes))
    kernel = dict(zip(labels[2], right.sizes))
    outputs = dict(zip(labels[3], convolution.results[0].sizes))
    spatial = sorted(label for label in outputs if label.isdecimal())
    windows = _windows(convolution.attributes, len(spatial))
    positions = 1
    products = 1  # of an input and a kernel, each at all output positions
    for label, window in zip(spatial, windows):
        positions *= outputs[label]
        products *= _products(window, inputs[label], outputs[label])
    return MatmulShape(
        batch=1,
        m=outputs["b"] * positions,
        n=outputs["f"],
        k=kernel["i"] * products / max(positions, 1),
        dtype=_dtype(left),
    )


def _products(window: _Window, input_size: int, output_size: int) -> int:
    """Returns how many pairs of an output and an element of its window meet an element of the
    input, and not padding.
    """
    starts = np.arange(output_size)[:, None] * window.stride - window.padding
    positions = starts + np.arange(window.size) * window.window_dilation
    last = (input_size - 1) * window.dilation
    is_inner = (positions >= 0) & (positions <= last)
    return int((is_inner & (positions % window.dilation == 0)).sum())
