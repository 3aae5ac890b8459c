"""Replaces ops by those of oneDNN in functions that TensorFlow does not optimize.

TensorFlow's graph optimizer replaces matmuls and other ops by those of oneDNN. It skips
functions that are called as the only branch of a `Case` op (`function_calls.trace`). In
these functions, this module replaces the ops in the FunctionDef.

    use_onednn_ops(definition)             # replaces matmuls by those of oneDNN
    needs_graph_optimizer(definition)      # False: no op is left to replace
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.onednn_names import onednn_kernel_label
from meshtf.runtime.tf_internals.private_module import PrivateModule

op_def_registry = PrivateModule("tensorflow.python.framework.op_def_registry")

# Ops whose oneDNN version has the same attributes, and the same name after "_Mkl".
_SAME_ATTRIBUTES = ("BatchMatMulV2", "MatMul", "Softmax", "Transpose")


def use_onednn_ops(definition: Any) -> None:
    """Replaces ops of a FunctionDef by those of oneDNN that have the same attributes."""
    # Only float32: a CPU may lack the instructions for other data types.
    float32 = tf.float32.as_datatype_enum
    for node_def in definition.node_def:
        if node_def.op in _SAME_ATTRIBUTES and node_def.attr["T"].type == float32:
            node_def.op = f"_Mkl{node_def.op}"
            node_def.attr["_kernel"].CopyFrom(onednn_kernel_label())


def needs_graph_optimizer(definition: Any) -> bool:
    """Returns whether a function has, or may call, ops that TensorFlow's graph optimizer
    would replace by those of oneDNN.

    Functions that are called as the only branch of a `Case` were checked when they were
    traced.
    """
    for node in definition.node_def:
        if _is_replaceable(node.op):
            return True
        if _takes_functions(node.op) and not _has_one_branch(node):
            return True
    return False


@functools.cache
def _is_replaceable(kind: str) -> bool:
    """Returns whether TensorFlow would replace a type of op by a faster one. Transposes
    are replaced too, but do not become faster.
    """
    if op_def_registry.get(f"_MklNative{kind}") is not None:
        return True
    replaced_kinds = (*_SAME_ATTRIBUTES, "BatchMatMul", "Einsum")
    return kind in replaced_kinds and kind != "Transpose"


@functools.cache
def _takes_functions(kind: str) -> bool:
    """Returns whether a type of op has functions as attributes, which it may call."""
    attributes = op_def_registry.get(kind).attr
    return any(attribute.type in ("func", "list(func)") for attribute in attributes)


def _has_one_branch(node: Any) -> bool:
    """Returns whether a node is a `Case` op with a single branch."""
    branches = node.attr["branches"].list.func
    return node.op in ("Case", "StatelessCase") and len(branches) == 1
