"""The beginning of a recorded program: its first nodes, which a layout can be judged by.

    forward = Beginning(forward_nodes(nodes))        # up to the last loop over layers
    gradient = Beginning(nodes_before_updates(nodes))
    program = gradient.plan(mesh)                    # on another mesh than that of recording

The planner sees no later node, so the plan of a beginning is the beginning of the plan, and
its ops run at the same times.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from types import MappingProxyType
from typing import Any, Literal

from meshtf.graph import Loop, Node, ReadOp, Spec, Store, Tensor, WriteOp, is_variable
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.problem import (
    Problem,
    all_nodes,
    without_layout_warnings,
)
from meshtf.mesh import NO_CHANGES, Layout, Mesh, Placement
from meshtf.partition import Program, build
from meshtf.partition.build import live_nodes


def nodes_before_updates(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields the nodes before the first one that writes a variable, or that has a layout of
    its own, as the gradients that an optimizer reduces.
    """
    for node in nodes:
        if isinstance(node.op, WriteOp) or node.region != NO_CHANGES:
            return
        yield node


def forward_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes of the forward pass up to its last loop; all of them if it has none.
    If gradients are computed in a loop over microbatches, this is a loop whose body is its
    forward pass, and the last node.
    """
    result: list[Node] = []
    for node in nodes_before_updates(nodes):
        if node.primals:
            break
        if isinstance(node.op, Loop) and has_gradient(node.op):
            if not node.op.num_carries and node.op.condition is None:
                return [*result, _forward_loop(node, node.op)]
            break
        result.append(node)
    loops = [i for i, node in enumerate(result) if isinstance(node.op, Loop)]
    if loops:
        result = result[: loops[-1] + 1]
    used = {x for node in result for x in node.inputs}
    return [
        _without_residuals(node, node.op, used) if isinstance(node.op, Loop) else node
        for node in result
    ]


def _without_residuals(node: Node, loop: Loop, used: Set[Tensor]) -> Node:
    """Returns a loop without the last stacked outputs that are not among `used`."""
    count = loop.num_carries + loop.num_sums
    for y in node.outputs[count:]:
        if y in used:
            count = y.index + 1
    body = dataclasses.replace(loop.body, results=loop.body.results[:count])
    op = dataclasses.replace(loop, body=body)
    return node.copy_with(op=op, outputs=node.outputs[:count])


def has_gradient(loop: Loop) -> bool:
    """Returns whether the body of a loop computes a gradient, as that over microbatches."""
    return any(node.primals for node in loop.body.nodes)


def _forward_loop(node: Node, loop: Loop) -> Node:
    """Returns a loop without carries, with the forward pass of its body, and no results."""
    nodes = tuple(forward_nodes(loop.body.nodes))
    body = dataclasses.replace(loop.body, recorded_nodes=nodes, results=())
    op = dataclasses.replace(loop, body=body, num_sums=0)
    return node.copy_with(op=op, outputs=())


@dataclasses.dataclass(eq=False)
class StoreOnMesh:
    """A variable or an argument on another mesh than that of its recording, without values."""

    name: str
    spec: Spec
    placement: Placement
    kind: Literal["parameter", "state", "argument", "number"]
    mesh: Mesh | None

    def read(self) -> list[Any]:
        """Raises NotImplementedError: it is planned only."""
        raise NotImplementedError

    def slots(self) -> Sequence[Any]:
        """Raises NotImplementedError: it is planned only."""
        raise NotImplementedError


class Stores:
    """The variables and arguments of a recorded program.

    Args:
      nodes: the nodes of the program.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._stores: dict[Store, None] = {}  # as an ordered set
        # Those that one update writes: a variable and its slots.
        self._written: list[Sequence[Store]] = []
        for node in nodes:
            if isinstance(node.op, ReadOp):
                self._stores[node.op.store] = None
            elif isinstance(node.op, WriteOp):
                self._stores.update(dict.fromkeys(node.op.variables))
                self._written.append(node.op.variables)
        names = {x.name for x in self._stores if x.kind == "parameter"}
        self._slots = {
            store
            for store in self._stores
            if store.kind == "state" and _is_slot(store.name, names)
        }

    def are_like(self, other: Stores) -> bool:
        """Returns whether another recording of the program has equal stores."""
        return self._signature() == other._signature()

    def _signature(self) -> list[Any]:
        return [
            (
                store.kind,
                store.spec,
                store in self._slots,
                getattr(store, "changes", None),
            )
            for store in self._stores
        ]

    def on(self, mesh: Mesh) -> dict[Store, Store]:
        """Returns for each of them one on another mesh, placed by its layouts."""
        result: dict[Store, Store] = {}
        for store in self._stores:
            region = getattr(store, "changes", NO_CHANGES)
            if store in self._slots:
                layout = mesh.layout_in(region, "slot")
            elif is_variable(store):
                layout = mesh.layout_in(region, "variable")
            else:
                layout = mesh.layout
            placement, _conflicts = mesh.place(store.spec.shape, layout)
            result[store] = StoreOnMesh(
                store.name, store.spec, placement, store.kind, mesh
            )
        return result

    @property
    def placements(self) -> list[Placement]:
        """The placements on the mesh of the recording."""
        return [store.placement for store in self._stores]

    def slots_apart(self, mesh: Mesh) -> tuple[bool, ...]:
        """Returns for each slot whether a mesh places it in another way than its variable."""
        stores = self.on(mesh)
        return tuple(
            stores[slot].placement != stores[variable].placement
            for variable, *slots in self._written
            for slot in slots
        )


def _is_slot(name: str, variables: Collection[str]) -> bool:
    """Returns whether a name is that of a slot of one of the variables: after the name of an
    optimizer that of the variable, and perhaps its own, as "adam/kernel/m" and "ema/kernel".
    """
    _, *names = name.split("/")
    return any(
        "/".join(names[start:end]) in variables
        for end in (len(names), len(names) - 1)
        for start in range(end)
    )


class Beginning:
    """The first nodes of a program, to be planned on many meshes.

    Args:
      nodes: the nodes; the last one may be a loop over microbatches.
      stores: the variables and arguments that they read.

    Attributes:
      nodes: the nodes.
    """

    def __init__(self, nodes: Iterable[Node], stores: Stores) -> None:
        self.nodes = list(nodes)
        self._stores = stores

    def plan(self, mesh: Mesh) -> Program:
        """Returns the plan of the nodes on a mesh."""
        stores = self._stores.on(mesh)
        return build(self.nodes, [], mesh, prune=False, stores=stores)

    def is_like(self, other: Beginning) -> bool:
        """Returns whether another recording of the program begins with the same ops."""
        return _signature(self.nodes) == _signature(other.nodes)


def _signature(
    nodes: Iterable[Node], regions: Mapping[Layout, Layout] = MappingProxyType({})
) -> list[Any]:
    """Returns the ops of nodes, and of bodies within them, with the specs of their outputs.

    Args:
      nodes: the nodes.
      regions: layout changes -> those in their place.
    """
    result: list[Any] = []
    for node in nodes:
        outputs = tuple(y.spec for y in node.outputs)
        region = regions.get(node.region, node.region)
        result.append((type(node.op), region, outputs))
        if isinstance(node.op, Loop):
            result.extend(_signature(node.op.body.nodes, regions))
    return result


class Recordings:
    """Recordings that many meshes share: a program has the same ops on each mesh on which the
    same slots are sharded in another way than their variables, and of pipelines on each that has
    as many stages and microbatches.

    Args:
      problem: what is searched for.

    Attributes:
      problem: what is searched for.
      are_shared: whether they are; otherwise each mesh has a recording of its own, as where
        `build` was found to make other ops on another mesh.
    """

    def __init__(self, problem: Problem, are_shared: bool = True) -> None:
        self.are_shared = are_shared
        self.problem = problem
        # Choices, `Stores.slots_apart` and `_pipeline_key` -> the recording, its variables and
        # arguments.
        self._recorded: dict[object, tuple[Recorded, Stores]] = {}

    def of(
        self,
        axes: str,
        settings: Mapping[str, Any],
        choices: Mapping[str, Any],
        stage_axis: str = "",
    ) -> Recorded:
        """Returns the program on a mesh. The arguments are those of `Problem.function`, and the
        axis of the stages of a pipeline.

        Raises:
          MeshtfError: the layout does not allow the program.
        """
        record = functools.partial(self.problem.record, axes, settings, choices)
        if not self.are_shared:
            return record()
        mesh = Mesh(axes, devices="abstract", **settings)
        recorded, stores = self._shared(mesh, choices, record, stage_axis)
        regions = _regions(recorded.mesh, mesh)
        if _has_conflicts(recorded, mesh, regions):  # the recording has the error
            return record()
        return recorded._replace(mesh=mesh, stores=stores.on(mesh), regions=regions)

    def compare(self, recorded: Recorded, choices: Mapping[str, Any]) -> None:
        """Stops sharing if a recording on a mesh of its own has other ops, or places variables in
        another way.
        """
        if self.are_shared:
            shared, stores = self._shared(recorded.mesh, choices, lambda: recorded)
            regions = _regions(shared.mesh, recorded.mesh)
            ops = _signature(shared.nodes, regions)
            placements = [x.placement for x in stores.on(recorded.mesh).values()]
            self.are_shared = (
                ops == _signature(recorded.nodes)
                and placements == _stores_of(recorded).placements
            )

    def _shared(
        self,
        mesh: Mesh,
        choices: Mapping[str, Any],
        record: Callable[[], Recorded],
        stage_axis: str = "",
    ) -> tuple[Recorded, Stores]:
        """Returns the recording that a mesh shares, and its variables and arguments. `record`
        returns one on this mesh, for the first mesh with such slots, or such a pipeline.
        """
        key: tuple[object, ...] = (*choices.items(),)
        if key not in self._recorded:
            without_layout = self.problem.record("", {}, choices)
            self._recorded[key] = without_layout, _stores_of(without_layout)
        slots_apart = self._recorded[key][1].slots_apart(mesh)
        if any(slots_apart) or stage_axis:
            key = (*key, slots_apart, *_pipeline_key(mesh, stage_axis))
            if key not in self._recorded:
                recorded = record()
                self._recorded[key] = recorded, _stores_of(recorded)
        return self._recorded[key]


def _pipeline_key(mesh: Mesh, stage_axis: str) -> tuple[object, ...]:
    """Returns what the ops of a pipeline depend on: its stages and microbatches, and the rules
    for what is sharded along the stages as well, since the layers have others.
    """
    if not stage_axis:
        return ()
    rules = [(dim, axes) for dim, axes in mesh.layout.items() if stage_axis in axes]
    return (mesh.axes[stage_axis], mesh.microbatches, *rules)


def _stores_of(recorded: Recorded) -> Stores:
    """Returns the variables and arguments of a recording."""
    return Stores(live_nodes(recorded.nodes, recorded.results))


def _regions(old: Mesh, new: Mesh) -> dict[Layout, Layout]:
    """Returns the layout changes in which an optimizer updates variables: those on the mesh of a
    recording -> those on another mesh.
    """
    before, after = (
        Layout.changes("*:").then(mesh.layout_in(NO_CHANGES, "slot"))
        for mesh in (old, new)
    )
    return {before: after}


def _has_conflicts(
    recorded: Recorded, mesh: Mesh, regions: Mapping[Layout, Layout]
) -> bool:
    """Returns whether a mesh shards two dimensions of one tensor along one axis."""
    shapes = {
        (y.shape, regions.get(node.region, node.region))
        for node, _ in all_nodes(recorded.nodes)
        if not node.primals
        for y in node.outputs
    }
    with without_layout_warnings():
        return any(
            mesh.place(shape, mesh.layout_in(region))[1] for shape, region in shapes
        )
