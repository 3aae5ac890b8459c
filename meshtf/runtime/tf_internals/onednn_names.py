"""Ops of oneDNN, which can be made by name."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels
from tensorflow.python.util import _pywrap_util_port

from meshtf.runtime.tf_internals.switches import private

ONEDNN_MATMULS = (
    "_MklMatMul",
    "_MklBatchMatMulV2",
)  # what TensorFlow's rewriting puts in place
ONEDNN_KERNEL = tf.compat.v1.AttrValue(
    s=b"MklNameChangeOp"
)  # the label of all their kernels


def onednn_rewrites() -> bool:
    """Whether TensorFlow replaces ops of functions that it optimises by those of
    oneDNN.

    It does on processors on which that is faster, and where TF_ENABLE_ONEDNN_OPTS=1
    says so.
    """
    return private("onednn") and bool(_pywrap_util_port.IsMklEnabled())


def onednn_kernel(op: str) -> bool:
    """Whether TensorFlow was built with an op of oneDNN, by which it would replace one
    of its own.
    """
    return private("onednn") and _has_kernel(op)


@functools.cache
def _has_kernel(op: str) -> bool:
    return any(
        kernel.label.encode() == ONEDNN_KERNEL.s and kernel.device_type == "CPU"
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
    )


def onednn_matmul(a: Any, b: Any, flip_a: bool, flip_b: bool) -> Any:
    """Returns the product of two (batches of) matrices by oneDNN's kernel; within
    functions.

    Args:
      a: `[..., m, k]`, or `[..., k, m]` if flipped, float32.
      b: `[..., k, n]`, or `[..., n, k]` if flipped, float32.
      flip_a: whether a is stored transposed.
      flip_b: whether b is.
    """
    kind, *flips = (
        (ONEDNN_MATMULS[1], "adj_x", "adj_y")
        if len(a.shape) > 2
        else (ONEDNN_MATMULS[0], "transpose_a", "transpose_b")
    )
    attrs = {
        name: tf.compat.v1.AttrValue(b=flip)
        for name, flip in zip(flips, (flip_a, flip_b))
    }
    attrs |= {
        "T": tf.compat.v1.AttrValue(type=a.dtype.as_datatype_enum),
        "_kernel": ONEDNN_KERNEL,
    }
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        kind, [a, b], [a.dtype], name="product", attrs=attrs
    ).outputs[0]
