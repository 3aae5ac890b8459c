"""Ops outside of functions on the devices of a live mesh, which jax drives: each op is a small
program, compiled once for all ops that differ only in the values of their inputs.

    outputs = run_on_devices(node)        # None: the op runs better on the host

A program takes a few tenths of a second to compile. So ops with little data run on the host,
by the placed runtime. Ops with much data run here, and no host holds all of the data.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from meshtf.errors import PlanError
from meshtf.graph import Node, ShardedValue, Spec, Tensor, current, is_variable
from meshtf.graph.op_kinds import EffectOp, ReadOp
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh
from meshtf.names import dtype_bytes
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.spmd.live.device_arrays import DeviceShards
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.run_checks import raise_all
from meshtf.runtime.spmd.stages.live_program import LiveProgram
from meshtf.runtime.spmd.stages.stage_arrays import variable_arrays
from meshtf.runtime.storage.argument_storage import DeviceStore

_MIN_BYTES = 1 << 20  # of all inputs, or of the variable that is read
_MAX_PROGRAMS = 64  # of one mesh; each has the compiled code of one op


class _EagerProgram:
    """The program of all nodes that are equal but for the values of their inputs.

    Args:
      node: one of them.
    """

    def __init__(self, node: Node) -> None:
        mesh = node.mesh
        assert mesh is not None
        self._stores = []
        reads = []
        for k, x in enumerate(node.inputs):
            placement = _device_shards(x).layout.placement
            store = DeviceStore(f"input {k}", x.spec, mesh, placement)
            self._stores.append(store)
            reads.append(_read_of(store, node))
        inputs = [read.outputs[0] for read in reads]
        # A copy, so that the program does not keep the values of this node's inputs.
        node = node.with_inputs(inputs)
        recorded = Recorded([*reads, node], node.outputs, mesh, node.op.display_name)
        self._program = LiveProgram(recorded, self._stores)
        self.has_checks = self._program.has_checks

    def run(self, node: Node) -> list[ShardedValue]:
        """Returns the outputs of a node.

        Raises:
          IndexRangeError: an index was out of range, here or in the call of a function
            that computed an input.
        """
        assert node.mesh is not None
        outputs = self._program([_device_shards(x) for x in node.inputs])
        for store in self._stores:
            store.shards = ()
        # Errors outside of functions are raised at once.
        raise_all(node.mesh)
        return outputs


# For each mesh, the programs by the keys of their nodes, None for nodes that run on the host;
# the last one was used last.
_Programs = OrderedDict[Hashable, _EagerProgram | None]
_programs: weakref.WeakKeyDictionary[Mesh, _Programs] = weakref.WeakKeyDictionary()


def run_on_devices(node: Node) -> list[ShardedValue] | None:
    """Returns the outputs of a node that ran on the devices; None: it runs on the host.

    Raises:
      IndexRangeError: an index is out of range.
    """
    mesh = node.mesh
    assert mesh is not None
    if current().check_numerics or mesh.num_stages > 1:
        return None
    if isinstance(node.op, ReadOp):
        return _read_variable(node.op.store)
    # Nodes of gradient rules have `primals`, whose placements their outputs take.
    if isinstance(node.op, EffectOp) or node.primals or node.wait_for is not None:
        return None
    if not all(map(_is_on_devices, node.inputs)):
        return None
    if sum(_num_bytes(x.spec) for x in node.inputs) < _MIN_BYTES:
        return None
    program = _program_of(node, mesh)
    return None if program is None else program.run(node)


def _read_variable(store: Any) -> list[ShardedValue] | None:
    """Returns the value of a variable; None: it is small, or the store is no variable.

    The value is a copy on the devices, since the next program that writes the variable
    overwrites its memory.
    """
    if not is_variable(store) or _num_bytes(store.spec) < _MIN_BYTES:
        return None
    (value,) = variable_arrays(store).values()  # the mesh has one stage
    with memory_errors("a copy of a variable"):
        copy = load_jax().numpy.copy(value.array)
    check = functools.partial(raise_all, store.mesh)
    shards = DeviceShards(copy, value.layout, check)
    return [ShardedValue(store.placement, shards)]


def _program_of(node: Node, mesh: Mesh) -> _EagerProgram | None:
    """Returns the program of a node; None: XLA cannot compile its op."""
    programs = _programs.setdefault(mesh, OrderedDict())
    key = _key(node)
    try:
        program = programs.get(key)
    except TypeError:  # the op has an unhashable attribute, such as an array
        return _compile(node)
    if program is not None and program.has_checks:
        # The errors of its checks name the line and the module of one node.
        key = (key, node.source, node.path)
        program = programs.get(key)
    if program is None and key not in programs:
        program = programs[key] = _compile(node)
    programs.move_to_end(key)
    if len(programs) > _MAX_PROGRAMS:
        programs.popitem(last=False)
    return program


def _compile(node: Node) -> _EagerProgram | None:
    """Returns a new program of a node; None: XLA cannot compile its op, or it cannot be
    planned, which the host will say.
    """
    try:
        return _EagerProgram(node)
    except PlanError:
        return None


def _key(node: Node) -> Hashable:
    """Returns a key that is equal for nodes that are equal but for the values of their
    inputs.
    """
    inputs = [(x.spec, _device_shards(x).layout.placement) for x in node.inputs]
    return node.op, tuple(inputs), node.region, node.stage


def _read_of(store: DeviceStore, node: Node) -> Node:
    """Returns a node that reads an input of `node`."""
    return Node(
        Read(store),
        inputs=(),
        specs=(store.spec,),
        mesh=node.mesh,
        source=node.source,
        context=current(),
        owner=node.owner,
    )


def _device_shards(x: Tensor) -> DeviceShards:
    """Returns the shards of an eager tensor, which are on the devices."""
    assert x.sharded_value is not None
    assert isinstance(x.sharded_value.values, DeviceShards)
    return x.sharded_value.values


def _is_on_devices(x: Tensor) -> bool:
    """Returns whether the devices have the shards of an eager tensor."""
    value = x.sharded_value
    return value is not None and isinstance(value.values, DeviceShards)


def _num_bytes(spec: Spec) -> int:
    """Returns the bytes of a tensor."""
    return spec.shape.size * dtype_bytes(spec.dtype)
