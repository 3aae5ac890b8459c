"""A program as one StableHLO module that any PJRT host can run, with what the host must
know.

The module is of one replica. It takes the replica's slices of all `inputs` in order,
variables first, and gives `results` and then the new slices of the variables that the
program writes.

    exported = export(recorded, arguments)
    exported.module                          # bytes: serialised StableHLO
    [i.name for i in exported.inputs]        # ["w1", "w2", "x"]
    exported.save("step")                    # a folder
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Node, Store
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh, Partial
from meshtf.partition import Program, ReadStep, WriteStep, build, walk
from meshtf.partition.cost import local_shape
from meshtf.runtime.lowering.single_replica import scope
from meshtf.runtime.spmd.exported_program import Export, Port
from meshtf.runtime.spmd.replica import Replica
from meshtf.runtime.spmd.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import names_of
from meshtf.runtime.tf_internals.xla_ops import xla_knows


def export(recorded: Recorded, arguments: Sequence[Store]) -> Export:
    """Returns a recorded function as a StableHLO module.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.

    Raises:
      PlanError: XLA cannot compile one of its ops, it prints, or it takes an unfinished
        sum from outside.
    """
    nodes, results, mesh = recorded
    _check_one_stage(nodes, mesh)
    program = build(nodes, results, mesh)
    refuse_effects(program)
    variables, captured = _stores(program, arguments)
    others = [*captured, *arguments]
    _check_finished(captured)
    names = names_of([*variables, *others])
    body = _Body(program, variables, others)
    module = body.compile()
    written = [s for s in variables if s in body.written]
    inputs = [
        Port(
            names[s],
            s.kind,
            s.spec,
            s.placement,
            len(results) + written.index(s) if s in body.written else None,
        )
        for s in (*variables, *others)
    ]
    ports = [
        Port(f"result_{i}", "result", r.spec, v.placement)
        for i, (r, v) in enumerate(zip(results, program.results))
    ]
    values = (
        {}
        if mesh.abstract
        else {names[s]: _whole(s, mesh) for s in (*variables, *captured)}
    )
    return Export(module, mesh, tuple(inputs), tuple(ports), values)


class _Body:
    """The function of one replica, and its compilation."""

    def __init__(
        self, program: Program, variables: Sequence[Store], others: Sequence[Store]
    ) -> None:
        self.program, self.variables, self.others = program, variables, others
        self.written = {
            s
            for step in program.steps
            if isinstance(step, WriteStep)
            for s in step.variables
        }

    def __call__(
        self, variables: Sequence[tf.Variable], others: Sequence[Any]
    ) -> list[Any]:
        replica = Replica(
            self.program,
            dict(zip(self.variables, variables)),
            dict(zip(self.others, others)),
        )
        return [tf.identity(y) for y in replica.run()]

    def compile(self) -> bytes:
        """Returns the serialised module. Raises PlanError."""
        function = tf.function(self, jit_compile=True, autograph=False)
        variables = [tf.Variable(self._zeros(s)) for s in self.variables]
        others = [self._zeros(s) for s in self.others]
        graph = function.get_concrete_function(variables, others).graph
        for op in graph.get_operations():
            if op.type != "Placeholder" and not xla_knows(op.type):
                raise self._refusal(op.name, f"TensorFlow's {op.type}")
        try:
            return function.experimental_get_compiler_ir(variables, others)(
                stage="stablehlo_serialized"
            )
        except (tf.errors.OpError, ValueError) as error:
            raise self._refusal(str(error), "it as it is", str(error)) from None

    def _zeros(self, store: Store) -> Any:
        local = local_shape(store.spec.shape, store.placement, self.program.mesh)
        return tf.zeros(local.sizes, tf.as_dtype(store.spec.dtype))

    def _refusal(self, text: str, what: str, why: str | None = None) -> PlanError:
        """Returns the error for the op whose name stands in `text`."""
        named = (
            s
            for s, _ in walk(self.program)
            if not isinstance(s, ReadStep)
            and re.search(rf"\b{re.escape(scope(s))}(_\d+)?/", text)
        )  # TensorFlow counts them
        node = next((s.node for s in named if s.node is not None), None)
        title = "an op" if node is None else node.op.display_name
        return PlanError(
            explain_error(
                f"XLA cannot compile {what}, which {title} runs.",
                **{"from": "?" if node is None else node.source},
                inputs=""
                if node is None
                else " ".join(repr(x.shape) for x in node.inputs),
                **({} if why is None else {"xla": why}),
                way_out="Write it with other ops, or run it as it is: a mtf.function "
                "needs no XLA.",
            )
        )


def _check_one_stage(nodes: Sequence[Node], mesh: Mesh) -> None:
    """Refuses stages: all replicas run one program. Raises PlanError."""
    for node in nodes:
        if node.stage is not None and mesh.axes.get(mesh.stages, 1) > 1:
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} runs at stage {node.stage} alone, and replicas "
                    "run one and the same program.",
                    **{"from": node.source},
                    mesh=str(mesh),
                    way_out='Run it with runtime="placed", or export it for a mesh '
                    f"without an axis {mesh.stages!r}.",
                )
            )


def _stores(
    program: Program, arguments: Sequence[Store]
) -> tuple[list[Store], list[Store]]:
    """Returns the variables of a program, and the tensors that it took from outside."""
    found: dict[Store, None] = {}
    for step in program.steps:
        if isinstance(step, ReadStep):
            found[step.store] = None
        elif isinstance(step, WriteStep):
            found.update(dict.fromkeys(step.variables))
    variables = [s for s in found if s.kind in ("parameter", "state")]
    return variables, [s for s in found if s.kind == "argument" and s not in arguments]


def _check_finished(stores: Sequence[Store]) -> None:
    """Refuses captured tensors that are partial results: `values` has wholes. Raises
    PlanError.
    """
    for store in stores:
        if any(isinstance(state, Partial) for state in store.placement):
            raise PlanError(
                explain_error(
                    f"{store.name} from outside is a partial result, of which there is "
                    "no whole to keep.",
                    tensor=repr(store.spec.shape),
                    placement=store.placement,
                    way_out="Finish it before: mtf.replicate(x), or compute it inside "
                    "of the function.",
                )
            )


def _whole(store: Store, mesh: Mesh) -> Any:
    port = Port(store.name, store.kind, store.spec, store.placement)
    return port.join([x.numpy() for x in store.read()], mesh)
