"""Traced functions that TensorFlow does not inline, and calls of these functions.

    double = trace(lambda x: [x + x], [tf.TensorSpec([4])])
    (y,) = double([x])                     # adds a call to the graph that is being traced

A program has hundreds of calls with dozens of arguments each. So the attributes of a call
node are computed once for each function, whereas `tf.raw_ops.PartitionedCall` computes
them from the arguments of each call.

    >>> import tensorflow as tf
    >>> add = trace(lambda x: [x + 1], [tf.TensorSpec([4])])
    >>> call = tf.function(lambda x: add([x]))
    >>> graph = call.get_concrete_function(tf.TensorSpec([4])).graph
    >>> [name == add.name for name in map(called, graph.as_graph_def().node) if name]
    [True]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.program_proto import definition_of
from meshtf.runtime.tf_internals.call_options import (
    COMPILED,
    IN_ANY_ORDER,
    NOT_INLINED,
    SHAPES_KNOWN,
    plain_config,
)
from meshtf.runtime.tf_internals.onednn_names import onednn_rewrites
from meshtf.runtime.tf_internals.onednn_ops import needs_graph_optimizer, use_onednn_ops
from meshtf.runtime.tf_internals.register_function import RegisteredFunction

# The ops that call a function: for a stateless function, and for a stateful one.
BRANCH_OPS = ("StatelessCase", "Case")  # as the only branch
CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")
_CONTROL_FLOW_OPS = ("If", "StatelessIf", "While", "StatelessWhile")
_CALLING_OPS = frozenset((*BRANCH_OPS, *CALL_OPS, *_CONTROL_FLOW_OPS))


class GraphFunction:
    """A traced function from a list of tensors to a list of tensors, without captures.

    Args:
      definition: the FunctionDef of the function.
      function: the concrete function that was traced; a reference to it is stored only if it
        calls functions, such as the branches of a `tf.cond`, which TensorFlow deletes with it.
      stateful: whether the function reads or writes variables.
      writes: whether the function writes variables.
      as_branch: whether the function is called as the only branch of a `Case`; see
        `trace`.
      jit: whether XLA compiles the function.

    Attributes:
      kind: the type of the op that calls the function.
      attributes: the attributes of that op.
      dtypes: the data type of each result.
      shapes: the shape of each result.
    """

    def __init__(
        self,
        definition: Any,
        function: Any,
        stateful: bool,
        writes: bool,
        as_branch: bool,
        jit: bool,
    ) -> None:
        self.stateful = stateful
        self.writes = writes
        self.as_branch = as_branch
        self.jit = jit
        self.registered = RegisteredFunction(definition)
        stateless_op, stateful_op = BRANCH_OPS if as_branch else CALL_OPS
        self.kind = stateful_op if stateful else stateless_op
        self.attributes = _attributes(self.name, function, as_branch)
        if jit:
            self.attributes[COMPILED] = tf.compat.v1.AttrValue(b=True)
        calls_functions = any(node.op in _CALLING_OPS for node in definition.node_def)
        self._function = function if calls_functions else None
        self.dtypes = [y.dtype for y in function.outputs]
        self.shapes = [y.shape for y in function.outputs]

    @property
    def name(self) -> str:
        """The name by which ops call the function."""
        return self.registered.name

    @property
    def definition(self) -> Any:
        """The FunctionDef of the function."""
        return self.registered.definition

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Calls the function in the graph that TensorFlow is tracing."""
        inputs = list(args)
        if self.as_branch:
            # The first input of a `Case` op is the index of the branch to run.
            inputs = [tf.constant(0), *inputs]
        graph = tf.compat.v1.get_default_graph()
        op = graph.create_op(self.kind, inputs, self.dtypes, attrs=self.attributes)
        if not self.as_branch:
            for y, shape in zip(op.outputs, self.shapes):
                y.set_shape(shape)
        return list(op.outputs)


def called(node: Any) -> str | None:
    """Returns the name of the function that a node of a graph calls in the way of
    `GraphFunction`; None: it calls no function in this way.
    """
    if node.op in CALL_OPS:
        return str(node.attr["f"].func.name)
    if node.op not in BRANCH_OPS:
        return None
    branches = node.attr["branches"].list.func
    if len(branches) != 1:
        return None
    return str(branches[0].name)


def trace(
    body: Callable[..., list[Any]],
    specs: Iterable[tf.TensorSpec],
    stateful: bool = False,
    writes: bool = False,
    as_branch: bool = False,
    jit: bool = False,
) -> GraphFunction:
    """Traces a function.

    TensorFlow places, optimizes and partitions a called function separately for each
    device, which takes much of the time of a first step on many devices. It does none of
    this for the branch of a `Case` op. So a function is called as the only branch of a
    `Case` if the device can run the function unchanged: all its ops have kernels there, as
    on CPUs, and ops that TensorFlow would replace by ops of oneDNN have been replaced.

    Args:
      body: a function of tensors that returns a list of tensors and captures nothing.
      specs: the specs of the arguments.
      stateful: whether the function reads or writes variables.
      writes: whether it writes variables, so that its ops must run in program order.
      as_branch: whether to call the function as the only branch of a `Case`, if that is
        possible.
      jit: whether XLA compiles the function.
    """
    attributes = dict(NOT_INLINED)
    if not writes and not jit:
        attributes |= IN_ANY_ORDER
    function = tf.function(
        body,
        autograph=False,
        jit_compile=jit or None,
        experimental_attributes=attributes,
    ).get_concrete_function(*specs)
    definition = definition_of(function)
    if as_branch and onednn_rewrites():
        # A copy, since the original is called if ops are left that need the optimizer.
        rewritten_definition = type(definition).FromString(
            definition.SerializeToString()
        )
        use_onednn_ops(rewritten_definition)
        as_branch = not needs_graph_optimizer(rewritten_definition)
        if as_branch:
            definition = rewritten_definition
    return GraphFunction(
        definition=definition,
        function=function,
        stateful=stateful,
        writes=writes,
        as_branch=as_branch,
        jit=jit,
    )


def _attributes(name: str, function: Any, as_branch: bool) -> dict[str, Any]:
    """Returns the attributes of the op that calls a function, see `GraphFunction.kind`."""
    proto = tf.compat.v1.AttrValue

    def types(tensors: Iterable[Any]) -> Any:
        """Returns the attribute value for the data types of tensors."""
        enums = [tensor.dtype.as_datatype_enum for tensor in tensors]
        return proto(list=proto.ListValue(type=enums))

    callee = tf.compat.v1.NameAttrList(name=name)
    attributes = {"Tin": types(function.inputs), "Tout": types(function.outputs)}
    if as_branch:
        shapes = [y.shape.as_proto() for y in function.outputs]
        return attributes | {
            "branches": proto(list=proto.ListValue(func=[callee])),
            "output_shapes": proto(list=proto.ListValue(shape=shapes)),
        }
    return attributes | {
        "f": proto(func=callee),
        "config": proto(s=b""),
        "config_proto": proto(s=plain_config()),
        "executor_type": proto(s=b""),
        SHAPES_KNOWN: proto(b=True),
    }
