"""Traces: compiled functions, whose callers can differentiate the results.

    y = f(x)                                  # runs a `Trace`; y refers to a `TraceCall`
    dx, dv = gradients([y * v], [x, v])       # runs the backward trace of f

The backward function of a trace is recorded when a gradient is first taken, once for each
set of results that have cotangents. It recomputes the forward pass from the arguments of
the call, so the results of a call keep its arguments alive. The backward function is a
trace as well, so that second derivatives work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshtf.errors import PlanError, explain_error
from meshtf.function.variable_use import (
    differentiable_arguments,
    differentiable_captures,
    is_random,
    outer_read,
    read_variables,
    reads_variable,
    track_writes,
    written_variables,
)
from meshtf.graph import (
    Graph,
    HostOp,
    ShardedValue,
    Source,
    Spec,
    Tensor,
    apply,
    executing,
)
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.context import current, default_context
from meshtf.graph.recorder import Recorded
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Mesh, Placement
from meshtf.names import has_gradient
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.eager import EAGER, reshard_to
from meshtf.runtime.runtimes import Executable
from meshtf.runtime.storage.argument_storage import ShardsStore
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.storage.write_times import changed_since, next_time, remove_writer


class Trace:
    """A compiled function, with the nodes that it was compiled from.

    Args:
      name: the name of the function.
      graph: the graph that the function was recorded in.
      recorded: the nodes, results and mesh of the function.
      stores: the stores that the program reads the arguments from, in order.
      compile_recorded: compiles recorded nodes for the stores of arguments; it compiles
        backward functions as well.
      outer_reads: read of a variable in the function -> read of the same variable outside
        of the function; filled by `outer_captures`, and shared with backward functions.

    Attributes:
      executable: the compiled function.
      write_time: when the function last wrote its variables; None: it writes none.
      path: the module path that random ops of the function used; None: it has none.
      variables: the variables that the function reads.
      arguments: reads of the arguments that the results can be differentiated by, in the
        order of the arguments.
      captures: eager tensors, and reads of variables, by which the results can be
        differentiated.
      differentiable: whether any result can have a gradient.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        recorded: Recorded,
        stores: Sequence[Any],
        compile_recorded: Callable[[Recorded, Sequence[Any]], Executable],
        outer_reads: dict[Tensor, Tensor] | None = None,
    ) -> None:
        self.name = name
        self.graph = graph
        self.stores = stores
        self.compile_recorded = compile_recorded
        self.executable = compile_recorded(recorded, stores)
        self.mesh = recorded.mesh
        self.nodes = list(recorded.nodes)
        self.results = list(recorded.results)
        self.specs = [result.spec for result in self.results]
        self.outer_reads = {} if outer_reads is None else outer_reads
        self.write_time = track_writes(self.nodes)
        self.path = current().path if any(map(is_random, self.nodes)) else None
        self.variables = read_variables(self.executable)
        self.arguments = differentiable_arguments(self.nodes, stores)
        self.captures = differentiable_captures(self.nodes, self.results)
        has_sources = bool(self.arguments or self.captures)
        self.differentiable = has_sources and any(
            has_gradient(result.dtype) for result in self.results
        )
        # What the backward trace depends on -> the trace; see `backward`.
        self._backward_traces: dict[Any, BackwardTrace] = {}

    def call(
        self, flat_values: Sequence[Any], tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Runs the function, and returns its results.

        Args:
          flat_values: all arguments, as TensorFlow tensors.
          tensors: the arguments that are named tensors and can have gradients, one for
            each read in the attribute `arguments`, in the same order.
        """
        if self.write_time is not None:
            self.write_time.record()
        outputs = self.executable(flat_values)
        trace_call: TraceCall | None = None
        if self.differentiable and self.write_time is None:
            trace_call = TraceCall(self, flat_values, tensors)
        elif self.differentiable:
            trace_call = WritingTraceCall(self, tensors)
        return [
            _result_tensor(spec, value, self.mesh, trace_call=trace_call, index=i)
            for i, (spec, value) in enumerate(zip(self.specs, outputs, strict=True))
        ]

    def retire(self) -> None:
        """Removes the trace from the writers of its variables: it is never called again."""
        if self.write_time is not None:
            for store in written_variables(self.nodes):
                remove_writer(store, self.write_time)

    def outer_captures(self) -> list[Tensor]:
        """Returns the captures as tensors outside of the function: eager tensors unchanged,
        and for each read of a variable in the function a read of it outside.
        """
        outer_tensors = []
        for x in self.captures:
            is_eager = x.sharded_value is not None
            if is_eager:
                outer_tensors.append(x)
                continue
            if x not in self.outer_reads:
                self.outer_reads[x] = outer_read(x)
            outer_tensors.append(self.outer_reads[x])
        return outer_tensors

    def backward(
        self, indices: tuple[int, ...], cotangent_stores: Sequence[ShardsStore]
    ) -> BackwardTrace:
        """Returns the trace of the backward function, which is recorded at the first call.

        Args:
          indices: the indices of the results that have cotangents.
          cotangent_stores: the stores of these cotangents, in the same order.
        """
        # The trace depends on which mesh positions have the same shard of a cotangent, since
        # it takes each shard once. `distinct_index` is the shard's index for each position.
        placements = tuple(
            (store.placement, store.distinct_index) for store in cotangent_stores
        )
        key = indices, placements
        if key not in self._backward_traces:
            self._backward_traces[key] = self._record_backward(
                indices, cotangent_stores
            )
        return self._backward_traces[key]

    def _record_backward(
        self, indices: tuple[int, ...], cotangent_stores: Sequence[ShardsStore]
    ) -> BackwardTrace:
        """Records and compiles the backward function: see `backward`."""
        graph = self.graph
        # Printing and other effects on the host are not repeated.
        forward_nodes = [node for node in self.nodes if not isinstance(node.op, HostOp)]
        nodes_before = list(graph.nodes)
        # Gradient ops are recorded after the forward ops, in the graph of the function.
        graph.set_nodes(forward_nodes)
        try:
            with executing(graph), default_context():
                gradients = gradients_within(
                    set(forward_nodes),
                    ys=[self.results[i] for i in indices],
                    xs=[*self.arguments, *self.captures],
                    grad_ys=[
                        apply(Read(store), mesh=self.mesh) for store in cotangent_stores
                    ],
                )
            nodes = list(graph.nodes)
        finally:
            graph.set_nodes(nodes_before)
        results = [dx for dx in gradients if dx is not None]
        trace = Trace(
            name=f"the gradient of {self.name}",
            graph=graph,
            recorded=Recorded(nodes, results, self.mesh, f"gradient of {self.name}"),
            stores=[*self.stores, *cotangent_stores],
            compile_recorded=self.compile_recorded,
            outer_reads=self.outer_reads,
        )
        return BackwardTrace(trace, is_present=[dx is not None for dx in gradients])


class BackwardTrace(NamedTuple):
    """The trace of a backward function.

    Attributes:
      trace: takes the arguments of the forward function and the cotangents; its results
        are the gradients that exist.
      is_present: for each of the forward trace's `arguments`, then `captures`, whether its
        gradient exists.
    """

    trace: Trace
    is_present: list[bool]


class TraceCall:
    """One call of a trace, as the gradient rule of the call's results; see
    `graph.GradientRule`.

    Args:
      trace: the trace.
      flat_values: all arguments of the call, as TensorFlow tensors.
      tensors: the arguments that are named tensors and can have gradients, one for each
        read in `trace.arguments`, in the same order.
    """

    # Attributes of a `GradientRule` that are empty here: the backward function reads no
    # tensors but its inputs.
    captures: tuple[Tensor, ...] = ()
    intermediates: tuple[Tensor, ...] = ()

    def __init__(
        self, trace: Trace, flat_values: Sequence[Any], tensors: Sequence[Tensor]
    ) -> None:
        self.trace = trace
        self.flat_values = flat_values
        self.tensors = tensors
        self.num_results = len(trace.results)
        self.called_at = next_time()
        self._inputs: tuple[Tensor, ...] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors to differentiate by: arguments of the call, then captures, in the
        order of `BackwardTrace.is_present`.
        """
        if self._inputs is None:
            self._inputs = (*self.tensors, *self.trace.outer_captures())
        return self._inputs

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of `inputs`.

        Args:
          dys: the cotangents of the results; None: zero.

        Raises:
          PlanError: a variable that the backward function reads was written since the call.
        """
        indices = []
        cotangent_stores: list[ShardsStore] = []
        cotangents: list[Tensor] = []
        flat_values = [*self.flat_values]
        for i, dy in enumerate(dys):
            if dy is None:
                continue
            spec = self.trace.results[i].spec
            placement = self.trace.executable.program.results[i].placement
            dy = transpose(dy, spec.shape.names)
            store, shards = _cotangent_store(dy, spec, self.trace.mesh, placement)
            indices.append(i)
            cotangent_stores.append(store)
            cotangents.append(dy)
            flat_values += shards
        # The backward function returns only the gradients that are present.
        trace, is_present = self.trace.backward(tuple(indices), cotangent_stores)
        for variable in trace.variables:
            if changed_since(variable, self.called_at):
                raise _written_since(self.trace.name, variable)
        gradients = iter(trace.call(flat_values, [*self.tensors, *cotangents]))
        return [next(gradients) if present else None for present in is_present]


class WritingTraceCall(TraceCall):
    """One call of a trace that writes variables: a gradient through it is an error.

    The call keeps no argument alive, so that the losses of many training steps can be
    collected without their batches.
    """

    def __init__(self, trace: Trace, tensors: Sequence[Tensor]) -> None:
        super().__init__(trace, flat_values=(), tensors=())
        self._argument_references = [(weakref.ref(x), _is_leaf(x)) for x in tensors]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments that still exist, and captures.

        Raises:
          PlanError: an argument that depends on other tensors no longer exists, so it is
            unknown whether a gradient flows through it.
        """
        remaining = []
        for reference, is_leaf in self._argument_references:
            tensor = reference()
            if tensor is not None:
                remaining.append(tensor)
            elif not is_leaf:
                raise self._error(
                    "an argument that was computed from other tensors no longer exists, so "
                    "a gradient may flow through a result"
                )
        return (*remaining, *self.trace.outer_captures())

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Raises PlanError: the function writes variables."""
        raise self._error("a gradient flows through a result")

    def _error(self, problem: str) -> PlanError:
        """Returns the error; `problem` says how a gradient concerns a result."""
        name = self.trace.name
        return PlanError(
            explain_error(
                f"{problem} of the function {name!r}, which writes variables: its results "
                "have no gradients outside of it.",
                source=Source.of_caller(),
                way_out=f"Call mtf.gradients inside of {name!r}, or wrap its result in "
                "mtf.stop_gradient if no gradient should flow through it.",
            )
        )


def _written_since(name: str, variable: Any) -> PlanError:
    """Returns the error for a variable that was written after function `name` was called."""
    return PlanError(
        explain_error(
            f"the gradient of a result of the function {name!r} needs the value that "
            f"variable {variable.name!r} had when it was called, and the variable was "
            "written since.",
            source=Source.of_caller(),
            way_out="Call mtf.gradients before the variable is written, or inside of a "
            "mtf.function.",
        )
    )


def _is_leaf(x: Tensor) -> bool:
    """Returns whether an eager tensor depends on no other tensor and no variable."""
    node = x.node
    return node.gradient_rule is None and not node.inputs and not reads_variable(node)


def _result_tensor(
    spec: Spec,
    value: ShardedValue,
    mesh: Mesh,
    trace_call: TraceCall | None,
    index: int,
) -> Tensor:
    """Returns a result of a call as an eager tensor.

    Args:
      spec: the spec of the result.
      value: the value of the result.
      mesh: the mesh of the function.
      trace_call: the call, which becomes the gradient rule; None: there are no gradients.
      index: the index of the result.
    """
    if trace_call is None or not has_gradient(spec.dtype):
        return tensor_of_value(spec, value, mesh)
    return tensor_of_value(
        spec, value, mesh, gradient_rule=(trace_call, index), owner=EAGER
    )


def _cotangent_store(
    dy: Tensor, spec: Spec, mesh: Mesh, placement: Placement
) -> tuple[ShardsStore, list[Any]]:
    """Returns the store of a cotangent as an argument of the backward function, and the
    cotangent's shards in the placement of the result; a shard that several mesh positions
    have is returned once.
    """
    shards, distinct_index = distinct(reshard_to(dy, placement))
    return ShardsStore("a cotangent", spec, mesh, placement, distinct_index), shards
