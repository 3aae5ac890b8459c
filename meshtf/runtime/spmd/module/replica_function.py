"""The function that computes a program on one replica, and its compilation to StableHLO. A
replica is the device at one position of the mesh; all replicas run the same function.

function = ReplicaFunction(program, variables, inputs, checks)
function.compile()                   # bytes: a portable artifact of StableHLO
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Node, Store
from meshtf.ops.common.trace_cache import trace_cache
from meshtf.partition import Program, walk
from meshtf.partition.cost import local_shape
from meshtf.runtime.lowering.single_replica import numbered_scope
from meshtf.runtime.spmd.module.index_checks import IndexChecks
from meshtf.runtime.spmd.module.portable_module import UnknownMhloOpError, portable
from meshtf.runtime.spmd.module.replica import Replica
from meshtf.runtime.spmd.module.shared_functions import SharedFunctions
from meshtf.runtime.spmd.module.untouched_zeros import untouched_zeros
from meshtf.runtime.tf_internals.xla_ops import xla_knows


class ReplicaFunction:
    """The function of one replica, and its compilation.

    Args:
      program: the program.
      variables: the variables of the program, which are the first inputs of the function.
      inputs: the stores (storage that the program reads) of all other inputs: captured
        tensors and arguments.
      checks: an empty object, to which tracing adds the checks of indices; None: the
        function checks no indices.
      platform: the devices that it is for: "cpu", "cuda", "tpu"; "": any.

    Attributes:
      written_stores: the variables that the program writes.
    """

    def __init__(
        self,
        program: Program,
        variables: Sequence[Store],
        inputs: Sequence[Store],
        checks: IndexChecks | None = None,
        platform: str = "",
    ) -> None:
        self.checks = checks
        self.platform = platform
        self.program = program
        self.variables = variables
        self.inputs = inputs
        self._shared_functions = SharedFunctions()
        self.written_stores = {x for step in program.steps for x in step.writes}

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
            variables=dict(zip(self.variables, variables)),
            inputs=dict(zip(self.inputs, inputs)),
            checks=self.checks,
            shared_functions=self._shared_functions,
            platform=self.platform,
        )
        with trace_cache():
            results = replica.run()
        if self.checks is not None:
            self.checks.reduce(self.program.mesh)
        # The new values of the tf.Variables are further outputs, which TensorFlow adds.
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
        shared_operations = self._shared_functions.operations()
        for op in (*graph.get_operations(), *shared_operations):
            if op.type != "Placeholder" and not xla_knows(op.type):
                raise self._compile_error(op.name, subject=f"TensorFlow's {op.type}")
        try:
            return portable(_stablehlo_text(function, variables, inputs))
        except UnknownMhloOpError as error:
            scope = error.location + "/"
            raise self._compile_error(scope, subject=error.op) from None
        except (tf.errors.OpError, ValueError) as error:
            message = str(error)
            raise self._compile_error(
                message, subject="a kernel", xla_message=message
            ) from None

    def _zeros(self, store: Store) -> Any:
        """Returns zeros of the shape of one shard of a store."""
        local = local_shape(store.spec.shape, store.placement, self.program.mesh)
        return untouched_zeros(local.sizes, store.spec.dtype)

    def _compile_error(
        self,
        text: str,
        subject: str,
        xla_message: str | None = None,
    ) -> PlanError:
        """Returns the error for an op that XLA cannot compile.

        Args:
          text: a text of TensorFlow that contains the name scope of the op.
          subject: the name of the kernel, the subject of the error's first sentence.
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
            if step.node is None:
                continue
            # TensorFlow appends _1, _2, ... to scopes that occur several times.
            if re.search(rf"\b{re.escape(numbered_scope(step))}(_\d+)?/", text):
                return step.node
        return None


def _stablehlo_text(
    function: Any, variables: Sequence[tf.Variable], inputs: Sequence[Any]
) -> str:
    """Returns the StableHLO of a tf.function for these arguments."""
    cpu = tf.config.list_logical_devices("CPU")[0]
    compiler_ir = function.experimental_get_compiler_ir(variables, inputs)
    with warnings.catch_warnings():
        # The deprecated argument is needed: without it TensorFlow finds the device by
        # running a random op, which fails under `enable_op_determinism`.
        warnings.filterwarnings("ignore", "device_name is being deprecated")
        text: str = compiler_ir(stage="stablehlo", device_name=cpu.name)
    return text
