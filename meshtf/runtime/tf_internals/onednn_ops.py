"""Ops of oneDNN, made by name in functions that devices run as they are.

Where TensorFlow has oneDNN compute products and the like, it replaces its own ops in
each function that it optimises. One that its device runs alone (`calls.trace`) it does
not optimise, so there oneDNN's ops are made in place of TensorFlow's.

    with quick_ops(by_onednn):
      y = tf.matmul(a, b)                    # oneDNN's
    left_to_tensorflow(graph)                # False: the function can run alone
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from meshtf.runtime.tf_internals.graph_node_maker import Known
from meshtf.runtime.tf_internals.onednn_names import ONEDNN_KERNEL

# Of these oneDNN's ops have the same attributes, and the same name with another
# beginning.
_ALIKE = ("BatchMatMulV2", "MatMul", "Softmax", "Transpose")
_FLOAT = (
    tf.float32.as_datatype_enum
)  # of others, processors at hand may have no instructions


def by_onednn(kind: str, same: Known) -> tuple[str, Known]:
    """Returns the op of oneDNN for one of TensorFlow, or the latter where there is
    none.
    """
    if kind not in _ALIKE or same.attrs["T"].type != _FLOAT:
        return kind, same
    return f"_Mkl{kind}", Known(
        same.attrs | {"_kernel": ONEDNN_KERNEL},
        [*same.serialized, ("_kernel", ONEDNN_KERNEL.SerializeToString())],
        same.counts,
    )


def left_to_tensorflow(graph: Any) -> bool:
    """Whether a function has ops that TensorFlow would replace by those of oneDNN, or
    may call some.

    What it runs as the one branch of a `Case` was asked before.
    """
    return any(
        _replaced(op.type) or _takes_functions(op.type) and not _one_branch(op)
        for op in graph.get_operations()
    )


@functools.cache
def _replaced(kind: str) -> bool:
    """Whether TensorFlow would replace a kind of op, but for transposes, which take as
    long.
    """
    return (
        kind in (*_ALIKE, "BatchMatMul", "Einsum")
        and kind != "Transpose"
        or op_def_registry.get(f"_MklNative{kind}") is not None
    )


@functools.cache
def _takes_functions(kind: str) -> bool:
    return any(
        attr.type in ("func", "list(func)") for attr in op_def_registry.get(kind).attr
    )


def _one_branch(op: Any) -> bool:
    return op.type in ("Case", "StatelessCase") and len(op.get_attr("branches")) == 1
