"""What a program that is being written knows of a tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf


class SymbolicTensor:
    """An output of a node, or an argument, of a program that is being written.

    It stands where a tf.Tensor stands when ops run at once or TensorFlow traces them;
    two of them are the same tensor if they are the same object.

    Args:
      program: the `ProgramWriter`.
      name: what a FunctionDef calls it: "x" of an argument, "node:output:0" of a node.
      shape: its shape, known in full.
      dtype: its data type.
    """

    __slots__ = ("program", "name", "shape", "dtype")

    def __init__(
        self, program: Any, name: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> None:
        self.program = program
        self.name = name
        self.shape = shape
        self.dtype = dtype

    @property
    def spec(self) -> tf.TensorSpec:
        """Its shape and data type."""
        return tf.TensorSpec(self.shape, self.dtype)

    @property
    def node(self) -> str:
        """The name of the node, or of the argument."""
        return self.name.partition(":")[0]

    @property
    def is_argument(self) -> bool:
        """Whether no node makes it."""
        return ":" not in self.name

    def __repr__(self) -> str:
        return f"<SymbolicTensor {self.name} {self.dtype.name} {self.shape}>"


@dataclasses.dataclass(frozen=True, eq=False)
class SymbolicList:
    """A tf.TensorArray of a program that is being written.

    Attributes:
      flow: the tensor that it is to TensorFlow.
      spec: what is known of it.
    """

    flow: SymbolicTensor
    spec: tf.TensorArraySpec


def runs_now(x: Any) -> bool:
    """Whether ops on x run at once: neither is it traced nor written."""
    return not isinstance(x, SymbolicTensor) and tf.executing_eagerly()
