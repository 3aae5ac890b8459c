"""Private symbols of TensorFlow for XLA.

Contents:

    optimization_barrier   keeps XLA from merging what is computed again with the first time
    replica_id             which of the replicas that run one program this is
    call_stablehlo         a StableHLO module as an op
    xla_knows              whether XLA can compile an op
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework import kernels


def optimization_barrier(xs: list[Any]) -> list[Any]:
    """Returns the same tensors, none of which XLA may use before all are there."""
    return list(gen_xla_ops.xla_optimization_barrier(input=xs))


def replica_id() -> Any:
    """Returns the number of this replica, a scalar int32."""
    return gen_xla_ops.xla_replica_id()


def call_stablehlo(x: Any, module: str, shape: Sequence[int]) -> Any:
    """Returns the result, of the same type as x, of a module that takes and gives one
    tensor.
    """
    (y,) = xla.call_module(
        [x],
        version=9,
        module=module,
        Tout=[x.dtype],
        Sout=[list(shape)],
        platforms=["CPU"],
    )
    return y


@functools.cache
def _register_kernels() -> None:
    """Compiles something: TensorFlow registers XLA's kernels when it first does."""
    tf.function(tf.identity, jit_compile=True)(0)


@functools.cache
def xla_knows(op: str) -> bool:
    """Whether there is a kernel with which XLA compiles an op of this type."""
    _register_kernels()
    found = kernels.get_registered_kernels_for_op(op).kernel
    return any(kernel.device_type == "XLA_CPU_JIT" for kernel in found)
