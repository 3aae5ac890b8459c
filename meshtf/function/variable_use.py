"""The variables and eager tensors that a recorded function reads and writes.

    written_variables(nodes)
    differentiable_captures(nodes, results)     # eager tensors and reads of variables

`Trace`, a compiled function, uses them to compute gradients, and to know when variables were
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshtf.graph import Node, ReadOp, Tensor, WriteOp, is_variable
from meshtf.graph.context import Context
from meshtf.graph.control_flow.body import used_tensors
from meshtf.mesh import Layout
from meshtf.names import has_gradient
from meshtf.ops.variables.read_write import PathHash
from meshtf.runtime.eager import EAGER
from meshtf.runtime.runtimes import Executable
from meshtf.runtime.storage.argument_storage import DeviceStore, ShardsStore
from meshtf.runtime.storage.write_times import WriteTime


def track_writes(nodes: Iterable[Node]) -> WriteTime | None:
    """Adds a program to the writers of its variables, so that they know when they changed.

    Returns:
      The time of the program's last write, to be updated at each run; None: the program
      writes no variables.
    """
    stores = written_variables(nodes)
    if not stores:
        return None
    write_time = WriteTime()
    for store in stores:
        store.writers.append(write_time)
    return write_time


def written_variables(nodes: Iterable[Node]) -> list[Any]:
    """Returns the variables that a program writes, each once."""
    variables: dict[Any, None] = {}
    for node in nodes:
        if isinstance(node.op, WriteOp):
            variables.update(dict.fromkeys(node.op.variables))
    return list(variables)


def read_variables(executable: Executable) -> list[Any]:
    """Returns the variables that a program reads."""
    return [
        store
        for step in executable.program.steps
        for store in step.reads
        if is_variable(store)
    ]


def differentiable_arguments(
    nodes: Iterable[Node], stores: Sequence[Any]
) -> list[Tensor]:
    """Returns the reads of the arguments that are tensors and can have gradients.

    Args:
      nodes: the nodes of the program.
      stores: the stores of all arguments.
    """
    reads: dict[Any, Tensor] = {
        node.op.store: node.outputs[0] for node in nodes if isinstance(node.op, ReadOp)
    }
    return [
        reads[store]
        for store in stores
        # Named tensors have these stores; arrays, which have no gradients, have others.
        if isinstance(store, (ShardsStore, DeviceStore))
        and has_gradient(store.spec.dtype)
    ]


def differentiable_captures(
    nodes: Sequence[Node], results: Sequence[Tensor]
) -> list[Tensor]:
    """Returns the eager tensors and the reads of variables that a program uses, if they
    can have gradients.

    Args:
      nodes: the nodes of the program.
      results: the results of the program.
    """
    return [
        x
        for x in used_tensors(nodes, results)
        if has_gradient(x.dtype)
        and (x.sharded_value is not None or reads_variable(x.node))
    ]


def is_random(node: Node) -> bool:
    """Returns whether a node reads a hash of the module path, from which random ops derive
    their seeds.
    """
    return isinstance(node.op, ReadOp) and isinstance(node.op.store, PathHash)


def reads_variable(node: Node) -> bool:
    """Returns whether a node reads a variable."""
    return isinstance(node.op, ReadOp) and is_variable(node.op.store)


def outer_read(x: Tensor) -> Tensor:
    """Returns a read of a variable outside of a function, for its read `x` in the function."""
    assert isinstance(x.node.op, ReadOp)
    store: Any = x.node.op.store
    # Gradients take the layout of the variable, whatever layout `x` was read in.
    # "*:" removes all rules of the mesh's layout; then the rules of the variable are added.
    region = Layout.changes("*:").then(store.layout)
    node = Node(
        x.node.op,
        inputs=(),
        specs=(x.spec,),
        mesh=x.mesh,
        source=x.node.source,
        context=Context(region=region, stage=store.stage),
        owner=EAGER,
        # Gradients visit nodes by serial: the read must precede all calls of the function.
        serial=x.node.serial,
    )
    return node.outputs[0]
