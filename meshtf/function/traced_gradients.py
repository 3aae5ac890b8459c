"""Traces of functions, whose results have gradients outside of the function that made
them.

    y = f(x)                                  # a `Trace` runs; y remembers the `Called` trace
    dx, dv = gradients([y * v], [x, v])       # runs the trace of its backward function

A backward function is recorded when the first gradient asks for it, once for each set
of results that have cotangents. It computes the forward part again, from the arguments
of the call, and is a trace as well: so its results have gradients, too. The results of
a call hold its arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Graph,
    HostOp,
    Node,
    ReadOp,
    ShardedValue,
    Source,
    Spec,
    Tensor,
    WriteOp,
    apply,
    executing,
)
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.context import Context, current, nothing_in_force
from meshtf.graph.control_flow.body import uses
from meshtf.graph.recorder import Recorded
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Layout, Mesh, Placement
from meshtf.names import has_gradient
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.read_write import PathHash, Read
from meshtf.partition import ReadStep
from meshtf.runtime.eager import EAGER, bring
from meshtf.runtime.runtimes import Executable
from meshtf.runtime.storage.argument_storage import SlicesStore
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.storage.write_times import Writes, changed_since, forget, now

_NOTHING = ()


class Trace:
    """A compiled function that remembers what it was made of.

    Args:
      name: of the function.
      graph: where it was recorded.
      recorded: what was recorded there.
      stores: the arguments, in order.
      compile_recorded: makes an executable of what was recorded, with these stores; its
        gradients are compiled by it, too.
      stand_ins: by reads of variables: what stands for them outside of the function.

    Its `path` is that under which random ops drew their numbers; None: there are none.
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
        nodes, results, self.mesh = recorded
        self.nodes = list(nodes)
        self.results = list(results)
        self.specs = [result.spec for result in results]
        self.stand_ins = {} if stand_ins is None else stand_ins
        self.writes = _writes(nodes)
        self.path = current().path if any(map(_draws, nodes)) else None
        self.variables = [
            step.store
            for step in self.executable.program.steps
            if isinstance(step, ReadStep) and _is_variable(step.store)
        ]
        reads = {n.op.store: n.outputs[0] for n in nodes if isinstance(n.op, ReadOp)}
        self.arguments = [
            reads[s]
            for s in stores
            if isinstance(s, SlicesStore) and has_gradient(s.spec.dtype)
        ]
        self.outside = list(_outside(nodes, results))
        self.linked = any(has_gradient(r.dtype) for r in results) and bool(
            self.arguments or self.outside
        )
        self._backwards: dict[Any, tuple[Trace, list[bool]]] = {}

    def call(self, flat: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs the program.

        Args:
          flat: the TensorFlow tensors of all arguments.
          tensors: those arguments that are tensors and can have gradients.
        """
        if self.writes is not None:
            self.writes.happen()
        values = self.executable(flat)
        called: Called | None = None
        if self.linked and self.writes is None:
            called = Called(self, flat, tensors)
        elif self.linked:
            called = CalledWriter(self, tensors)
        return [
            _result(self.mesh, spec, held, called, k)
            for k, (spec, held) in enumerate(zip(self.specs, values, strict=True))
        ]

    def retire(self) -> None:
        """Says that nobody calls it again: its variables no longer need it to know when
        they were written.
        """
        if self.writes is not None:
            for store in _written_by(self.nodes):
                forget(store, self.writes)

    def sources(self) -> list[Tensor]:
        """Returns what the function uses besides arguments: eager tensors, and reads of
        variables, which stand-ins replace outside of it."""
        for x in self.outside:
            if x.held is None and x not in self.stand_ins:
                self.stand_ins[x] = _stand_in(x)
        return [self.stand_ins.get(x, x) for x in self.outside]

    def backward(
        self, there: tuple[int, ...], dys: Sequence[SlicesStore]
    ) -> tuple[Trace, list[bool]]:
        """Returns the trace of the gradient by arguments and `outside`, and which of
        them it has.

        Args:
          there: which results have cotangents.
          dys: what these are passed by.
        """
        key = there, tuple((s.placement, s.pattern) for s in dys)
        if key not in self._backwards:
            self._backwards[key] = self._record_backward(there, dys)
        return self._backwards[key]

    def _record_backward(
        self, there: tuple[int, ...], dys: Sequence[SlicesStore]
    ) -> tuple[Trace, list[bool]]:
        graph, nodes = (
            self.graph,
            [n for n in self.nodes if not isinstance(n.op, HostOp)],
        )
        before = list(graph.nodes)
        graph.continue_after(nodes)
        try:
            with executing(graph), nothing_in_force():
                given = [apply(Read(store), mesh=self.mesh) for store in dys]
                made = gradients_within(
                    set(nodes),
                    [self.results[k] for k in there],
                    [*self.arguments, *self.outside],
                    given,
                )
            nodes = list(graph.nodes)
        finally:
            graph.continue_after(before)
        trace = Trace(
            f"the gradient of {self.name}",
            graph,
            Recorded(nodes, [dx for dx in made if dx is not None], self.mesh),
            [*self.stores, *dys],
            self.compile_recorded,
            self.stand_ins,
        )
        return trace, [dx is not None for dx in made]


class Called:
    """A call of a trace: the rule by which its results have gradients; see
    `graph.Rule`.
    """

    captures: tuple[Tensor, ...] = _NOTHING
    beside: tuple[Tensor, ...] = _NOTHING

    def __init__(
        self, trace: Trace, flat: Sequence[Any], tensors: Sequence[Tensor]
    ) -> None:
        self.trace = trace
        self.flat = flat
        self.tensors = tensors
        self.count = len(trace.results)
        self.time = now()
        self._inputs: tuple[Tensor, ...] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors by which there are gradients."""
        if self._inputs is None:
            self._inputs = (*self.tensors, *self.trace.sources())
        return self._inputs

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of inputs. Raises PlanError if a variable was written
        since.
        """
        there = tuple(k for k, dy in enumerate(dys) if dy is not None)
        given, passed = [], []
        for k, dy in enumerate(dys):
            if dy is not None:
                spec = self.trace.results[k].spec
                given.append(transpose(dy, spec.shape.names))
                placement = self.trace.executable.program.results[k].placement
                passed.append(_passed(given[-1], spec, self.trace.mesh, placement))
        trace, reached = self.trace.backward(there, [store for store, _ in passed])
        for store in trace.variables:
            if changed_since(store, self.time):
                raise _written_since(self.trace.name, store)
        made = iter(
            trace.call(
                [*self.flat, *(x for _, different in passed for x in different)],
                [*self.tensors, *given],
            )
        )
        return [next(made) if has else None for has in reached]


class CalledWriter(Called):
    """A call of a trace that writes variables: a gradient on the way of its results is
    refused.

    It holds no argument: training steps are called without end, and their losses
    collected.
    """

    def __init__(self, trace: Trace, tensors: Sequence[Tensor]) -> None:
        super().__init__(trace, _NOTHING, _NOTHING)
        self._arguments = [(weakref.ref(x), _is_first(x)) for x in tensors]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        found = [(ref(), first) for ref, first in self._arguments]
        if any(x is None and not first for x, first in found):
            raise self._refusal(
                "depends on what its arguments were made of, which are gone"
            )
        return (*(x for x, _ in found if x is not None), *self.trace.sources())

    def gradient(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        raise self._refusal("is on the way of a gradient")

    def _refusal(self, what: str) -> PlanError:
        name = self.trace.name
        return PlanError(
            explain_error(
                f"a result of the function {name!r} {what}, and the function writes "
                "variables, so that it has no gradient outside.",
                **{"from": Source.of_caller()},
                way_out=f"Call mtf.gradients inside of {name!r}, or wrap its result in "
                "mtf.stop_gradient if no gradient should flow through it.",
            )
        )


def _written_since(name: str, store: Any) -> PlanError:
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


def _writes(nodes: Iterable[Node]) -> Writes | None:
    """Returns what tells when the variables of a program were written; None: it writes
    none.
    """
    stores = _written_by(nodes)
    if not stores:
        return None
    writes = Writes()
    for store in stores:
        store.writers.append(writes)
    return writes


def _written_by(nodes: Iterable[Node]) -> list[Any]:
    """Returns the variables that a program writes."""
    ops = [n.op for n in nodes if isinstance(n.op, WriteOp)]
    return list(dict.fromkeys(store for op in ops for store in op.variables))


def _draws(node: Node) -> bool:
    return isinstance(node.op, ReadOp) and isinstance(node.op.store, PathHash)


def _is_variable(store: Any) -> bool:
    return store.kind in ("parameter", "state")


def _reads_variable(node: Node) -> bool:
    return isinstance(node.op, ReadOp) and _is_variable(node.op.store)


def _is_first(x: Tensor) -> bool:
    """Returns whether an eager tensor was made of nothing that can have a gradient."""
    node = x.node
    return node.rule is None and not node.inputs and not _reads_variable(node)


def _outside(nodes: Sequence[Node], results: Sequence[Tensor]) -> Iterable[Tensor]:
    """Returns reads of variables, and eager tensors that a program uses, if they have
    gradients.
    """
    used = dict.fromkeys((*(x for n in nodes for x in uses(n)), *results))
    return [
        x
        for x in used
        if has_gradient(x.dtype) and (x.held is not None or _reads_variable(x.node))
    ]


def _stand_in(x: Tensor) -> Tensor:
    """Returns what stands for the read of a variable in a function, outside of it."""
    assert isinstance(x.node.op, ReadOp)
    store: Any = x.node.op.store
    around = Context(region=Layout.changes("*:").then(store.layout), stage=store.stage)
    # Its number is before those of all calls of the function.
    serial = x.node.serial
    op, source = x.node.op, x.node.source
    node = Node(op, (), (x.spec,), x.mesh, source, around, EAGER, serial)
    return node.outputs[0]


def _result(
    mesh: Mesh, spec: Spec, held: ShardedValue, called: Called | None, index: int
) -> Tensor:
    """Returns a result of a call, by which its gradient is."""
    if called is None or not has_gradient(spec.dtype):
        return tensor_of_value(spec, held, mesh)
    return tensor_of_value(spec, held, mesh, (called, index), EAGER)


def _passed(
    dy: Tensor, spec: Spec, mesh: Mesh, placement: Placement
) -> tuple[SlicesStore, list[Any]]:
    """Returns the store of a cotangent, which lies as its tensor does, and
    its shards.
    """
    shards, pattern = distinct(bring(dy, placement))
    return SlicesStore("a cotangent", spec, mesh, placement, pattern), shards
