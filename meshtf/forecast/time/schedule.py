"""When each step of a program runs: a simulation with the seconds of `Durations`.

A device computes one op after another, in the order of the program. A collective starts when
its input exists and the collective before it has ended. Where the hardware overlaps the two,
ops that do not need the result run meanwhile: so gradients are reduced during the backward
pass. Each pipeline stage has units of its own, which compute, receive, and launch ops, and
waits for what other stages send: idle time is the bubble of the pipeline.

Seconds may be arrays, with an entry for each of many meshes that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.forecast.memory.peak_memory import scheduled_steps
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.exchanges import LATENCY
from meshtf.forecast.time.memory_traffic import values_in_memory
from meshtf.forecast.time.merged_collectives import merged_reductions, repeated_gathers
from meshtf.forecast.time.simulation import Simulation, latest
from meshtf.forecast.time.totals import Totals
from meshtf.graph import Node
from meshtf.partition import CollectiveStep, Compute, Program, Step, Value

MAX_SPANS = 20_000  # of a trace
# The units of each stage: (COMPUTE, 0) is that which computes, of stage 0.
COMPUTE = "compute"
RECEIVE = "receive"
LAUNCH = "launch"  # the host, which launches ops before devices run them


class Span(NamedTuple):
    """A step that a stage runs, from `start` to `end`, in seconds.

    Attributes:
      stage: the index of the pipeline stage; 0 without a pipeline.
      kind: "matmul", "op", "update", "collective", or "loop" for the iterations after the
        first.
      title: the name of the op, or the kind and axes of the collective.
      node: the node of the step; None: the results of the program.
      start, end: the times.
      runs: how many iterations a span of a loop stands for.
    """

    stage: int
    kind: str
    title: str
    node: Node | None
    start: Any
    end: Any
    runs: int = 1


class Schedule:
    """The simulation of one program, from time 0.

    Args:
      program: the program.
      durations: the seconds of its steps.
      spans: the list to which the spans of all steps are added; None: none are recorded.
      counts: whether `totals` has the seconds of ops, and `busy` is counted; the seconds of
        collectives are always there.

    Attributes:
      totals: the seconds by kind of work.
      end: the time at which the last step ends.
      busy: for each stage, the seconds in which it computes or waits for a collective that
        it takes part in.
    """

    def __init__(
        self,
        program: Program,
        durations: Durations,
        spans: list[Span] | None = None,
        counts: bool = True,
    ) -> None:
        self.program = program
        self._counts = counts
        self.durations = durations
        self.spans = spans
        self.totals = Totals()
        stages = program.mesh.num_stages
        self._simulation = Simulation()
        self.busy: list[Any] = [0.0] * stages
        # The values that the one stage has computed; None: there are several stages.
        self._local_values: set[Value] | None = set() if stages == 1 else None
        self._in_memory = values_in_memory(program, durations.hardware.fuses)
        self._bodies: dict[Program, Schedule] = {}
        steps = scheduled_steps(program)
        # The ids of collectives that XLA merges with earlier ones, and that it leaves out.
        self._merged: set[int] = set()
        self._repeated: set[int] = set()
        if durations.merges_collectives:
            self._merged = merged_reductions(steps)
            if not durations.hardware.overlaps:
                self._repeated = repeated_gathers(steps)
        for step in steps:
            self._add(step)
        self.end: Any = latest(self._free(COMPUTE, RECEIVE))

    @property
    def computed(self) -> Any:
        """The time at which devices have computed all ops; collectives may still run."""
        return latest(self._free(COMPUTE))

    @property
    def period(self) -> Any:
        """The seconds after which the next iteration of a loop can start, if the program is
        its body. Reductions that the next iteration does not read run during it.
        """
        if not self.durations.hardware.overlaps:
            return self.end
        received: Any = sum(self.totals.collectives.values())
        carried = self._simulation.ready_at(self.program.results[:1])
        return latest([*self._free(COMPUTE, LAUNCH), received, carried])

    def _free(self, *kinds: str) -> list[Any]:
        """Returns when units of these kinds are free, of all stages."""
        return [self._simulation.free[x, i] for x in kinds for i in self._stages(None)]

    def _add(self, step: Step) -> None:
        """Adds a step after all steps that it depends on."""
        if step.computation is not None:
            self._add_compute(step.computation)
        elif step.collective is not None:
            self._add_collective(step.collective)
        elif step.bodies:
            self._add_bodies(step)
        elif step.has_effect:
            seconds = self.durations.write(step) if step.writes else 0.0
            self.totals.other_ops = self.totals.other_ops + seconds
            self.totals.add_work("update", seconds)
            stage = step.stage
            self._launch(stage)
            self._run(step, seconds, stage, kind="update")
        elif step.inputs:
            self._run(step, self.durations.copy(step), step.stage, kind="op")

    def _add_compute(self, step: Compute) -> None:
        """Adds an op."""
        durations = self.durations
        seconds = durations.compute(step, self._in_memory)
        launches = durations.hardware.launch_seconds > 0
        if launches and durations.has_kernel(step, self._in_memory):
            self._launch(step.plan.stage)
        kind = "op"
        if self.spans is not None and durations.matmul_shape(step) is not None:
            kind = "matmul"
        if self._counts:
            self._count(step, seconds)
        self._run(step, seconds, step.plan.stage, kind)

    def _count(self, step: Compute, seconds: Any) -> None:
        """Adds the seconds of an op to the totals."""
        totals = self.totals
        shape = self.durations.matmul_shape(step)
        share = self._share_of_stages(step.plan.stage)
        totals.add_work(self.durations.work_kind(step), seconds * share)
        if shape is None:
            totals.other_ops = totals.other_ops + seconds * share
            return
        totals.matmuls = totals.matmuls + seconds * share
        totals.matmul_flops = totals.matmul_flops + shape.flops * share
        covered = self.durations.matmuls.is_covered(shape)
        totals.covered_flops = totals.covered_flops + shape.flops * share * covered

    def _launch(self, stage: int | None, ops: Any = 1) -> None:
        """Lets the hosts of a stage, or of all stages, launch the next ops."""
        seconds = self.durations.hardware.launch_seconds
        if not seconds:
            return
        for i in self._stages(stage):
            self._simulation.run([(LAUNCH, i)], ops * seconds)

    def _stages(self, stage: int | None) -> Sequence[int]:
        """Returns the indices of the stages that run a step: all of them, or one."""
        return range(len(self.busy)) if stage is None else [stage]

    def _share_of_stages(self, stage: int | None) -> float:
        """Returns the fraction of the stages that run a step: 1, or one of them."""
        return 1.0 if stage is None else 1.0 / len(self.busy)

    def _run(
        self, step: Step, seconds: Any, stage: int | None, kind: str, runs: int = 1
    ) -> None:
        """Runs a step on the unit that computes, of one stage or of all."""
        inputs = step.dependencies
        if self._local_values is not None:
            # An op is computed after all ops that the device has computed before it.
            inputs = tuple(x for x in inputs if x not in self._local_values)
            self._local_values.update(step.outputs)
        simulation = self._simulation
        ready = simulation.ready_at(inputs)
        stages = self._stages(stage)
        for i in stages:
            # Stages do not wait for each other: each computes what all of them need when it
            # is free, and then goes on.
            after = (ready, simulation.free[LAUNCH, i])
            start, end = simulation.run([(COMPUTE, i)], seconds, after)
            if self._counts:
                self.busy[i] = self.busy[i] + seconds
            self._record(i, kind, step, start, end, runs)
        if len(stages) > 1:
            end = ready + seconds
        simulation.ready.update(dict.fromkeys(step.outputs, end))

    def _add_collective(self, step: CollectiveStep) -> None:
        """Adds a collective; without overlap, the devices compute nothing meanwhile."""
        simulation = self._simulation
        ready = simulation.ready_at(step.dependencies)
        if step.is_free:
            simulation.ready[step.out] = ready
            return
        seconds = self._seconds_of(step, merged=id(step) in self._merged)
        stage = step.stage
        share = self._share_of_stages(stage)
        self.totals.add_collective("+".join(step.axes), seconds * share)
        if self._counts:
            of_bytes = self._seconds_of(step, merged=True)
            self.totals.add_work(step.kind, of_bytes * share)
            self.totals.add_work(LATENCY, (seconds - of_bytes) * share)
        stages = self._stages(stage)
        waits = not self.durations.hardware.overlaps and not step.is_transfer
        if self.durations.hardware.launch_seconds:
            self._launch(stage, ops=np.where(np.asarray(seconds) > 0, 1, 0))
        kinds = (RECEIVE, COMPUTE) if waits else (RECEIVE,)
        units = [(kind, i) for kind in kinds for i in stages]
        launched = [simulation.free[LAUNCH, i] for i in stages]
        start, end = simulation.run(units, seconds, [ready, *launched])
        for i in stages:
            if waits and self._counts:
                self.busy[i] = self.busy[i] + seconds
            if self.spans is not None and np.any(seconds):
                self._record(i, "collective", step, start, end)
        simulation.ready.update(dict.fromkeys(step.outputs, end))

    def _seconds_of(self, step: CollectiveStep, merged: bool) -> Any:
        """Returns the seconds of a collective; `merged`: without its latency."""
        seconds = self.durations.collective(step, merged)
        return 0.0 * seconds if id(step) in self._repeated else seconds

    def _add_bodies(self, step: Step) -> None:
        """Adds a loop, branch or call."""
        start = self.start_of(step)
        bodies = [(body, self._simulate(body.program, start)) for body in step.bodies]
        if step.runs_one_body:
            bodies = [max(bodies, key=lambda body: float(np.max(body[1].end)))]
        seconds: Any = 0.0
        for body, schedule in bodies:
            runs = self.durations.sizes.runs(body)
            # All but the last run end when the next one can start.
            seconds = seconds + schedule.period * (runs - 1) + schedule.end
            self.totals.add(schedule.totals, runs)
        stage = step.stage
        self._run(step, seconds, stage, "loop", runs=int(np.max(runs)))
        for i in self._stages(stage):
            # The host has launched all iterations by their end at the latest.
            computed = self._simulation.free[COMPUTE, i]
            self._simulation.run([(LAUNCH, i)], 0, after=[computed])

    def _simulate(self, body: Program, start: Any) -> Schedule:
        """Returns the schedule of one run of a body; its spans are recorded at first."""
        if body not in self._bodies:
            spans: list[Span] | None = None if self.spans is None else []
            self._bodies[body] = Schedule(body, self.durations, spans, self._counts)
            for span in spans or ():
                moved = span._replace(start=span.start + start, end=span.end + start)
                self._append(moved)
        return self._bodies[body]

    def start_of(self, step: Step) -> Any:
        """Returns when a loop, branch or call starts, after all steps that were added."""
        return latest([self._simulation.ready_at(step.dependencies), self.computed])

    def _record(
        self, stage: int, kind: str, step: Step, start: Any, end: Any, runs: int = 1
    ) -> None:
        """Records the span of a step."""
        if self.spans is None:
            return
        title = step.title or "results"
        self._append(Span(stage, kind, title, step.node, start, end, runs))

    def _append(self, span: Span) -> None:
        """Adds a span, unless there are very many."""
        assert self.spans is not None
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
