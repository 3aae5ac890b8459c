"""A planned program becomes a forecast: every op, its moves, and what they cost.

No devices and no TensorFlow: a program says what one position does, whatever their
number, so the forecast for 2,048 positions takes as long as that for eight.

    forecast("train_step", graph.nodes, results, mesh)
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from meshtf.errors import MeshtfError
from meshtf.forecast.communication import Communication
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.layout_notes import layout_notes
from meshtf.forecast.peak_memory import Peaks, at_stages, peaks, stages
from meshtf.forecast.report_data import (
    Collective,
    Computation,
    Memory,
    Phase,
    PlacedTensor,
    Stage,
    StoredTensor,
)
from meshtf.forecast.state_names import has_shape_of, state_name
from meshtf.forecast.step_phases import phases
from meshtf.graph import (
    Node,
    ReadOp,
    Spec,
    Store,
    Tensor,
)
from meshtf.mesh import Mesh, OnStage, Placement, Replicated
from meshtf.partition import (
    BranchStep,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    MoveStep,
    Program,
    ReadStep,
    Value,
    WindowStep,
    WriteStep,
    build,
    walk,
)
from meshtf.partition.cost import (
    bytes_received,
    local_bytes,
    local_shape,
    rows_received,
)


def forecast(
    name: str,
    nodes: Sequence[Node],
    results: Sequence[Tensor] | None,
    mesh: Mesh,
    error: MeshtfError | None = None,
) -> Forecast:
    """Returns what a recorded function will do and cost.

    Args:
      name: of the function.
      nodes: what was recorded.
      results: what it returns; None: it was refused on the way, and all that was
        recorded is shown.
      mesh: where it runs.
      error: why it was refused.
    """
    program = build(nodes, results or [], mesh, prune=results is not None)
    found = _Analysis(program, phases(nodes, results or []))
    for step in program.steps:
        found.add(step)
    memory = found.memory(program)
    return Forecast(
        name,
        tuple(mesh.axes.items()),
        repr(mesh.layout),
        repr(mesh.variable_layout),
        repr(mesh.optimizer_layout),
        tuple(found.ops),
        found.moves.take(None),
        tuple(found.variables()),
        memory,
        (*program.notes, *found.notes, *layout_notes(nodes, mesh)),
        None if error is None else f"{type(error).__name__}: {error}",
        tuple(found.at_stage) if stages(mesh) > 1 else (),
    )


class _Analysis:
    """Walks the steps of a program."""

    def __init__(self, program: Program, phase: dict[Node, Phase]) -> None:
        self.mesh, self.moves = program.mesh, Communication(phase)
        self.ops: list[Computation] = []
        self.stores: dict[Store, None] = {}
        self.slots: set[Store] = set()
        self.gradients: dict[
            Store, list[Value]
        ] = {}  # of each parameter, in its placements
        self.versions: dict[
            Value, list[Value]
        ] = {}  # the list in `gradients` with a value
        self._placed: dict[tuple[Spec, Placement], PlacedTensor] = {}
        self._times = 1  # turns of the loops around a step
        self._calls = collections.Counter(
            s.body for s in program.steps if isinstance(s, CallStep)
        )
        self._called: dict[Program, int] = {}  # where its calls stand among the ops
        self._added: set[Value] = set()  # sums so far of parameters' cotangents
        self._flops = [0.0] * stages(self.mesh)
        self.at_stage: list[Stage] = []
        self.notes: list[str] = []

    def add(self, step: object) -> None:
        """Takes account of one step."""
        if isinstance(step, ReadStep):
            self.stores[step.store] = None
        elif isinstance(step, MoveStep):
            self._move(step)
        elif isinstance(step, WindowStep):
            self._window(step)
        elif isinstance(step, GatherStatisticsStep):
            self._tell(step)
        elif isinstance(step, WriteStep):
            self._put(step)
        elif isinstance(step, Compute) and not step.makes_statistics:
            self._compute(step)
        elif isinstance(step, LoopStep):
            self._loop(step)
        elif isinstance(step, CallStep):
            self._call(step)
        elif isinstance(step, BranchStep):
            costs = [
                sum(
                    s.node.op.flops(*(x.spec for x in s.node.inputs))
                    for s, _ in walk(body)
                    if isinstance(s, Compute)
                )
                for body in step.bodies
            ]
            self._nested(step, [step.bodies[costs.index(max(costs))]], 1)

    def _loop(self, step: LoopStep) -> None:
        if step.op.turns is None:
            source = step.node.source
            self.notes.append(
                f"how often the loop of {source} turns is not known: one turn is "
                "counted."
            )
        bodies = [body for body in (step.test, step.body) if body is not None]
        self._nested(step, bodies, step.op.turns or 1)
        self._find_gradients(step)

    def _call(self, step: CallStep) -> None:
        """Takes account of all calls of a body at the first of them, but for what they
        are sent.
        """
        if step.body not in self._called:
            times = self._calls[step.body]
            self._nested(step, [step.body], times)
            self._called[step.body] = len(self.ops) - 1
            self.ops[-1] = dataclasses.replace(self.ops[-1], times=self._times * times)
        else:
            first = self._called[step.body]
            often: collections.Counter[Collective] = collections.Counter()
            for move in (*self.ops[first].moves, *self.moves.take(step.node)):
                often[dataclasses.replace(move, times=1)] += move.times
            self.ops[first] = dataclasses.replace(
                self.ops[first],
                moves=tuple(
                    dataclasses.replace(move, times=n) for move, n in often.items()
                ),
            )
        before = dict(zip(step.op.body.arguments, step.passed))
        for value, inside, made in zip(
            step.outs, step.body.results, step.op.body.results
        ):
            for store in _parameters(made.node):
                self.gradients[store] = self.versions[value] = [value]
                self._added |= {
                    value,
                    inside,
                    *(before[x] for x in made.node.inputs if x in before),
                }

    def _nested(
        self,
        step: LoopStep | BranchStep | CallStep,
        bodies: Sequence[Program],
        times: int,
    ) -> None:
        """Takes account of the steps of bodies, each of which runs `times` times."""
        around, self._times = self._times, self._times * times
        with self.moves.inside(step.node):
            for inside in (inside for body in bodies for inside in body.steps):
                self.add(inside)
        self._times = around
        self.moves.handed_out(bodies[-1].results, step.outs)
        self._done(step.node, tuple(map(self._value, step.outs)), 0.0, 1)

    def variables(self) -> list[StoredTensor]:
        """Returns the variables that the program reads or writes."""
        return [
            StoredTensor(s.name, self._at(s.spec, s.placement), self._role(s))
            for s in self.stores
            if s.kind in ("parameter", "state")
        ]

    def _role(self, store: Store) -> Literal["parameter", "optimizer state", "other"]:
        if store.kind == "parameter":
            return "parameter"
        return "optimizer state" if store in self.slots else "other"

    def memory(self, program: Program) -> Memory:
        """Returns the bytes that one position holds, at the stage where it is most."""
        gradients = {
            min(versions, key=lambda v: self._value(v).bytes)
            for versions in self.gradients.values()
        }
        stores = at_stages(self.stores, self.mesh)
        made = at_stages(gradients, self.mesh)
        most = peaks(program, gradients | self._added)
        every = [self._memory(*here) for here in zip(stores, made, most, strict=True)]
        self.at_stage = [
            Stage(flops, m.parameters, m.activations, m.peak)
            for flops, m in zip(self._flops, every)
        ]
        return max(every, key=lambda m: m.peak)

    def _memory(
        self, stores: Iterable[Store], gradients: Iterable[Value], most: Peaks
    ) -> Memory:
        """Returns the bytes that one position holds, at the stage where all
        this lies.
        """
        held = dict.fromkeys(("parameter", "optimizer state", "other", "argument"), 0.0)
        for store in stores:
            role = "argument" if store.kind == "argument" else self._role(store)
            held[role] += self._at(store.spec, store.placement).bytes
        return Memory(
            held["parameter"],
            held["optimizer state"],
            held["other"],
            held["argument"],
            sum(self._value(v).bytes for v in gradients),
            most.activations,
            sum(held.values()) + most.everything,
        )

    def _at(self, spec: Spec, placement: Placement) -> PlacedTensor:
        key = spec, placement
        if key not in self._placed:
            local = local_shape(spec.shape, placement, self.mesh)
            self._placed[key] = PlacedTensor(
                tuple((d.name, d.size) for d in spec.shape),
                spec.dtype,
                tuple(map(state_name, placement)),
                local.sizes,
                local_bytes(spec, placement, self.mesh),
            )
        return self._placed[key]

    def _value(self, value: Value) -> PlacedTensor:
        assert value.spec is not None
        return self._at(value.spec, value.placement)

    def _share(self, placement: Placement) -> float:
        """Returns in how much of all stages something lies."""
        return (
            1.0
            if not any(isinstance(s, OnStage) for s in placement)
            else 1 / stages(self.mesh)
        )

    def _move(self, step: MoveStep) -> None:
        before, after = self._value(step.src), self._value(step.out)
        received = bytes_received(
            step.move.kind, before.bytes, self.mesh.axes[step.move.axis]
        )
        if step.move.axis != self.mesh.stages:
            received *= self._share(step.src.placement)
        self.moves.move(step, before, after, received, self._times)
        if step.src in self.versions:
            self.versions[step.out] = self.versions[step.src]
            self.versions[step.out].append(step.out)

    def _window(self, step: WindowStep) -> None:
        before, parts = self._value(step.src), self.mesh.axes[step.axis]
        rows = dict(zip((n for n, _ in before.shape), before.local))[step.dim]
        share = rows_received(step.window, step.factor_size, rows, parts) / rows
        received = before.bytes * share * self._share(step.src.placement)
        self.moves.add(
            step.node,
            step.node,
            ("window", step.axis, before, before, received),
            self._times,
        )

    def _tell(self, step: GatherStatisticsStep) -> None:
        told = step.specs(self.mesh)
        others = (step.slices(self.mesh) - 1) * (
            1.0 if step.plan.stage is None else 1 / stages(self.mesh)
        )
        size = sum(local_bytes(t, self.mesh.whole, self.mesh) for t in told)
        largest = self._at(max(told, key=lambda t: t.shape.size), self.mesh.whole)
        self.moves.add(
            step.node,
            step.node,
            ("tell", "+".join(step.axes), largest, largest, size * others),
            self._times,
        )

    def _put(self, step: WriteStep) -> None:
        if not step.variables:
            self._done(step.node, tuple(map(self._value, step.values)), 0.0, 1)
            return
        self.stores.update(dict.fromkeys(step.variables))
        first, *beside = step.variables
        self.slots.update(beside)
        if first.kind == "state" and self.moves.phase_of(step.node) != "forward":
            self.slots.add(first)
        self._done(step.node, (self._at(first.spec, first.placement),), 0.0, 1)

    def _compute(self, step: Compute) -> None:
        self.moves.made(step)
        self._find_gradients(step)
        cut = {axis for axis, _ in step.plan.cut}
        stage = step.plan.stage
        same = [
            axis
            for i, axis in enumerate(self.mesh.axes)
            if axis not in cut
            and all(v.placement[i] == Replicated for v in step.ins)
            and (stage is None or axis != self.mesh.stages)
        ]
        parts = math.prod(self.mesh.axes[a] for a in cut)
        flops = step.node.op.flops(*(x.spec for x in step.node.inputs)) / parts
        for k in range(len(self._flops)) if stage is None else [stage]:
            self._flops[k] += flops * self._times
        if stage is not None:
            flops /= len(self._flops)
        self._done(
            step.node,
            tuple(map(self._value, step.outs)),
            flops,
            math.prod(self.mesh.axes[a] for a in same),
        )

    def _find_gradients(self, step: Compute | LoopStep) -> None:
        """Keeps the cotangents of parameters that a step makes."""
        left = list(step.outs)  # a loop makes several, some of one shape
        for store in dict.fromkeys(_parameters(step.node)):
            for v in [v for v in left if has_shape_of(v.spec, store.spec)][:1]:
                self.gradients[store] = self.versions[v] = [
                    v
                ]  # the last step's is the sum of all
                left.remove(v)

    def _done(
        self, node: Node, outputs: tuple[PlacedTensor, ...], flops: float, repeated: int
    ) -> None:
        source = node.source
        self.ops.append(
            Computation(
                len(self.ops),
                node.op.display_name,
                source.function,
                source.file,
                source.line,
                self.moves.phase_of(node),
                outputs,
                self.moves.take(node),
                flops,
                repeated,
                self._times,
            )
        )


def _parameters(node: Node) -> Iterator[Store]:
    """Yields the parameters whose cotangents a node may make."""
    for op in (x.node.op for x in node.primals):
        if isinstance(op, ReadOp) and op.store.kind == "parameter":
            yield op.store
