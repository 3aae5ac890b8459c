"""What keeps TensorFlow from building bodies of callees only to search them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable as Trackable


def spare_callees() -> None:
    """Keeps TensorFlow from searching callees of the graph that is being traced, which
    is complete.

    It builds the body of each callee for each call, twice, to look for reference
    variables, of TensorFlow 1. A node of an unknown function counts as one, and so does
    what runs before or after such a node, which ends the search. Not for callees that
    XLA compiles: it refuses such variables.
    """
    calls: dict[str, list[Any]] = {}
    for op in tf.compat.v1.get_default_graph().get_operations():
        if op.type in (
            "PartitionedCall",
            "StatefulPartitionedCall",
            "StatelessCase",
            "Case",
        ):
            calls.setdefault(op.device, []).append(op)
    for device, some in calls.items():
        with tf.device(device):
            before = _unknown_function()
            with tf.control_dependencies(some):
                _unknown_function()
        for op in some:
            op._add_control_input(before)


def _unknown_function() -> Any:
    op = tf.no_op()
    name = tf.compat.v1.NameAttrList(name="meshtf_no_function")
    op._set_attr("_meshtf", tf.compat.v1.AttrValue(func=name))
    return op
