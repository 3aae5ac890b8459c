"""Private symbols of TensorFlow for XLA.

Contents:

    optimization_barrier   keeps XLA from merging recomputed ops with the original ones
    replica_id             the index of this replica
    call_stablehlo         runs a StableHLO module as an op
    xla_knows              whether XLA can compile a type of op
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule

gen_xla_ops = PrivateModule("tensorflow.compiler.tf2xla.ops.gen_xla_ops")
xla = PrivateModule("tensorflow.compiler.tf2xla.python.xla")
kernels = PrivateModule("tensorflow.python.framework.kernels")


def optimization_barrier(xs: list[Any]) -> list[Any]:
    """Returns the same tensors; XLA uses none of them before all are computed."""
    return list(gen_xla_ops.xla_optimization_barrier(input=xs))


def replica_id() -> Any:
    """Returns the index of this replica, a scalar int32."""
    return gen_xla_ops.xla_replica_id()


def call_stablehlo(x: Any, module: str, shape: Sequence[int]) -> Any:
    """Returns the result of a StableHLO module for x, a tensor of the same data type.

    Args:
      x: the only argument of the module.
      module: the text of the module.
      shape: the shape of the result.
    """
    (y,) = xla.call_module(
        [x],
        version=9,  # of the op's calling convention
        module=module,
        Tout=[x.dtype],
        Sout=[list(shape)],
        platforms=["CPU"],
    )
    return y


@functools.cache
def _register_kernels() -> None:
    """Compiles a function, once, since TensorFlow registers XLA's kernels at the first
    compilation.
    """
    tf.function(tf.identity, jit_compile=True)(0)


@functools.cache
def xla_knows(op: str) -> bool:
    """Returns whether XLA has a kernel for an op of this type."""
    _register_kernels()
    op_kernels = kernels.get_registered_kernels_for_op(op).kernel
    return any(kernel.device_type == "XLA_CPU_JIT" for kernel in op_kernels)
