"""The beginning of a recorded program: its first nodes, which a layout can be judged by.

    forward = Beginning(forward_nodes(nodes))        # up to the last loop over layers
    gradient = Beginning(nodes_before_updates(nodes))
    program = gradient.plan(mesh)                    # on another mesh than that of recording

The planner sees no later node, so the plan of a beginning is the beginning of the plan, and
its ops run at the same times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Literal

from meshtf.graph import Loop, Node, ReadOp, Spec, Store, Tensor, WriteOp
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.problem import Problem, all_nodes
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
        # Dicts as ordered sets.
        self._stores: dict[Store, None] = {}
        self._slots: dict[Store, None] = {}
        for node in nodes:
            if isinstance(node.op, ReadOp):
                self._stores[node.op.store] = None
            elif isinstance(node.op, WriteOp):
                self._stores.update(dict.fromkeys(node.op.variables))
                # An update writes a variable and its slots.
                self._slots.update(dict.fromkeys(node.op.variables[1:]))

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
            if self._is_slot(store, region):
                layout = mesh.layout_in(region, "slot")
            elif store.kind in ("parameter", "state"):
                layout = mesh.layout_in(region, "variable")
            else:
                layout = mesh.layout
            placement, _conflicts = mesh.place(store.spec.shape, layout)
            result[store] = StoreOnMesh(
                store.name, store.spec, placement, store.kind, mesh
            )
        return result

    def _is_slot(self, store: Store, region: Layout) -> bool:
        """Returns whether a variable has the layout of slots. Where slots are sharded in another
        way than their variable, an update writes slots only: then their placement tells it.
        """
        if store in self._slots:
            return True
        if store.kind != "state" or store.mesh is None:
            return False
        layouts = (store.mesh.layout_in(region, x) for x in ("slot", "variable"))
        as_slot, as_variable = (
            store.mesh.place(store.spec.shape, x)[0] for x in layouts
        )
        return store.placement == as_slot != as_variable


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
    """Recordings that many meshes share: a program has the same ops on each mesh, but for slots
    that are sharded in another way than their variables.

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
        self._recorded: dict[object, tuple[Recorded, Stores]] = {}

    def of(
        self, axes: str, settings: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> Recorded:
        """Returns the program on a mesh. The arguments are those of `Problem.function`.

        Raises:
          MeshtfError: the layout does not allow the program.
        """
        if not self.are_shared:
            return self.problem.record(axes, settings, choices)
        recorded, stores = self._shared(axes, settings, choices)
        mesh = Mesh(axes, devices="abstract", **settings)
        if _has_conflicts(recorded, mesh):  # the recording has the error
            return self.problem.record(axes, settings, choices)
        return recorded._replace(
            mesh=mesh, stores=stores.on(mesh), regions=_regions_on(mesh)
        )

    def compare(self, recorded: Recorded, choices: Mapping[str, Any]) -> None:
        """Stops sharing if a recording on a mesh of its own has other ops."""
        if self.are_shared:
            shared, _ = self._shared("", {}, choices)
            regions = _regions_on(recorded.mesh)
            ops = _signature(shared.nodes, regions)
            self.are_shared = ops == _signature(recorded.nodes)

    def _shared(
        self, axes: str, settings: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> tuple[Recorded, Stores]:
        """Returns a recording with these choices, and its variables and arguments."""
        has_slots = bool(settings.get("optimizer_layout"))
        key = (tuple(settings.items()) if has_slots else (), tuple(choices.items()))
        if key not in self._recorded:
            on = (axes, settings) if has_slots else ("", {})
            recorded = self.problem.record(*on, choices)
            stores = Stores(live_nodes(recorded.nodes, recorded.results))
            self._recorded[key] = recorded, stores
        return self._recorded[key]


def _regions_on(mesh: Mesh) -> dict[Layout, Layout]:
    """Returns the layout changes in which an optimizer updates variables: without a layout ->
    on a mesh.
    """
    changes = Layout.changes("*:")
    return {changes: changes.then(mesh.layout_in(NO_CHANGES, "slot"))}


def _has_conflicts(recorded: Recorded, mesh: Mesh) -> bool:
    """Returns whether a mesh shards two dimensions of one tensor along one axis."""
    shapes = {
        (y.shape, node.region)
        for node, _ in all_nodes(recorded.nodes)
        if not node.primals
        for y in node.outputs
    }
    return any(mesh.place(shape, mesh.layout_in(region))[1] for shape, region in shapes)
