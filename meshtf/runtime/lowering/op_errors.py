"""Errors of TensorFlow's kernels, with the name of the op and the user's line.

    raise with_line(node, error) from None      # "einsum failed: ...", source: train.py, line 7

A node is an op with its inputs in the graph; it has the user's line.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator

import tensorflow as tf

from meshtf import errors
from meshtf.errors import explain_error
from meshtf.graph import Node

# A part of XLA's error message for an op that it has no kernel for.
NO_KERNEL = "Detected unsupported operations"
# Parts of the messages of kernels, and of `ops/indexing/index_bounds.py`, for an index that is
# out of range.
_OUT_OF_RANGE = re.compile(r"is not in \[|is out of range|slice index .* out of bounds")


@functools.cache
def _index_range_error() -> type[tf.errors.InvalidArgumentError]:
    """Returns the class of the errors for an index out of range. It is TensorFlow's as well,
    which programs may catch, so it is made where TensorFlow is imported already.
    """

    class IndexRangeError(errors.IndexRangeError, tf.errors.InvalidArgumentError):
        """An index is out of range."""

        def __init__(self, message: str) -> None:
            tf.errors.InvalidArgumentError.__init__(self, None, None, message)

    return IndexRangeError


def with_line(
    node: Node, problem: tf.errors.OpError, consequence: str = ""
) -> tf.errors.OpError:
    """Returns an error like `problem` that names the op of a node and the user's line.

    Args:
      node: the node.
      problem: the error of one of the kernels of its op.
      consequence: a sentence about the state after an index out of range.
    """
    message = _message(problem)
    way_out = {}
    if NO_KERNEL in message:
        way_out["way_out"] = "Leave out jit=True: TensorFlow has a kernel without XLA."
    elif is_out_of_range(problem):
        way_out["way_out"] = _way_out(consequence)
    text = explain_error(
        f"{node.op.display_name} failed: {message}",
        inputs="\n".join(f"{x.spec.dtype} {x.shape!r}" for x in node.inputs),
        source=node.source,
        **way_out,
    )
    if is_out_of_range(problem):
        return _index_range_error()(text)
    return type(problem)(node_def=None, op=None, message=text)


@contextlib.contextmanager
def explained(node: Node) -> Iterator[None]:
    """Within, a node runs on the host: its errors name the op and the user's line."""
    try:
        yield
    except tf.errors.OpError as problem:
        raise with_line(node, problem) from None


def without_line(problem: tf.errors.OpError) -> tf.errors.OpError:
    """Returns the error of a program whose failed op is unknown: an `IndexRangeError` for an
    index out of range, otherwise `problem` itself.
    """
    is_explained = isinstance(problem, errors.IndexRangeError)
    if is_explained or not is_out_of_range(problem):
        return problem
    text = explain_error(_message(problem), way_out=_way_out())
    return _index_range_error()(text)


def is_out_of_range(problem: tf.errors.OpError) -> bool:
    """Returns whether an error is that of an index out of range."""
    if not isinstance(problem, tf.errors.InvalidArgumentError):
        return False
    return _OUT_OF_RANGE.search(problem.message) is not None


def _message(problem: tf.errors.OpError) -> str:
    """Returns the message of an error without the names of TensorFlow ops, and without
    where these were created.
    """
    return re.sub(
        r"\{\{.*?\}\} ?|\s*\[\[.*?\]\]| \[Op:.*|\s*The op is created at:.*",
        "",
        problem.message,
        flags=re.DOTALL,
    ).strip()


def _way_out(consequence: str = "") -> str:
    """Returns what to do about an index out of range."""
    advice = (
        "Compare the data with the size of the dimension, such as a vocabulary; "
        'mtf.gather(..., out_of_range="zeros") takes any index.'
    )
    return f"{advice}\n  {consequence}" if consequence else advice
