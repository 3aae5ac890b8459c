"""What each step of a program says of itself, and programs, which are steps in order.

    for step, runs in walk(program):
        step.inputs, step.outputs, step.collective, ...

The inputs and outputs of a step are `Value`s. A value is a tensor in one placement (sharded,
replicated or partial along each mesh axis): each device holds its shard.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from meshtf.graph import HostOp, Node, Spec, Store, is_variable
from meshtf.mesh import Mesh, Placement

if TYPE_CHECKING:  # the classes of steps, which derive from `Step`
    from meshtf.partition.steps.bodies import CallStep, LoopStep
    from meshtf.partition.steps.collectives import CollectiveStep, ReshardStep
    from meshtf.partition.steps.local import Compute

AnyStep = TypeVar("AnyStep", bound="Step")


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor in one placement; or a tuple of local tensors, the statistics or the
    residuals of an `OpWithStatistics`.
    """

    spec: Spec | None  # global shape and dtype; None: a tuple
    placement: Placement
    is_tuple: bool = False


@dataclasses.dataclass(frozen=True)
class Body:
    """A program that a step runs.

    Attributes:
      program: the program.
      runs: how often it runs in one run of the step; 1 if that is not known.
      dim: the dimension that a loop scans, which has an element for each run; "": none.
      axes: the axes of the mesh that divide the runs among devices.
    """

    program: Program
    runs: int = 1
    dim: str = ""
    axes: tuple[str, ...] = ()


class Step:
    """Base class of steps. A class that derives from it overrides what differs from these
    defaults; the runtimes have an entry for it in their tables.

    Attributes:
      node: the node that the step belongs to: whose op it computes, or that needs the result
        of a collective. None: it belongs to none, as a read or the reshard of a result.
      waits_for: control dependencies: values that the step does not read, but that must exist
        before it runs.
    """

    if TYPE_CHECKING:  # dataclasses would take a property for the default of a field

        @property
        def node(self) -> Node | None: ...

    waits_for: tuple[Value, ...] = ()

    # What the step reads and computes.

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the step computes on."""
        return ()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the step computes."""
        return ()

    @property
    def dependencies(self) -> tuple[Value, ...]:
        """The values that must exist before the step runs: `inputs` and `waits_for`."""
        return (*self.inputs, *self.waits_for) if self.waits_for else self.inputs

    @property
    def needs(self) -> tuple[Value, ...]:
        """`dependencies`, without those that only delay a step to save memory."""
        return self.dependencies

    def waiting_for(self: AnyStep, values: Container[Value]) -> AnyStep:
        """Returns the step with only those of `waits_for` that are among some values."""
        if not self.waits_for:
            return self
        waits_for = tuple(value for value in self.waits_for if value in values)
        return dataclasses.replace(self, waits_for=waits_for)  # type: ignore[type-var]

    @property
    def reads(self) -> tuple[Store, ...]:
        """The stores (variables, arguments, constants) that the step itself reads."""
        return ()

    @property
    def writes(self) -> tuple[Store, ...]:
        """The variables that the step itself writes."""
        return ()

    @property
    def written_share(self) -> float:
        """The share of the elements of `writes` that the step reads and writes."""
        return 1.0

    @property
    def host_op(self) -> HostOp | None:
        """The op, if the host runs it, such as a print."""
        return None

    @property
    def has_effect(self) -> bool:
        """Whether the step does more than compute its outputs."""
        return bool(self.writes) or self.host_op is not None

    # What kind of work it is. Each is None, or empty, for other kinds.

    @property
    def computation(self) -> Compute | None:
        """The step itself, if devices run an op on their shards."""
        return None

    @property
    def collective(self) -> CollectiveStep | None:
        """The step itself, if devices communicate in it."""
        return None

    @property
    def reshards(self) -> tuple[ReshardStep, ...]:
        """The reshards that the step does: itself, or those that it packs together."""
        return ()

    @property
    def reductions(self) -> tuple[ReshardStep, ...]:
        """Those of `reshards` that reduce partial results over devices."""
        return tuple(reshard for reshard in self.reshards if reshard.is_reduction)

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The programs that the step runs."""
        return ()

    @property
    def runs_one_body(self) -> bool:
        """Whether only one of the bodies runs."""
        return False

    @property
    def loop(self) -> LoopStep | None:
        """The step itself, if it is a loop."""
        return None

    @property
    def call(self) -> CallStep | None:
        """The step itself, if it shares its body with other steps."""
        return None

    def bodies_by(self, cost: Callable[[Program], float]) -> tuple[Body, ...]:
        """Returns the bodies that count: all, or the costliest if only one runs."""
        if not self.runs_one_body:
            return self.bodies
        return (max(self.bodies, key=lambda body: cost(body.program)),)

    # Where it runs, and what it is called.

    @property
    def stage(self) -> int | None:
        """The pipeline stage that runs the step; None: all stages do."""
        return self.outputs[0].placement.stage if self.outputs else None

    @property
    def title(self) -> str:
        """What the step does, for users: the name of an op, or a collective and its axes."""
        return "" if self.node is None else self.node.op.display_name

    @property
    def computes_node(self) -> bool:
        """Whether the step computes what its node does: the others prepare inputs of the node."""
        return self.has_effect or bool(self.bodies)

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the outputs needs only one element of each input."""
        return False

    @property
    def is_view(self) -> bool:
        """Whether the output is the first input, perhaps under other names: nothing is copied."""
        return False

    @property
    def is_conversion(self) -> bool:
        """Whether the output is the first input in another data type."""
        return False

    @property
    def begins_loop(self) -> bool:
        """Whether the step takes from a tensor what the first iteration of a loop needs."""
        return False

    @property
    def is_entry(self) -> bool:
        """Whether the output is zero but for one entry, which can be added to a sum alone."""
        return False

    # Memory.

    @property
    def packed(self) -> tuple[Value, ...]:
        """The inputs that the step copies into one buffer before it sends them."""
        return ()

    def tuple_bytes(
        self, sizes: Mapping[Value, float], mesh: Mesh
    ) -> dict[Value, float]:
        """Returns the bytes of the tuples that the step reads or computes; those of other
        values, `sizes`, follow from their specs.
        """
        return {}


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Steps in the order in which they run, and the values that are the results.

    `notes` are remarks for the user, such as a rule of the layout that does not apply, and
    `overlap` says which communication runs beside computations. Those of a body belong to the
    program that contains it.
    """

    mesh: Mesh
    steps: tuple[Step, ...]
    results: tuple[Value, ...]
    notes: tuple[str, ...] = ()
    overlap: tuple[str, ...] = ()

    @property
    def variables(self) -> list[Store]:
        """The variables that the program reads or writes, those of bodies included, in order."""
        return list(filter(is_variable, self.stores))

    @property
    def read_stores(self) -> list[Store]:
        """The stores that the program reads, those that bodies read included, in order."""
        stores: dict[Store, None] = {}
        for step, _ in walk(self):
            stores.update(dict.fromkeys(step.reads))
        return list(stores)

    @property
    def stores(self) -> list[Store]:
        """All stores that the program reads or writes: variables, arguments and constants."""
        stores: dict[Store, None] = {}
        for step, _ in walk(self):
            stores.update(dict.fromkeys((*step.reads, *step.writes)))
        return list(stores)


def walk(program: Program, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yields (step, number of runs) for all steps of a program, those of bodies too.

    Both bodies of a branch count as run, and a while loop counts as one iteration. A body
    that is called several times comes once, at the end. `times`: the runs of the program.
    """
    calls: collections.Counter[Program] = collections.Counter()
    for step in program.steps:
        yield step, times
        for body in step.bodies:
            if step.call is None:
                yield from walk(body.program, times * body.runs)
            else:
                calls[body.program] += 1
    for called, count in calls.items():
        yield from walk(called, times * count)
