"""Initial values of the variables of a live mesh, computed on its devices.

    defer(variable, functools.partial(recorded_initial_value, initializer))
    ...                                          # more variables
    compute_pending(mesh, run_recorded)          # when a variable is used

So no host holds all of a variable. Values are computed when the first variable of the mesh is
used: those of equal layers by one program that runs once for each, with other seeds, and
all remaining ones by another program. A model of many layers thus compiles as fast as one
of few.

CPU devices of one process share the memory of the host. For them the host computes each
variable that is not large, op by op, as for a mesh of TensorFlow's devices: that takes a
third of the time, since nothing is compiled that runs but once, and equal shards are
computed once.

A live mesh is one whose devices belong to jax (`devices="spmd"`), and a slot is the storage of
one shard of a variable: a variable without slots has no value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from meshtf.errors import DeviceMemoryError
from meshtf.graph import Node, Store, Tensor
from meshtf.graph.op_kinds import ReadOp
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh
from meshtf.ops.variables.read_write import ScalarStore
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.spmd.live.jax_host import platform_of
from meshtf.runtime.spmd.stages.live_program import LiveProgram
from meshtf.runtime.spmd.stages.stage_arrays import use_shards

# A program takes about a fifth of a second to compile, and a random variable in a larger
# program a tenth; so programs of their own pay for this many equal variables.
_MIN_EQUAL = 3
# Of larger variables the host computes none: a program needs less memory for temporary arrays.
_MAX_ELEMENTS_ON_HOST = 1 << 22
_MAX_NAMES = 3  # variables that an error names


class _Pending(NamedTuple):
    """A variable whose initial value is not computed yet.

    Attributes:
      variable: a weak reference to the variable.
      record: records the computation of the initial value of the variable that it takes.
      recorded: the recorded computation for this variable.
    """

    variable: weakref.ref[Any]
    record: Callable[[Any], Recorded]
    recorded: Recorded

    @property
    def scalars(self) -> list[ScalarStore]:
        """The numbers that the function reads, such as seeds."""
        return [
            store
            for store in map(_store_read_by, self.recorded.nodes)
            if isinstance(store, ScalarStore)
        ]


_pending: weakref.WeakKeyDictionary[Mesh, list[_Pending]] = weakref.WeakKeyDictionary()


def defer(variable: Any, record: Callable[[Any], Recorded]) -> None:
    """Postpones the initial value of a variable: `compute_pending` computes it together with
    those of all other variables of the mesh.

    Args:
      variable: a `storage.variable_slots.SlotHolder` without slots.
      record: records the computation of the initial value of the variable that it takes.
    """
    pending = _pending.setdefault(variable.mesh, [])
    pending.append(_Pending(weakref.ref(variable), record, record(variable)))


def move_pending(variable: Any) -> None:
    """Records a postponed initial value again, after the placement of its variable changed.
    A variable without one stays as it is.
    """
    pending = _pending.get(variable.mesh, [])
    for index, (reference, record, _) in enumerate(pending):
        if reference() is variable:
            pending[index] = _Pending(reference, record, record(variable))


def compute_pending(
    mesh: Mesh, run_on_host: Callable[[Recorded], Sequence[Sequence[Any]]]
) -> None:
    """Computes the initial values of all variables of a mesh that have none.

    After an error, the variables without a value are still pending: the next use computes
    them, or raises the error again.

    Args:
      mesh: the mesh.
      run_on_host: runs a recorded function on the host, and returns the shards of each
        result.

    Raises:
      DeviceMemoryError: the memory of a device does not suffice.
    """
    pending = [x for x in _pending.pop(mesh, []) if x.variable() is not None]
    on_host: list[_Pending] = []
    by_program = pending
    if pending and devices_share_host_memory(mesh):
        on_host = [x for x in pending if _is_small(x)]
        by_program = [x for x in pending if not _is_small(x)]
    equal_groups, remaining = _groups(by_program)
    try:
        for group in equal_groups:
            _compute_each(group)
        if remaining:
            _compute_together(remaining, mesh)
        _compute_on_host(on_host, run_on_host)
    except BaseException as error:
        left = [x for group in [*equal_groups, remaining, on_host] for x in group]
        _pending[mesh] = left
        if isinstance(error, DeviceMemoryError):
            raise DeviceMemoryError(_names(left), error.reason) from None
        raise


def _names(pending: Sequence[_Pending]) -> str:
    """Returns which initial values these are, in words, the largest variables first."""
    variables = [x.variable() for x in pending]
    specs = sorted(
        ((v.spec.shape.size, v.name) for v in variables if v is not None), reverse=True
    )
    names = [name for _, name in specs[:_MAX_NAMES]]
    if len(specs) > _MAX_NAMES:
        names.append(f"{len(specs) - _MAX_NAMES} more")
    return f"the initial value of {', '.join(names)}"


def _groups(
    pending: Sequence[_Pending],
) -> tuple[list[list[_Pending]], list[_Pending]]:
    """Returns groups of variables whose functions differ only in their numbers, and all
    remaining variables.
    """
    by_form: dict[Hashable, list[_Pending]] = {}
    for x in pending:
        by_form.setdefault(_form(x), []).append(x)
    groups = []
    remaining = []
    for equal in by_form.values():
        # Without numbers, as of zeros, an op compiles in no time.
        if len(equal) >= _MIN_EQUAL and equal[0].scalars:
            groups.append(equal)
        else:
            remaining += equal
    return groups, remaining


def _form(pending: _Pending) -> Hashable:
    """Returns a key that is equal for functions that differ only in their numbers."""
    nodes = pending.recorded.nodes
    index: dict[Tensor, int] = {}  # each tensor's index among those of the function
    keys = []
    for node in nodes:
        store = _store_read_by(node)
        op: Hashable = node.op
        if isinstance(store, ScalarStore):
            op = store.spec
        keys.append(
            (
                op,
                tuple(index[x] for x in node.inputs),
                tuple(y.spec for y in node.outputs),
                node.region,
                node.stage,
                None if node.wait_for is None else index[node.wait_for],
                tuple(index[x] for x in node.primals),
            )
        )
        for y in node.outputs:
            index[y] = len(index)
    (result,) = pending.recorded.results
    key = (tuple(keys), index[result])
    try:
        hash(key)
    except TypeError:  # an op has an unhashable attribute, such as an array
        return id(pending)
    return key


def _is_small(pending: _Pending) -> bool:
    """Returns whether the host may compute an initial value."""
    (result,) = pending.recorded.results
    return result.shape.size <= _MAX_ELEMENTS_ON_HOST


def devices_share_host_memory(mesh: Mesh) -> bool:
    """Returns whether the devices of a live mesh are CPUs of this process."""
    return processes().count == 1 and platform_of(mesh) == "cpu"


def _compute_on_host(
    group: list[_Pending],
    run_on_host: Callable[[Recorded], Sequence[Sequence[Any]]],
) -> None:
    """Computes initial values on the host, one after the other, and removes what it has
    computed from `group`.
    """
    while group:
        recorded = group[0].recorded
        (shards,) = run_on_host(recorded)
        _use_result(group[0], shards)
        del group[0]


def _compute_each(group: list[_Pending]) -> None:
    """Computes initial values whose functions differ only in their numbers, by a program
    that takes the numbers as arguments. Removes what it has computed from `group`.
    """
    first = group[0]
    recorded = first.recorded._replace(name="initial_value")
    for store in first.scalars:
        store.kind = "argument"
    program = LiveProgram(recorded, first.scalars, runs_once=True)
    while group:
        scalars = [store.value for store in group[0].scalars]
        (result,) = program(scalars)
        _use_result(group[0], result.values)
        del group[0]


def _compute_together(group: list[_Pending], mesh: Mesh) -> None:
    """Computes initial values by one program, and empties `group`."""
    nodes = [node for x in group for node in x.recorded.nodes]
    values = [value for x in group for value in x.recorded.results]
    recorded = Recorded(nodes, values, mesh, "initial_values")
    program = LiveProgram(recorded, stores=(), runs_once=True)
    results = program(())  # it has no arguments
    for x, result in zip(group, results, strict=True):
        _use_result(x, result.values)
    group.clear()


def _use_result(pending: _Pending, shards: Sequence[Any]) -> None:
    """Makes shards, one for each mesh position, the value of a variable: those of a
    program's result, or tensors on the host.
    """
    variable = pending.variable()
    if variable is not None:
        use_shards(variable, shards)


def _store_read_by(node: Node) -> Store | None:
    """Returns the store that a node reads; None: it reads none."""
    return node.op.store if isinstance(node.op, ReadOp) else None
