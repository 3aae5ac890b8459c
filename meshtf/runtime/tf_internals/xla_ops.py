"""Private symbols of TensorFlow that meshtf uses: here, in `op_maker`, `quick_ops` and
`onednn`.

Contents:

    optimization_barrier   keeps XLA from merging what is computed again with the first time
    replica_id             which of the replicas that run one program this is
    call_stablehlo         a StableHLO module as an op
    xla_knows              whether XLA can compile an op
    onednn_rewrites        whether TensorFlow has oneDNN compute products and the like
    onednn_kernel          whether an op of oneDNN can be asked for
    onednn_matmul          a product of matrices by oneDNN
    call_with              calls a function with a session configuration of its own
    spare_callees          keeps TensorFlow from building bodies of callees only to search them
    make_handles           some variables, made in little time
    pack_handles           handles of variables as one tensor
    lent_variable          a tf.Variable for as long as a function runs
    variable_of            the tf.Variable of a handle
    Trackable              what tf.train.Checkpoint and tf.saved_model.save walk through
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python import _pywrap_tfe
from tensorflow.python.eager import context, core
from tensorflow.python.framework import kernels
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.trackable.base import Trackable as Trackable
from tensorflow.python.util import _pywrap_util_port

ONEDNN_MATMULS = (
    "_MklMatMul",
    "_MklBatchMatMulV2",
)  # what TensorFlow's rewriting puts in place
ONEDNN_KERNEL = tf.compat.v1.AttrValue(
    s=b"MklNameChangeOp"
)  # the label of all their kernels


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


def onednn_rewrites() -> bool:
    """Whether TensorFlow replaces ops of functions that it optimises by those of
    oneDNN.

    It does on processors on which that is faster, and where TF_ENABLE_ONEDNN_OPTS=1
    says so.
    """
    return bool(_pywrap_util_port.IsMklEnabled())


@functools.cache
def onednn_kernel(op: str) -> bool:
    """Whether TensorFlow was built with an op of oneDNN, by which it would replace one
    of its own.
    """
    return any(
        kernel.label.encode() == ONEDNN_KERNEL.s and kernel.device_type == "CPU"
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
    )


def onednn_matmul(a: Any, b: Any, flip_a: bool, flip_b: bool) -> Any:
    """Returns the product of two (batches of) matrices by oneDNN's kernel; within
    functions.

    Args:
      a: `[..., m, k]`, or `[..., k, m]` if flipped, float32.
      b: `[..., k, n]`, or `[..., n, k]` if flipped, float32.
      flip_a: whether a is stored transposed.
      flip_b: whether b is.
    """
    kind, *flips = (
        (ONEDNN_MATMULS[1], "adj_x", "adj_y")
        if len(a.shape) > 2
        else (ONEDNN_MATMULS[0], "transpose_a", "transpose_b")
    )
    attrs = {
        name: tf.compat.v1.AttrValue(b=flip)
        for name, flip in zip(flips, (flip_a, flip_b))
    }
    attrs |= {
        "T": tf.compat.v1.AttrValue(type=a.dtype.as_datatype_enum),
        "_kernel": ONEDNN_KERNEL,
    }
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        kind, [a, b], [a.dtype], name="product", attrs=attrs
    ).outputs[0]


@functools.cache
def _options(config: bytes) -> Any:
    return context.FunctionCallOptions(
        config_proto=tf.compat.v1.ConfigProto.FromString(config)
    )


def call_with(config: bytes, function: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that made it.

    Called by the raw op, a function brings all of them home to the first CPU.
    """
    eager = context.context()
    before = eager.function_call_options
    eager.function_call_options = _options(config)
    try:
        return list(function(*args))
    finally:
        eager.function_call_options = before


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


def make_handles(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns handles of variables with these first values, one on each device; outside
    of functions.

    They have no names, and no shapes: TensorFlow makes a kernel for each name and shape
    on each device, which takes longer than all the rest. All of one kind of op come one
    after the other, which suits the caches of the processor.
    """
    dtype = values[0].dtype.as_datatype_enum
    made: tuple[Any, ...] = (
        "container",
        "",
        "shared_name",
        context.anonymous_name(),
        "debug_name",
        "",
        "allowed_devices",
        [],
        "dtype",
        dtype,
        "shape",
        None,
    )
    assigned = "dtype", dtype, "validate_shape", False
    with _run_as_they_are() as run:
        handles = [run("VarHandleOp", [], made, 1, device)[0] for device in devices]
        for handle, value, device in zip(handles, values, devices, strict=True):
            run("AssignVariableOp", [handle, value], assigned, 0, device)
    return handles


def pack_handles(handles: Sequence[Any], device: str) -> Any:
    """Returns handles as one tensor; outside of functions."""
    attrs = "N", len(handles), "T", tf.resource.as_datatype_enum, "axis", 0
    with _run_as_they_are() as run:
        return run("Pack", list(handles), attrs, 1, device)[0]


@contextlib.contextmanager
def _run_as_they_are() -> Iterator[Callable[..., list[Any]]]:
    """Gives what runs an op on a device, from its kind, inputs, attributes and number
    of outputs.

    TensorFlow makes a function of each kind of op on each device unless it is told
    otherwise. By `tf.raw_ops`, handles are tried in another way first, in vain.
    """
    eager = context.context()
    eager.ensure_initialized()

    def run(
        kind: str, inputs: list[Any], attrs: Any, outputs: int, device: str
    ) -> list[Any]:
        return list(
            _pywrap_tfe.TFE_Py_Execute(
                eager._handle, device, kind, inputs, attrs, outputs
            )
        )

    _pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(eager._handle, False)
    try:
        yield run
    except core._NotOkStatusException as error:
        raise core._status_to_exception(error) from None
    finally:
        _pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(eager._handle, True)


@contextlib.contextmanager
def lent_variable(value: Any) -> Iterator[tf.Variable]:
    """Gives a tf.Variable that starts with a value and is gone afterwards, in a
    function.
    """
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype,
        shape=value.shape,
        debug_name="",
        shared_name=context.anonymous_name(),
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    yield _variable(handle, value, trainable=False)
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=False)


def variable_of(handle: Any, like: Any) -> tf.Variable:
    """Returns the tf.Variable of a handle, of the shape, data type and trainability of
    something.
    """
    return _variable(handle, like, like.trainable)


def _variable(handle: Any, like: Any, trainable: bool) -> tf.Variable:
    """Returns the variable of a handle, of the shape and data type of something."""
    handle_data_util.set_handle_data(handle, _handle_data(like.shape, like.dtype))
    return ResourceVariable(
        handle=handle, trainable=trainable, shape=like.shape, dtype=like.dtype
    )


@functools.cache
def _handle_data(shape: tf.TensorShape, dtype: tf.DType) -> Any:
    return handle_data_util.create_handle_data(shape, dtype)
