"""Runs the ops of a program on one device, and checks their outputs against their specs.

    outputs = run_segment(segment, mesh, coordinates, inputs)       # shards of one device

A segment is a sequence of computations without communication. A `Compute` step runs one
node, which is an op with its inputs in the graph. Some ops exchange statistics, such as
softmax along a sharded dimension: one step computes the statistics of the local shard, and
a later one the outputs, from the statistics of all shards and from *residuals*, which are
tensors that the first step leaves on the device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Node, Op, OpWithStatistics, Spec
from meshtf.graph.op_kinds import EntryOp
from meshtf.mesh import Mesh
from meshtf.ops.common.trace_cache import trace_cache
from meshtf.ops.slicewise.slicewise import Slicewise, name_of
from meshtf.partition import Compute, Segment, Value
from meshtf.runtime.lowering.filled_padding import (
    POISON,
    with_filled_padding,
    with_poisoned_padding,
)
from meshtf.runtime.lowering.local_context import (
    CheckRecorder,
    DeviceContext,
    MeshCoordinates,
    Stored,
)
from meshtf.runtime.lowering.many_dimensions import with_few_axes
from meshtf.runtime.lowering.op_names import shared_scope_of
from meshtf.runtime.tf_internals.captured_tensors import captured_as_constants
from meshtf.runtime.tf_internals.xla_ops import added_at, optimization_barrier

TensorList = list[Any]  # tensors of one device, in order
# A function (key, body, specs) -> function, which is traced from `body` for arguments with
# these specs, once for all ops with an equal key.
Outline = Callable[
    [Any, Callable[..., TensorList], Sequence[Any]],
    Callable[[Sequence[Any]], TensorList],
]


def run_segment(
    segment: Segment,
    mesh: Mesh,
    coordinates: MeshCoordinates,
    inputs: TensorList,
    jit: bool = False,
    outline: Outline | None = None,
    stored: Stored | None = None,
) -> TensorList:
    """Returns the outputs of a segment on one device.

    Args:
      segment: the segment.
      mesh: the mesh of the program.
      coordinates: the coordinates of the device's mesh position.
      inputs: the shards of the segment's inputs.
      jit: whether XLA compiles the segment.
      outline: see `Outline`; None: ops share no functions.
      stored: see `DeviceContext`; None: XLA may compute a tensor several times.
    """
    shard_of: dict[Value, Any] = dict(zip(segment.ins, inputs))
    with trace_cache():
        for compute in segment.computes:
            with _name_scope(compute):
                run_compute(
                    compute,
                    mesh,
                    coordinates,
                    shard_of,
                    jit=jit,
                    outline=outline,
                    stored=stored,
                )
    return [shard_of[v] for v in segment.outs]


def _name_scope(compute: Compute) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which names of TensorFlow ops start with module and op; ops
    that run eagerly have no names.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    # TensorFlow takes a name that ends with "/" as it is: it adds neither the enclosing
    # scope nor a number.
    return tf.name_scope(f"{shared_scope_of(compute.node)}/")


def run_compute(
    compute: Compute,
    mesh: Mesh,
    coordinates: MeshCoordinates,
    shard_of: dict[Value, Any],
    jit: bool = False,
    outline: Outline | None = None,
    on_any_device: bool = False,
    checks: CheckRecorder | None = None,
    stored: Stored | None = None,
    total: Any = None,
) -> Sequence[Any]:
    """Runs one op on one device, and returns its outputs.

    Args:
      compute: the op, and how it runs.
      mesh: the mesh of the program.
      coordinates: the coordinates of the device's mesh position.
      shard_of: {value: the device's shard}; has the inputs, and the outputs are added.
      jit: whether XLA compiles the op.
      outline: see `Outline`; None: the op shares no function.
      on_any_device: whether the op may run on other devices than those of the mesh.
      checks: the recorder of checks of indices; None: checks are not recorded.
      stored: see `DeviceContext`; None: XLA may compute a tensor several times.
      total: the device's shard of a sum, which is returned with the output, one entry of an
        `EntryOp`, added in place; None: the output is returned.
    """
    inputs = [shard_of[v] for v in compute.ins]
    awaited_tensors = [shard_of[value] for value in compute.waits_for]
    if awaited_tensors and inputs and jit:
        # XLA ignores control dependencies between ops without side effects, so that only
        # a barrier makes the inputs wait.
        inputs = optimization_barrier([*inputs, *awaited_tensors])[: len(inputs)]
    with tf.control_dependencies(awaited_tensors):
        if awaited_tensors:
            # Copies that wait, so that each op which reads them waits.
            inputs = [tf.identity(x) for x in inputs]
        context = DeviceContext(
            node=compute.node,
            plan=compute.plan,
            mesh=mesh,
            coordinates=coordinates,
            input_shards=tuple(inputs),
            compiled=jit,
            on_any_device=on_any_device,
            checks=checks,
            stored=stored,
            batch_half=compute.batch_half,
        )
        if POISON.integer is not None:
            inputs = with_poisoned_padding(compute.node, context, inputs)
        if mesh.pads:
            inputs = with_filled_padding(compute.node, context, inputs)
        output_shapes = context.outputs
        context, inputs = with_few_axes(compute.node.op, context, inputs)
        with _functions_of_users(compute.node):
            if total is not None:
                outputs: Sequence[Any] = [
                    _with_entry(total, compute.node.op, context, inputs)
                ]
            else:
                outputs = _local_outputs(
                    compute, context, inputs, shard_of=shard_of, outline=outline
                )
        if context.outputs != output_shapes and not compute.makes_statistics:
            outputs = [
                tf.reshape(y, shape.sizes) for y, shape in zip(outputs, output_shapes)
            ]
        shard_of.update(zip(compute.outs, outputs))
    return outputs


def _local_outputs(
    compute: Compute,
    context: DeviceContext,
    inputs: TensorList,
    shard_of: Mapping[Value, Any],
    outline: Outline | None,
) -> Sequence[Any]:
    """Returns the outputs of an op on one device; or (statistics, residuals) if the step
    computes the statistics of the op.
    """
    op = compute.node.op
    if isinstance(op, OpWithStatistics) and compute.makes_statistics:
        statistics = op.statistics(context, *inputs)
        _check_statistics(compute, op, context, statistics.exchanged)
        return tuple(statistics.exchanged), tuple(statistics.residuals)
    if isinstance(op, OpWithStatistics) and compute.gathered is not None:
        assert compute.residuals is not None
        gathered = shard_of[compute.gathered]
        residuals = shard_of[compute.residuals]
        outputs = op.local_sharded(context, gathered, residuals, *inputs)
    elif op.share_trace and outline is not None:
        return _outlined_outputs(compute, context, inputs, outline)
    else:
        outputs = op.local(context, *inputs)
    _check_outputs(compute, context, outputs)
    return outputs


def _with_entry(total: Any, op: Op, context: DeviceContext, inputs: TensorList) -> Any:
    """Returns a device's shard of a sum with the only entry of another term added, which XLA does
    in place.

    Args:
      total: the shard, perhaps of a wider data type than the term.
      op: the op that computes the term, which is zero but for the entry.
      context: the shapes of its shards.
      inputs: the shards of its inputs.
    """
    assert isinstance(op, EntryOp) and op.entry_dim is not None
    entry, index = op.entry(context, *inputs)
    (shape,) = context.outputs
    axis = shape.index(op.entry_dim)
    sizes = list(shape.sizes)
    sizes[axis] = 1
    begin = [tf.zeros([], index.dtype)] * len(sizes)
    begin[axis] = index
    entry = tf.reshape(tf.cast(entry, total.dtype), sizes)
    return added_at(total, entry, begin)


def _outlined_outputs(
    compute: Compute,
    context: DeviceContext,
    inputs: TensorList,
    outline: Outline,
) -> Sequence[Any]:
    """Returns the outputs of `Op.local`, called as a function that all equal nodes
    share.
    """
    # The mesh axes that shard the op, and the coordinates of this device along them, which
    # are arguments of the function, since devices share it.
    axes = compute.plan.sharding_axes
    coordinates = [context.coordinates[axis] for axis in axes]
    dtypes = tuple(x.dtype for x in inputs)
    key = (compute.node.op, compute.plan, context.inputs, dtypes, compute.batch_half)
    num_inputs = len(inputs)

    def body(*traced_arguments: Any) -> list[Any]:
        traced_inputs = traced_arguments[:num_inputs]
        traced_coordinates = dict(zip(axes, traced_arguments[num_inputs:]))
        traced_context = context.with_coordinates(traced_coordinates)
        with _functions_of_users(compute.node):
            outputs = compute.node.op.local(traced_context, *traced_inputs)
        _check_outputs(compute, traced_context, outputs)
        return list(outputs)

    arguments = [*inputs, *coordinates]
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
    function = outline(key, body, specs)
    return function(arguments)


@contextlib.contextmanager
def _functions_of_users(node: Node) -> Iterator[None]:
    """Within this context run the TensorFlow functions of a node, which may be a user's: they
    may read tensors from outside.

    Raises:
      PlanError: the function reads a variable of TensorFlow from outside, or TensorFlow has
        no gradient of it.
    """
    with captured_as_constants(functools.partial(_captured_variable, node)):
        try:
            yield
        except LookupError as error:
            if not isinstance(node.op, Slicewise):
                raise
            raise PlanError(
                explain_error(
                    f"slicewise: TensorFlow cannot compute {name_of(node.op.fn)}: {error}",
                    source=node.source,
                    way_out="Wrap fn in tf.custom_gradient, or its input in "
                    "mtf.stop_gradient.",
                )
            ) from None


def _captured_variable(node: Node) -> PlanError:
    """Returns the error for a node whose function captures a variable of TensorFlow."""
    subject = f"{type(node.op).__name__}.local"
    way_out = (
        "Make its value an input of the op: a mtf.Variable, or a tensor by mtf.asarray."
    )
    if isinstance(node.op, Slicewise):
        subject = f"the function of slicewise, {name_of(node.op.fn)},"
        way_out = (
            "Pass it in xs, as a mtf.Variable or a tensor by mtf.asarray: slicewise(lambda "
            "x, v: ..., [x, v]). A Keras layer runs as layer.stateless_call, with its "
            "weights in xs."
        )
    return PlanError(
        explain_error(
            f"{subject} reads a tf.Variable or another resource of TensorFlow from outside, "
            "whose value no recorded program keeps.",
            source=node.source,
            inputs=" ".join(repr(x.shape) for x in node.inputs),
            way_out=way_out,
        )
    )


def _check_outputs(compute: Compute, context: DeviceContext, ys: Sequence[Any]) -> None:
    """Checks that the outputs of `Op.local` have the specs of `Op.output_specs`.

    Raises:
      PlanError: an output has another shape or data type.
    """
    specs = [output.spec for output in compute.node.outputs]
    for y, spec, local_shape in zip(ys, specs, context.outputs, strict=True):
        if tuple(y.shape) == local_shape.sizes and y.dtype.name == spec.dtype:
            continue
        if isinstance(compute.node.op, Slicewise):
            raise PlanError(
                compute.node.op.wrong_result(
                    f"{y.dtype.name} {list(y.shape)}",
                    f"{spec.dtype} {local_shape!r}",
                    inputs=" ".join(map(repr, context.inputs)),
                    source=str(compute.node.source),
                )
            )
        raise PlanError(
            explain_error(
                f"{compute.node.op.display_name}.local returned {y.dtype.name} "
                f"{tuple(y.shape)}, but its `output_specs` announces {spec.dtype} "
                f"{local_shape!r}.",
                source=compute.node.source,
                inputs=" ".join(map(repr, context.inputs)),
                way_out="Correct the op: `local` and `output_specs` must agree.",
            )
        )


def _check_statistics(
    compute: Compute,
    op: OpWithStatistics,
    context: DeviceContext,
    exchanged: Sequence[Any],
) -> None:
    """Checks that statistics have the data types and sizes that `statistics_specs`
    announces: forecasts compute bytes from these specs.

    Raises:
      PlanError: the data types or sizes differ.
    """
    local_specs = [
        Spec(shape, x.spec.dtype)
        for shape, x in zip(context.inputs, compute.node.inputs, strict=True)
    ]
    specs = op.statistics_specs(*local_specs)
    actual_sizes = [(x.dtype.name, x.shape.num_elements()) for x in exchanged]
    announced_sizes = [(spec.dtype, spec.shape.size) for spec in specs]
    if actual_sizes != announced_sizes:
        actual = ", ".join(f"{x.dtype.name} {tuple(x.shape)}" for x in exchanged)
        announced = ", ".join(f"{s.dtype} {s.shape!r}" for s in specs) or "nothing"
        raise PlanError(
            explain_error(
                f"{op.display_name}.statistics exchanges {actual or 'nothing'}, but its "
                f"`statistics_specs` announces {announced}.",
                source=compute.node.source,
                inputs=" ".join(map(repr, context.inputs)),
                way_out="Correct the op: `statistics` and `statistics_specs` must agree, "
                "except for dimensions of size 1.",
            )
        )
