"""TensorFlow's oneDNN ops, which have no public functions and are created by name.

    if onednn_kernel("_MklMatMul"):
        y = onednn_matmul(a, b, flip_a=False, flip_b=True)        # a [m, k], b [n, k]

oneDNN is Intel's library of fast CPU kernels, formerly called MKL-DNN.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule
from meshtf.runtime.tf_internals.switches import private

kernels = PrivateModule("tensorflow.python.framework.kernels")
_pywrap_util_port = PrivateModule("tensorflow.python.util._pywrap_util_port")

# TensorFlow's graph optimizer replaces MatMul and BatchMatMulV2 by these ops.
ONEDNN_MATMULS = ("_MklMatMul", "_MklBatchMatMulV2")
_KERNEL_LABEL = b"MklNameChangeOp"  # of the kernels of all such ops


def onednn_kernel_label() -> Any:
    """Returns the label of the kernels of oneDNN's ops, as the value of an attribute."""
    return tf.compat.v1.AttrValue(s=_KERNEL_LABEL)


def onednn_rewrites() -> bool:
    """Returns whether TensorFlow's graph optimizer replaces ops by those of oneDNN.

    It does so on CPUs where oneDNN is faster, and if TF_ENABLE_ONEDNN_OPTS=1 is set.
    """
    return private("onednn") and bool(_pywrap_util_port.IsMklEnabled())


def onednn_kernel(op: str) -> bool:
    """Returns whether this build of TensorFlow has a kernel for an op of oneDNN."""
    return private("onednn") and _has_kernel(op)


@functools.cache
def _has_kernel(op: str) -> bool:
    """Returns whether TensorFlow has a oneDNN kernel for an op on CPUs."""
    op_kernels = kernels.get_registered_kernels_for_op(op).kernel
    return any(
        kernel.label.encode() == _KERNEL_LABEL and kernel.device_type == "CPU"
        for kernel in op_kernels
    )


def onednn_matmul(
    a: Any,
    b: Any,
    flip_a: bool,
    flip_b: bool,
) -> Any:
    """Returns the matmul a b, or a batch of matmuls, computed by oneDNN's kernel. It works
    in graphs only.

    Args:
      a: a float32 tensor `[..., m, k]`, or `[..., k, m]` if flip_a.
      b: a float32 tensor `[..., k, n]`, or `[..., n, k]` if flip_b.
      flip_a: whether a is stored transposed.
      flip_b: whether b is stored transposed.

    Returns:
      A float32 tensor `[..., m, n]`.
    """
    matmul, batch_matmul = ONEDNN_MATMULS
    if len(a.shape) > 2:
        kind = batch_matmul
        flags = {"adj_x": flip_a, "adj_y": flip_b}
    else:
        kind = matmul
        flags = {"transpose_a": flip_a, "transpose_b": flip_b}
    attrs = {name: tf.compat.v1.AttrValue(b=flag) for name, flag in flags.items()}
    attrs["T"] = tf.compat.v1.AttrValue(type=a.dtype.as_datatype_enum)
    attrs["_kernel"] = onednn_kernel_label()
    graph = tf.compat.v1.get_default_graph()
    op = graph.create_op(kind, [a, b], [a.dtype], name="product", attrs=attrs)
    (y,) = op.outputs
    return y
