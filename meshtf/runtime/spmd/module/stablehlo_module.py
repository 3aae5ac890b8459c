"""Exports a program as one StableHLO module that any PJRT host can run.

The module is the program of one replica. It takes the replica's shards of all inputs in
order, variables first. It returns the shards of the results, followed by the new shards of the
variables that the program writes.

    exported = export(recorded, arguments)
    exported.module                          # bytes: a portable artifact of StableHLO
    [i.name for i in exported.inputs]        # ["w1", "w2", "x"]
    exported.save("step")                    # a folder
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Node, Store
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh, Partial
from meshtf.partition import Program, ReadStep, WriteStep, build, walk
from meshtf.partition.cost import local_shape
from meshtf.runtime.lowering.single_replica import numbered_scope
from meshtf.runtime.spmd.module.exported_program import Export, Port
from meshtf.runtime.spmd.module.index_checks import IndexChecks
from meshtf.runtime.spmd.module.portable_module import UnknownMhloOpError, portable
from meshtf.runtime.spmd.module.replica import Replica
from meshtf.runtime.spmd.module.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import store_names
from meshtf.runtime.tf_internals.xla_ops import xla_knows


def export(recorded: Recorded, arguments: Sequence[Store]) -> Export:
    """Returns a recorded function as a StableHLO module.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.

    Raises:
      PlanError: XLA cannot compile one of its ops, it prints or writes summaries, it runs
        on pipeline stages, or it captures a partial sum.
    """
    lowered = lower(recorded, arguments)
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
    for output, store in enumerate(lowered.written, start=len(results)):
        k = stores.index(store)
        input_ports[k] = dataclasses.replace(input_ports[k], output=output)
    result_ports = [
        Port(f"result_{i}", "result", result.spec, value.placement)
        for i, (result, value) in enumerate(
            zip(recorded.results, lowered.program.results)
        )
    ]
    values = {}
    if not mesh.abstract:
        for store in (*lowered.variables, *lowered.captured):
            values[names[store]] = _global_value(store, mesh)
    return Export(
        module=lowered.module,
        mesh=mesh,
        inputs=tuple(input_ports),
        results=tuple(result_ports),
        values=values,
    )


class Lowered(NamedTuple):
    """A recorded function as a module of one partition.

    Attributes:
      module: the portable artifact.
      program: the program.
      variables: the stores of its variables, its first inputs.
      captured: the stores of the tensors that it captured, the next inputs.
      arguments: the stores of its arguments, the last inputs.
      written: the variables that it writes; their new values are the last outputs.
      host_steps: the ops that run on the host, in order; their inputs are outputs of the
        module, after the results.
      checks: the checks of indices; if there are any, their record is one more input and
        output, the last ones; None: they are left out.
    """

    module: bytes
    program: Program
    variables: list[Store]
    captured: list[Store]
    arguments: list[Store]
    written: list[Store]
    host_steps: list[WriteStep]
    checks: IndexChecks | None

    @property
    def inputs(self) -> list[Store]:
        """The stores of all inputs, in order."""
        return [*self.variables, *self.captured, *self.arguments]


def lower(
    recorded: Recorded, arguments: Sequence[Store], checks: IndexChecks | None = None
) -> Lowered:
    """Returns a recorded function as a module of one partition; see `export`.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.
      checks: takes the checks of indices; None: they are left out.
    """
    nodes = recorded.nodes
    mesh = recorded.mesh
    _check_one_stage(nodes, mesh)
    program = build(nodes, recorded.results, mesh)
    variables, captured = _variables_and_captures(program, arguments)
    body = _ReplicaFunction(program, variables, [*captured, *arguments], checks)
    written = [store for store in variables if store in body.written_stores]
    return Lowered(
        module=body.compile(),
        program=program,
        variables=variables,
        captured=captured,
        arguments=list(arguments),
        written=written,
        host_steps=[
            step
            for step in program.steps
            if isinstance(step, WriteStep) and not step.variables
        ],
        checks=checks or None,
    )


class _ReplicaFunction:
    """The function of one replica, and its compilation.

    Args:
      program: the program.
      variables: the variables of the program, which are the first inputs of the function.
      inputs: the stores of all other inputs: captured tensors and arguments.
      checks: takes the checks of indices; None: they are left out.

    Attributes:
      written_stores: the variables that the program writes.
    """

    def __init__(
        self,
        program: Program,
        variables: Sequence[Store],
        inputs: Sequence[Store],
        checks: IndexChecks | None,
    ) -> None:
        self.checks = checks
        self.program = program
        self.variables = variables
        self.inputs = inputs
        writes = [step for step in program.steps if isinstance(step, WriteStep)]
        self.written_stores = {s for step in writes for s in step.variables}

    def __call__(
        self, variables: Sequence[tf.Variable], inputs: Sequence[Any]
    ) -> list[Any]:
        """Returns the results of the program on this replica, while TensorFlow traces it.

        Args:
          variables: this replica's shards of the variables.
          inputs: this replica's shards of all other inputs.
        """
        replica = Replica(
            self.program,
            dict(zip(self.variables, variables)),
            dict(zip(self.inputs, inputs)),
            self.checks,
        )
        results = replica.run()
        if self.checks is not None:
            self.checks.reduce(self.program.mesh)
        return [tf.identity(y) for y in (*results, *replica.host_inputs)]

    def compile(self) -> bytes:
        """Returns the serialised module.

        Raises:
          PlanError: XLA cannot compile an op of the program.
        """
        function = tf.function(self, jit_compile=True, autograph=False)
        variables = [tf.Variable(self._zeros(s)) for s in self.variables]
        inputs = [self._zeros(s) for s in self.inputs]
        graph = function.get_concrete_function(variables, inputs).graph
        for op in graph.get_operations():
            if op.type != "Placeholder" and not xla_knows(op.type):
                raise self._compile_error(op.name, f"TensorFlow's {op.type}")
        try:
            return portable(_stablehlo_text(function, variables, inputs))
        except UnknownMhloOpError as error:
            raise self._compile_error(error.location + "/", error.op) from None
        except (tf.errors.OpError, ValueError) as error:
            raise self._compile_error(str(error), "a kernel", str(error)) from None

    def _zeros(self, store: Store) -> Any:
        """Returns zeros of the shape of one shard of a store."""
        local = local_shape(store.spec.shape, store.placement, self.program.mesh)
        return tf.zeros(local.sizes, tf.as_dtype(store.spec.dtype))

    def _compile_error(
        self,
        text: str,
        subject: str,
        xla_message: str | None = None,
    ) -> PlanError:
        """Returns the error for an op that XLA cannot compile.

        Args:
          text: a text of TensorFlow with the name scope of the op.
          subject: the name of the kernel.
          xla_message: the message of XLA, if there is one.
        """
        node = self._node_named_in(text)
        title = "an op"
        source: Any = "?"
        shapes = []
        if node is not None:
            title = node.op.display_name
            source = node.source
            shapes = [repr(x.shape) for x in node.inputs]
        facts: dict[str, Any] = {"from": source, "inputs": " ".join(shapes)}
        if xla_message is not None:
            facts["xla"] = xla_message
        return PlanError(
            explain_error(
                f"XLA cannot compile {subject}, which {title} runs.",
                **facts,
                way_out="Write it with other ops, or run it without exporting it: a "
                "mtf.function needs no XLA.",
            )
        )

    def _node_named_in(self, text: str) -> Node | None:
        """Returns the first node whose name scope occurs in a text of TensorFlow, or None."""
        for step, _ in walk(self.program):
            if isinstance(step, ReadStep) or step.node is None:
                continue
            # TensorFlow appends _1, _2, ... to scopes that occur several times.
            if re.search(rf"\b{re.escape(numbered_scope(step))}(_\d+)?/", text):
                return step.node
        return None


def _stablehlo_text(
    function: Any, variables: Sequence[tf.Variable], inputs: Sequence[Any]
) -> str:
    """Returns the StableHLO of a tf.function for these arguments."""
    cpu, *_ = tf.config.list_logical_devices("CPU")
    compiler_ir = function.experimental_get_compiler_ir(variables, inputs)
    with warnings.catch_warnings():
        # Without a device's name, TensorFlow runs a random op to find one, which it refuses
        # to do once its ops are deterministic.
        warnings.filterwarnings("ignore", "device_name is being deprecated")
        text: str = compiler_ir(stage="stablehlo", device_name=cpu.name)
    return text


def _check_one_stage(nodes: Sequence[Node], mesh: Mesh) -> None:
    """Checks that no node runs on one pipeline stage only. Raises PlanError."""
    for node in nodes:
        if node.stage is not None and mesh.axes.get(mesh.stages, 1) > 1:
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
    # The keys are the stores, in order and without duplicates.
    stores: dict[Store, None] = {}
    for step in program.steps:
        if isinstance(step, ReadStep):
            stores[step.store] = None
        elif isinstance(step, WriteStep):
            stores.update(dict.fromkeys(step.variables))
    variables = [s for s in stores if s.kind in ("parameter", "state")]
    captured = [s for s in stores if s.kind == "argument" and s not in arguments]
    return variables, captured


def _check_no_partial_results(stores: Sequence[Store]) -> None:
    """Checks that captured tensors have global values, which `Export.values` contains.

    Raises:
      PlanError: a captured tensor is a partial sum, maximum or minimum.
    """
    for store in stores:
        if any(isinstance(state, Partial) for state in store.placement):
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
    return port.gather([x.numpy() for x in store.read()], mesh)
