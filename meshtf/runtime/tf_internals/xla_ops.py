"""Private symbols of TensorFlow for XLA.

Contents:

    optimization_barrier   keeps XLA from merging recomputed ops with the original ones
    replica_id             the index of this replica
    added_at               a tensor with another one added to a part of it, in place
    call_stablehlo         runs a StableHLO module as an op
    custom_call            runs a kernel that XLA knows by name
    stored                 a tensor that XLA computes once and writes to memory, also on CPUs
    xla_knows              whether XLA can compile a type of op
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule

gen_xla_ops = PrivateModule("tensorflow.compiler.tf2xla.ops.gen_xla_ops")
xla = PrivateModule("tensorflow.compiler.tf2xla.python.xla")
kernels = PrivateModule("tensorflow.python.framework.kernels")
# The names of data types in MLIR.
_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "ui8",
    "int16": "i16",
    "uint16": "ui16",
    "int32": "i32",
    "uint32": "ui32",
    "int64": "i64",
    "uint64": "ui64",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
# The attribute of a call that XLA does not inline, in the text of a module.
NOT_INLINED = 'mhlo.frontend_attributes = {inlineable = "false"}'


def optimization_barrier(xs: list[Any]) -> list[Any]:
    """Returns the same tensors; XLA uses none of them before all are computed."""
    return list(gen_xla_ops.xla_optimization_barrier(input=xs))


def replica_id() -> Any:
    """Returns the index of this replica, a scalar int32."""
    return gen_xla_ops.xla_replica_id()


def added_at(x: Any, term: Any, begin: Sequence[Any]) -> Any:
    """Returns x with a term added to its elements from `begin` on, which XLA does in place if
    nothing else reads x.

    Args:
      x: a tensor.
      term: what is added, with as many axes as x.
      begin: an integer scalar for each axis. (`tf.slice` would take an argument of the program
        for a constant, as its `begin`.)
    """
    start = tf.stack(begin)
    sizes = term.shape.as_list()
    previous = gen_xla_ops.xla_dynamic_slice(
        input=x, start_indices=start, size_indices=tf.constant(sizes, start.dtype)
    )
    return gen_xla_ops.xla_dynamic_update_slice(
        input=x, update=previous + term, indices=start
    )


def call_stablehlo(
    xs: Sequence[Any], module: str, results: Sequence[tuple[Sequence[int], Any]]
) -> list[Any]:
    """Returns the results of a StableHLO module.

    Args:
      xs: the arguments of the module.
      module: the text of the module.
      results: the shape and the data type of each result.
    """
    return list(
        xla.call_module(
            list(xs),
            version=9,  # of the op's calling convention
            module=module,
            Tout=[dtype for _, dtype in results],
            Sout=[list(shape) for shape, _ in results],
            platforms=["CPU"],
        )
    )


def custom_call(
    name: str,
    configuration: str,
    xs: Sequence[Any],
    results: Sequence[tuple[Sequence[int], Any]],
) -> list[Any]:
    """Returns the results of a kernel that XLA knows by name; tensors are in row-major order.

    Args:
      name: the name.
      configuration: what XLA passes to the kernel.
      xs: the operands.
      results: the shape and the data type of each result.
    """
    x_types = [type_text(x.shape, x.dtype) for x in xs]
    y_types = [type_text(shape, dtype) for shape, dtype in results]
    names = ", ".join(f"%x{i}" for i in range(len(xs)))
    parameters = ", ".join(f"%x{i}: {x_type}" for i, x_type in enumerate(x_types))
    outputs = ", ".join(f"%y#{i}" for i in range(len(results)))
    text = configuration.replace('"', r"\22")
    of_inputs, of_results = ", ".join(x_types), ", ".join(y_types)
    module = f"""module {{
  func.func @main({parameters}) -> ({of_results}) {{
    %y:{len(results)} = "stablehlo.custom_call"({names}) {{
      call_target_name = "{name}", api_version = 2 : i32, backend_config = "{text}",
      operand_layouts = [{_row_major(len(x.shape) for x in xs)}],
      result_layouts = [{_row_major(len(shape) for shape, _ in results)}]
    }} : ({of_inputs}) -> ({of_results})
    return {outputs} : {of_results}
  }}
}}"""
    return call_stablehlo(xs, module, results)


def _row_major(ranks: Iterable[int]) -> str:
    """Returns the text of the layouts of tensors: the last dimension changes fastest."""
    layouts = [list(reversed(range(rank))) for rank in ranks]
    return ", ".join(f"dense<{x}> : tensor<{len(x)}xindex>" for x in layouts)


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


def tensor_type(x: Any, shape: Sequence[int]) -> str:
    """Returns the MLIR type of a tensor with the data type of x, as "tensor<4x8xf32>"."""
    return type_text(shape, x.dtype)


def type_text(shape: Sequence[int], dtype: Any) -> str:
    """Returns the MLIR type of a tensor, as "tensor<4x8xf32>"."""
    return f"tensor<{'x'.join([*map(str, shape), _TYPES[dtype.name]])}>"


def stored(x: Any) -> Any:
    """Returns x, a tensor, which XLA computes once, also on CPUs.

    XLA fuses cheap elementwise ops into each op that reads their result, and so compiles and
    computes them once for each of these. On CPUs it drops optimization barriers before that. It
    does not fuse across the call of a function that it must not inline, though: here the
    identity. For GPUs such a call is a function without kernels, and XLA for TPUs drops it:
    barriers suffice.
    """
    x_type = tensor_type(x, x.shape)
    module = f"""module {{
  func.func @main(%x: {x_type}) -> {x_type} {{
    %y = call @stored(%x) {{{NOT_INLINED}}} : ({x_type}) -> {x_type}
    return %y : {x_type}
  }}
  func.func private @stored(%x: {x_type}) -> {x_type} {{
    return %x : {x_type}
  }}
}}"""
    (y,) = call_stablehlo([x], module, [(x.shape.as_list(), x.dtype)])
    return y
