"""Traces of functions, and gradients of their results outside of the function.

    y = f(x)                                  # runs a `Trace`; y refers to a `TraceCall`
    dx, dv = gradients([y * v], [x, v])       # runs the trace of its backward function

A backward function is recorded at the first gradient, once for each set of results that
have cotangents. It recomputes the forward pass from the arguments of the call. It is a
trace as well, so its results have gradients too. The results of a call keep its arguments
alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.function.variable_use import (
    differentiable_arguments,
    differentiable_captures,
    is_random,
    read_variables,
    reads_variable,
    track_writes,
    written_variables,
)
from meshtf.graph import (
    Graph,
    HostOp,
    Node,
    ReadOp,
    ShardedValue,
    Source,
    Spec,
    Tensor,
    apply,
    executing,
)
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.context import Context, current, default_context
from meshtf.graph.recorder import Recorded
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Layout, Mesh, Placement
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
      name: of the function.
      graph: the graph that it was recorded in.
      recorded: its nodes and results.
      stores: of the arguments, in order.
      compile_recorded: compiles nodes and results with stores of arguments; the backward
        functions are compiled by it, too.
      stand_ins: see below.

    Attributes:
      path: the path of modules that its random ops used; None: it draws no numbers.
      variables: the variables that it reads.
      arguments: the reads of those arguments that can have gradients.
      captures: eager tensors and reads of variables that can have gradients.
      differentiable: whether its results may have gradients outside.
      stand_ins: for each read of a variable in the function, the read outside of it.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        recorded: Recorded,
        stores: Sequence[Any],
        compile_recorded: Callable[[Recorded, Sequence[Any]], Executable],
        stand_ins: dict[Tensor, Tensor] | None = None,
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
        self.stand_ins = {} if stand_ins is None else stand_ins
        self.write_time = track_writes(self.nodes)
        self.path = current().path if any(map(is_random, self.nodes)) else None
        self.variables = read_variables(self.executable)
        self.arguments = differentiable_arguments(self.nodes, stores)
        self.captures = differentiable_captures(self.nodes, self.results)
        self.differentiable = any(has_gradient(r.dtype) for r in self.results) and bool(
            self.arguments or self.captures
        )
        self._backward_traces: dict[Any, tuple[Trace, list[bool]]] = {}

    def call(self, values: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs the program, and returns its results.

        Args:
          values: the TensorFlow tensors of all arguments.
          tensors: those arguments that are tensors and can have gradients.
        """
        if self.write_time is not None:
            self.write_time.record()
        outputs = self.executable(values)
        trace_call: TraceCall | None = None
        if self.differentiable and self.write_time is None:
            trace_call = TraceCall(self, values, tensors)
        elif self.differentiable:
            trace_call = WritingTraceCall(self, tensors)
        return [
            _result(self.mesh, spec, value, trace_call, k)
            for k, (spec, value) in enumerate(zip(self.specs, outputs, strict=True))
        ]

    def retire(self) -> None:
        """Says that the trace is not called any more. Its variables then need not ask it
        when they were written.
        """
        if self.write_time is not None:
            for store in written_variables(self.nodes):
                remove_writer(store, self.write_time)

    def outer_captures(self) -> list[Tensor]:
        """Returns the captures as tensors outside of the function."""
        outer = []
        for x in self.captures:
            if x.sharded_value is not None:
                outer.append(x)
                continue
            if x not in self.stand_ins:
                self.stand_ins[x] = _stand_in(x)
            outer.append(self.stand_ins[x])
        return outer

    def backward(
        self, indices: tuple[int, ...], cotangents: Sequence[ShardsStore]
    ) -> tuple[Trace, list[bool]]:
        """Returns the trace of the backward function, recorded at the first call.

        Args:
          indices: of the results that have cotangents.
          cotangents: the stores by which these are passed.

        Returns:
          (trace, whether each of arguments and captures has a gradient). The results of
          the trace are the gradients that exist.
        """
        placements = tuple((s.placement, s.distinct_index) for s in cotangents)
        key = indices, placements
        if key not in self._backward_traces:
            self._backward_traces[key] = self._record_backward(indices, cotangents)
        return self._backward_traces[key]

    def _record_backward(
        self, indices: tuple[int, ...], cotangents: Sequence[ShardsStore]
    ) -> tuple[Trace, list[bool]]:
        """Records and compiles the backward function: see `backward`."""
        graph = self.graph
        forward_nodes = [n for n in self.nodes if not isinstance(n.op, HostOp)]
        nodes_before = list(graph.nodes)
        graph.set_nodes(forward_nodes)
        try:
            with executing(graph), default_context():
                gradients = gradients_within(
                    set(forward_nodes),
                    [self.results[k] for k in indices],
                    [*self.arguments, *self.captures],
                    [apply(Read(store), mesh=self.mesh) for store in cotangents],
                )
            nodes = list(graph.nodes)
        finally:
            graph.set_nodes(nodes_before)
        results = [dx for dx in gradients if dx is not None]
        trace = Trace(
            f"the gradient of {self.name}",
            graph,
            Recorded(nodes, results, self.mesh),
            [*self.stores, *cotangents],
            self.compile_recorded,
            self.stand_ins,
        )
        return trace, [dx is not None for dx in gradients]


class TraceCall:
    """A call of a trace: the gradient rule of its results; see `graph.GradientRule`.

    Args:
      trace: the trace.
      flat_values: the TensorFlow tensors of all arguments.
      tensors: those arguments that are tensors and can have gradients.
    """

    captures: tuple[Tensor, ...] = ()
    intermediates: tuple[Tensor, ...] = ()

    def __init__(
        self, trace: Trace, flat_values: Sequence[Any], tensors: Sequence[Tensor]
    ) -> None:
        self.trace = trace
        self.flat_values = flat_values
        self.tensors = tensors
        self.num_results = len(trace.results)
        self.time = next_time()
        self._inputs: tuple[Tensor, ...] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors to differentiate by: arguments and captures."""
        if self._inputs is None:
            self._inputs = (*self.tensors, *self.trace.outer_captures())
        return self._inputs

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of inputs. Raises PlanError if a variable that is read
        was written since the call.
        """
        indices = []
        stores: list[ShardsStore] = []
        cotangents: list[Tensor] = []
        flat_values = [*self.flat_values]
        for k, dy in enumerate(dys):
            if dy is None:
                continue
            spec = self.trace.results[k].spec
            placement = self.trace.executable.program.results[k].placement
            dy = transpose(dy, spec.shape.names)
            store, shards = _as_argument(dy, spec, self.trace.mesh, placement)
            indices.append(k)
            stores.append(store)
            cotangents.append(dy)
            flat_values += shards
        trace, has_cotangent = self.trace.backward(tuple(indices), stores)
        for store in trace.variables:
            if changed_since(store, self.time):
                raise _written_since(self.trace.name, store)
        results = iter(trace.call(flat_values, [*self.tensors, *cotangents]))
        return [next(results) if has else None for has in has_cotangent]


class WritingTraceCall(TraceCall):
    """A call of a trace that writes variables: gradients through it are an error.

    It keeps no argument alive: training steps are called in long runs, and their losses
    collected.
    """

    def __init__(self, trace: Trace, tensors: Sequence[Tensor]) -> None:
        super().__init__(trace, (), ())
        self._arguments = [(weakref.ref(x), _is_leaf(x)) for x in tensors]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        alive = []
        for reference, is_leaf in self._arguments:
            tensor = reference()
            if tensor is not None:
                alive.append(tensor)
            elif not is_leaf:
                raise self._error(
                    "depends on what its arguments were made of, which are gone"
                )
        return (*alive, *self.trace.outer_captures())

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        raise self._error("is on the way of a gradient")

    def _error(self, reason: str) -> PlanError:
        name = self.trace.name
        return PlanError(
            explain_error(
                f"a result of the function {name!r} {reason}, and the function writes "
                "variables, so that it has no gradient outside.",
                **{"from": Source.of_caller()},
                way_out=f"Call mtf.gradients inside of {name!r}, or wrap its result in "
                "mtf.stop_gradient if no gradient should flow through it.",
            )
        )


def _written_since(name: str, store: Any) -> PlanError:
    """Returns the error for a variable that was written after the call."""
    return PlanError(
        explain_error(
            f"the gradient of a result of the function {name!r} needs the value that "
            f"variable {store.name!r} had when it was called, and the variable was "
            "written since.",
            **{"from": Source.of_caller()},
            way_out="Call mtf.gradients before the variable is written, or inside of a "
            "mtf.function.",
        )
    )


def _is_leaf(x: Tensor) -> bool:
    """Returns whether an eager tensor depends on nothing that can have a gradient."""
    node = x.node
    return node.gradient_rule is None and not node.inputs and not reads_variable(node)


def _stand_in(x: Tensor) -> Tensor:
    """Returns a read of a variable outside of a function, for its read in the function."""
    assert isinstance(x.node.op, ReadOp)
    store: Any = x.node.op.store
    region = Layout.changes("*:").then(store.layout)
    context = Context(region=region, stage=store.stage)
    # Its serial must be before those of all calls of the function.
    serial = x.node.serial
    op = x.node.op
    node = Node(op, (), (x.spec,), x.mesh, x.node.source, context, EAGER, serial)
    return node.outputs[0]


def _result(
    mesh: Mesh,
    spec: Spec,
    value: ShardedValue,
    trace_call: TraceCall | None,
    index: int,
) -> Tensor:
    """Returns a result of a call, with the call as its gradient rule."""
    if trace_call is None or not has_gradient(spec.dtype):
        return tensor_of_value(spec, value, mesh)
    return tensor_of_value(spec, value, mesh, (trace_call, index), EAGER)


def _as_argument(
    dy: Tensor, spec: Spec, mesh: Mesh, placement: Placement
) -> tuple[ShardsStore, list[Any]]:
    """Returns the store of a cotangent in the placement of its tensor, and its distinct
    shards.
    """
    shards, distinct_index = distinct(reshard_to(dy, placement))
    return ShardsStore("a cotangent", spec, mesh, placement, distinct_index), shards
