"""Exports a program as one StableHLO module that any PJRT host can run.

The module is the program of one replica, the device at one position of the mesh. It takes the
replica's shards of all inputs in order, variables first. It returns the shards of the results,
followed by the new shards of the variables that the program writes.

    exported = export(recorded, arguments)
    exported.module                          # bytes: a portable artifact of StableHLO
    [i.name for i in exported.inputs]        # ["w1", "w2", "x"]
    exported.save("step")                    # a folder
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Node, Store
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_choice
from meshtf.partition import Program, Step, build, with_overlap
from meshtf.runtime.spmd.module.exported_program import Export, Port
from meshtf.runtime.spmd.module.replica_function import ReplicaFunction
from meshtf.runtime.spmd.module.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import store_names


def export(
    recorded: Recorded, arguments: Sequence[Store], platform: str = ""
) -> Export:
    """Returns a recorded function as a StableHLO module.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.
      platform: the devices that the module is for: "cpu", "cuda", "tpu"; "": any.

    Raises:
      ArgumentError: an unknown platform.
      PlanError: XLA cannot compile one of its ops, it prints or writes summaries, it runs
        on pipeline stages, or it captures a partial sum.
    """
    platform = as_choice("platform", platform, ("", "cpu", "cuda", "tpu"))
    lowered = lower(recorded, arguments, platform)
    refuse_effects(lowered.program)
    mesh = recorded.mesh
    results = recorded.results
    _check_no_partial_results(lowered.captured)
    stores = lowered.inputs
    names = store_names(stores)
    input_ports = [
        Port(names[store], store.kind, store.spec, store.placement) for store in stores
    ]
    # The new values of written variables are outputs after the results.
    for output_index, store in enumerate(lowered.written, start=len(results)):
        input_index = stores.index(store)
        input_ports[input_index] = dataclasses.replace(
            input_ports[input_index], output=output_index
        )
    result_ports = []
    for index, (result, value) in enumerate(zip(results, lowered.program.results)):
        name = f"result_{index}"
        result_ports.append(Port(name, "result", result.spec, value.placement))
    values = {}
    if not mesh.abstract:  # variables of an abstract mesh have no values
        for store in (*lowered.variables, *lowered.captured):
            values[names[store]] = _global_value(store, mesh)
    return Export(
        module=lowered.module,
        mesh=mesh,
        inputs=tuple(input_ports),
        results=tuple(result_ports),
        values=values,
        platform=platform,
    )


class Lowered(NamedTuple):
    """A recorded function as a module of one partition (XLA's word for a replica's program).
    A store is the storage that the program reads: a variable, a tensor, an argument.

    Inputs of the module: variables, captured, arguments.
    Outputs: results, inputs of host steps, new values of written variables.

    Attributes:
      module: the serialised module, a portable artifact of StableHLO.
      program: the planned program.
      variables: the variables that the program reads or writes.
      captured: the stores of the tensors that the function captured.
      arguments: the stores of its arguments.
      written: the variables that the program writes.
      host_steps: the steps that run on the host, such as prints, in order.
    """

    module: bytes
    program: Program
    variables: list[Store]
    captured: list[Store]
    arguments: list[Store]
    written: list[Store]
    host_steps: list[Step]

    @property
    def inputs(self) -> list[Store]:
        """The stores of all inputs, in order."""
        return [*self.variables, *self.captured, *self.arguments]


def lower(
    recorded: Recorded, arguments: Sequence[Store], platform: str = ""
) -> Lowered:
    """Returns a recorded function as a module of one partition, which checks no indices.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.
      platform: the devices that the module is for: "cpu", "cuda", "tpu"; "": any.

    Raises:
      PlanError: XLA cannot compile one of the ops, or one runs on a single pipeline stage.
    """
    nodes = recorded.nodes
    mesh = recorded.mesh
    _check_one_stage(nodes, mesh)
    program = with_overlap(build(nodes, recorded.results, mesh), platform)
    variables, captured = _variables_and_captures(program, arguments)
    inputs = [*captured, *arguments]
    body = ReplicaFunction(program, variables, inputs, platform=platform)
    written = [store for store in variables if store in body.written_stores]
    return Lowered(
        module=body.compile(),
        program=program,
        variables=variables,
        captured=captured,
        arguments=list(arguments),
        written=written,
        host_steps=[step for step in program.steps if step.host_op is not None],
    )


def _check_one_stage(nodes: Sequence[Node], mesh: Mesh) -> None:
    """Checks that no node runs on one pipeline stage only.

    Raises:
      PlanError: a node runs on a single one of several stages.
    """
    for node in nodes:
        if node.stage is not None and mesh.num_stages > 1:
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} runs on stage {node.stage} only, but all "
                    "replicas run the same program.",
                    source=node.source,
                    mesh=str(mesh),
                    way_out="Run it on TensorFlow's devices (a mesh without "
                    f'devices="spmd"), or take a mesh without an axis {mesh.stages!r}.',
                )
            )


def _variables_and_captures(
    program: Program, arguments: Sequence[Store]
) -> tuple[list[Store], list[Store]]:
    """Returns the variables of a program, and the stores of the tensors that it captures.

    Args:
      program: the program.
      arguments: the stores of its arguments, which are not captures.
    """
    captured = [
        store
        for store in program.stores
        if store.kind == "argument" and store not in arguments
    ]
    return program.variables, captured


def _check_no_partial_results(stores: Sequence[Store]) -> None:
    """Checks that captured tensors have global values, which `Export.values` contains.

    Raises:
      PlanError: a captured tensor is a partial sum, maximum or minimum.
    """
    for store in stores:
        if store.placement.partial:
            raise PlanError(
                explain_error(
                    f"the captured tensor {store.name} is a partial result, so it has no "
                    "global value to export.",
                    tensor=repr(store.spec.shape),
                    placement=store.placement,
                    way_out="Reduce it before: mtf.replicate(x), or compute it in the "
                    "function.",
                )
            )


def _global_value(store: Store, mesh: Mesh) -> Any:
    """Returns the global array of a store's shards."""
    port = Port(store.name, store.kind, store.spec, store.placement)
    return port.gather([shard.numpy() for shard in store.read()], mesh)
