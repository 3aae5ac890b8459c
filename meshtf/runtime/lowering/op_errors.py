"""Errors of TensorFlow's kernels, with the name of the op and the user's line.

    raise with_line(node, error) from None      # "einsum failed: ...", source: train.py, line 7

A node is an op with its inputs in the graph; it has the user's line.
"""

from __future__ import annotations

import re

import tensorflow as tf

from meshtf.errors import explain_error
from meshtf.graph import Node

# A part of XLA's error message for an op that it has no kernel for.
NO_KERNEL = "Detected unsupported operations"


def with_line(node: Node, problem: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error like `problem` that names the op of a node and the user's line."""
    # Removes the names of TensorFlow ops and where they were created.
    message = re.sub(
        r"\{\{.*?\}\} ?| \[Op:.*|\s*The op is created at:.*",
        "",
        problem.message,
        flags=re.DOTALL,
    ).strip()
    way_out = {}
    if NO_KERNEL in message:
        way_out["way_out"] = "Leave out jit=True: TensorFlow has a kernel without XLA."
    text = explain_error(
        f"{node.op.display_name} failed: {message}",
        inputs="\n".join(f"{x.spec.dtype} {x.shape!r}" for x in node.inputs),
        source=node.source,
        **way_out,
    )
    return type(problem)(node_def=None, op=None, message=text)
