"""Creates resource handles of many variables at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import _pywrap_tfe
from tensorflow.python.eager import context, core
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def make_handles(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns handles of variables with initial values, one on each of `devices`. Only
    outside of tf.functions.

    The handles have neither names nor shapes: TensorFlow would make a kernel for each
    name and shape on each device, which takes longer than everything else. All ops of one
    type run in sequence, which is faster by the caches of the CPU.
    """
    dtype = values[0].dtype.as_datatype_enum
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
    with _run_directly() as run:
        handles = [
            run("VarHandleOp", [], handle_attrs, 1, device)[0] for device in devices
        ]
        for handle, value, device in zip(handles, values, devices, strict=True):
            run("AssignVariableOp", [handle, value], assign_attrs, 0, device)
    return handles


def pack_handles(handles: Sequence[Any], device: str) -> Any:
    """Returns handles as one tensor. Only outside of tf.functions."""
    attrs = "N", len(handles), "T", tf.resource.as_datatype_enum, "axis", 0
    with _run_directly() as run:
        return run("Pack", list(handles), attrs, 1, device)[0]


@contextlib.contextmanager
def _run_directly() -> Iterator[Callable[..., list[Any]]]:
    """Yields a function that runs an op on a device, given its type, inputs, attributes
    and number of outputs.

    By default TensorFlow makes a function of each type of op on each device; this is
    turned off in the block. `tf.raw_ops` would first try a fast path that fails for
    handles.
    """
    eager = context.context()
    eager.ensure_initialized()

    def run(
        kind: str,
        inputs: list[Any],
        attrs: Any,
        outputs: int,
        device: str,
    ) -> list[Any]:
        return list(
            _pywrap_tfe.TFE_Py_Execute(
                eager._handle,
                device,
                kind,
                inputs,
                attrs,
                outputs,
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
def temporary_handle(value: Any) -> Iterator[Any]:
    """Yields the handle of a resource with an initial value, which is destroyed at the
    end of the block. Only in graphs.
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
    """Returns the tf.Variable of a handle.

    Args:
      handle: the resource handle.
      like: an object with the variable's `shape`, `dtype` and `trainable`.
    """
    handle_data_util.set_handle_data(handle, _handle_data(like.shape, like.dtype))
    return ResourceVariable(
        handle=handle,
        trainable=like.trainable,
        shape=like.shape,
        dtype=like.dtype,
    )


@functools.cache
def _handle_data(shape: tf.TensorShape, dtype: tf.DType) -> Any:
    return handle_data_util.create_handle_data(shape, dtype)
