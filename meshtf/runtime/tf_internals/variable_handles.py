"""Resource handles of variables: created for many variables at once, packed into one
tensor, and turned into tf.Variables.

    handles = make_handles(initial_values, devices)      # one for each value
    packed = pack_handles(handles, "/device:CPU:0")
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule

_pywrap_tfe = PrivateModule("tensorflow.python._pywrap_tfe")
context = PrivateModule("tensorflow.python.eager.context")
core = PrivateModule("tensorflow.python.eager.core")
handle_data_util = PrivateModule("tensorflow.python.ops.handle_data_util")
resource_variable_ops = PrivateModule("tensorflow.python.ops.resource_variable_ops")


def make_handles(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns handles of variables with initial values, one on each of `devices`. It works
    only outside of tf.functions.

    The handles have neither names nor shapes: otherwise TensorFlow would create a kernel
    for each name and shape on each device, which takes longer than all other work. First
    all handles are created, then all values are assigned: this uses the caches of the CPU
    better than one variable after the other.

    Args:
      values: the initial values, all of one data type.
      devices: the device of each handle.
    """
    dtype = values[0].dtype.as_datatype_enum
    # Names and values of attributes in turn, as TFE_Py_Execute expects them.
    handle_attrs: tuple[Any, ...] = (
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
    assign_attrs = "dtype", dtype, "validate_shape", False
    handles = []
    with _eager_op_runner() as run:
        for device in devices:
            handles += run(
                "VarHandleOp", [], attrs=handle_attrs, num_outputs=1, device=device
            )
        for handle, value, device in zip(handles, values, devices, strict=True):
            run(
                "AssignVariableOp",
                [handle, value],
                attrs=assign_attrs,
                num_outputs=0,
                device=device,
            )
    return handles


def pack_handles(handles: Sequence[Any], device: str) -> Any:
    """Returns handles as one tensor. It works only outside of tf.functions."""
    attrs = "N", len(handles), "T", tf.resource.as_datatype_enum, "axis", 0
    with _eager_op_runner() as run:
        (packed,) = run(
            "Pack", list(handles), attrs=attrs, num_outputs=1, device=device
        )
    return packed


@contextlib.contextmanager
def _eager_op_runner() -> Iterator[Callable[..., list[Any]]]:
    """Yields a function run(kind, inputs, attrs, num_outputs, device) that runs an op.

    By default TensorFlow creates a function for each type of op on each device; this is
    turned off in the `with` block. `tf.raw_ops` would first try a fast path, which fails
    for handles.
    """
    eager = context.context()
    eager.ensure_initialized()

    def run(
        kind: str,
        inputs: list[Any],
        attrs: Any,
        num_outputs: int,
        device: str,
    ) -> list[Any]:
        """Returns the outputs of an op of type `kind`."""
        outputs = _pywrap_tfe.TFE_Py_Execute(
            eager._handle, device, kind, inputs, attrs, num_outputs
        )
        return list(outputs)

    _pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(eager._handle, False)
    try:
        yield run
    except core._NotOkStatusException as error:
        raise core._status_to_exception(error) from None
    finally:
        _pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(eager._handle, True)


@contextlib.contextmanager
def temporary_handle(value: Any) -> Iterator[Any]:
    """Yields the handle of a resource with an initial value, which is destroyed at the
    end of the `with` block. It works in graphs only.
    """
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype,
        shape=value.shape,
        debug_name="",
        shared_name=context.anonymous_name(),
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    yield handle
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=False)


def variable_of(handle: Any, like: Any) -> tf.Variable:
    """Returns a tf.Variable with a handle.

    Args:
      handle: the resource handle.
      like: an object with the `shape`, `dtype` and `trainable` of the variable.
    """
    handle_data_util.set_handle_data(handle, _handle_data(like.shape, like.dtype))
    return resource_variable_ops.ResourceVariable(
        handle=handle,
        trainable=like.trainable,
        shape=like.shape,
        dtype=like.dtype,
    )


@functools.cache
def _handle_data(shape: tf.TensorShape, dtype: tf.DType) -> Any:
    """Returns TensorFlow's record of the shape and data type behind a handle."""
    return handle_data_util.create_handle_data(shape, dtype)
