"""Symbolic tensors: the tensors of a program that is being written by `ProgramWriter`.

x = writer.argument(tf.TensorSpec([4]))        # <SymbolicTensor argument_0 float32 (4,)>
y = identity(x, "/device:CPU:1")               # <SymbolicTensor Identity:output:0 ...>
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf


class SymbolicTensor:
    """An output of a node, or an argument, of a program that is being written.

    It replaces the tf.Tensor of eager or traced code. Two symbolic tensors are the same
    tensor if they are the same object.

    Args:
      program: the `ProgramWriter`.
      name: the name in the FunctionDef: "x" for an argument, "node:output:0" for an output
        of a node.
      shape: the shape, without unknown sizes.
      dtype: the data type.
    """

    __slots__ = ("program", "name", "shape", "dtype")

    def __init__(
        self,
        program: Any,
        name: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
    ) -> None:
        self.program = program
        self.name = name
        self.shape = shape
        self.dtype = dtype

    @property
    def spec(self) -> tf.TensorSpec:
        """The shape and data type."""
        return tf.TensorSpec(self.shape, self.dtype)

    @property
    def node(self) -> str:
        """The name of the node, or of the argument."""
        return self.name.partition(":")[0]

    @property
    def is_argument(self) -> bool:
        """Whether the tensor is an argument of the program, not an output of a node."""
        return ":" not in self.name

    def __repr__(self) -> str:
        return f"<SymbolicTensor {self.name} {self.dtype.name} {self.shape}>"


@dataclasses.dataclass(frozen=True, eq=False)
class SymbolicList:
    """A tf.TensorArray of a program that is being written.

    Attributes:
      flow: the flow tensor that represents the list in TensorFlow's graphs.
      spec: the data type, size and element shape.
    """

    flow: SymbolicTensor
    spec: tf.TensorArraySpec


def runs_now(x: Any) -> bool:
    """Returns whether ops on x run eagerly, instead of being traced by TensorFlow or
    written to a program.
    """
    return not isinstance(x, SymbolicTensor) and tf.executing_eagerly()
