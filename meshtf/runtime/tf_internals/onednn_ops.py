"""Ops of oneDNN, made by name in functions that devices run as they are.

Where TensorFlow has oneDNN compute products and the like, it replaces its own ops in
each function that it optimises. One that its device runs alone
(`function_calls.trace`) it does not optimise, so there oneDNN's ops are put in place of
TensorFlow's, in the definition of the function.

    by_onednn(definition)                  # its products are oneDNN's
    left_to_tensorflow(definition)         # False: the function can run alone
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from meshtf.runtime.tf_internals.onednn_names import ONEDNN_KERNEL

# Of these oneDNN's ops have the same attributes, and the same name with another
# beginning.
_ALIKE = ("BatchMatMulV2", "MatMul", "Softmax", "Transpose")
_FLOAT = (
    tf.float32.as_datatype_enum
)  # of others, processors at hand may have no instructions


def by_onednn(definition: Any) -> None:
    """Puts ops of oneDNN in place of TensorFlow's in a FunctionDef, where there are
    some.
    """
    for node_def in definition.node_def:
        if node_def.op in _ALIKE and node_def.attr["T"].type == _FLOAT:
            node_def.op = f"_Mkl{node_def.op}"
            node_def.attr["_kernel"].CopyFrom(ONEDNN_KERNEL)


def left_to_tensorflow(definition: Any) -> bool:
    """Whether a function has ops that TensorFlow would replace by those of oneDNN, or
    may call some.

    What it runs as the one branch of a `Case` was asked before.
    """
    return any(
        _replaced(node.op) or _takes_functions(node.op) and not _one_branch(node)
        for node in definition.node_def
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


def _one_branch(node: Any) -> bool:
    branches = node.attr["branches"].list.func
    return node.op in ("Case", "StatelessCase") and len(branches) == 1
