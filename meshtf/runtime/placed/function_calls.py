"""Functions that TensorFlow does not inline, and calls of them.

    double = trace(lambda x: [x + x], [tf.TensorSpec([4])])
    (y,) = double([x])                     # while another graph is traced

Programs have hundreds of calls with dozens of arguments each, so that a call is one op
made with attributes that are known. `tf.raw_ops.PartitionedCall` finds them out from
every argument.

    >>> import tensorflow as tf
    >>> add = tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([4]))
    >>> call = tf.function(lambda x: Callee(add, False, True)([x]))
    >>> graph = call.get_concrete_function(tf.TensorSpec([4])).graph
    >>> [name == add.name.decode() for name in map(called, graph.as_graph_def().node) if name]
    [True]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.fast_tracing import add_op, quick_ops, whole_number
from meshtf.runtime.tf_internals.graph_node_maker import known
from meshtf.runtime.tf_internals.onednn_names import onednn_rewrites
from meshtf.runtime.tf_internals.onednn_ops import by_onednn, left_to_tensorflow


def _config(cpus: bool) -> bytes:
    """Returns a session configuration without the graph optimiser: it costs start-up
    and gains nothing on segments, and turning it off here leaves the user's other
    functions alone.

    Args:
      cpus: for programs of CPUs alone, of which TensorFlow then does not search all
        that they call for work of TPUs, nor each device's part for constants to be
        folded, which segments have.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    if cpus:
        config.experimental.mlir_bridge_rollout = (
            config.experimental.MLIR_BRIDGE_ROLLOUT_DISABLED
        )
        config.graph_options.optimizer_options.opt_level = (
            tf.compat.v1.OptimizerOptions.L0
        )
    return config.SerializeToString()


PLAIN_CONFIG, CPU_CONFIG = _config(False), _config(True)


ALONE, CALLED = (
    ("StatelessCase", "Case"),
    ("PartitionedCall", "StatefulPartitionedCall"),
)


class Callee:
    """A traced function of tensors without captures, which a graph calls with a list,
    for a list.

    Args:
      function: the concrete function.
      stateful: whether it reads or writes variables.
      alone: whether its device runs it alone: see `trace`.
    """

    def __init__(self, function: Any, stateful: bool, alone: bool) -> None:
        self.function, self.alone = function, alone
        self.kind = (ALONE if alone else CALLED)[stateful]
        self.known = known(self.kind, _attrs(function, alone))
        self.shapes = [] if alone else [y.shape for y in function.outputs]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        return list(self.op(args).outputs)

    def op(self, args: Sequence[Any]) -> Any:
        """Returns the op of a call."""
        self.function.add_to_graph(tf.compat.v1.get_default_graph())
        op = add_op(
            self.kind, [*([whole_number(0)] if self.alone else []), *args], self.known
        )
        for y, shape in zip(op.outputs, self.shapes):
            y.set_shape(shape)
        return op


def called(node: Any) -> str | None:
    """Returns the name of the function that a node of a graph calls as `Callee` does,
    or None.
    """
    if node.op in CALLED:
        return str(node.attr["f"].func.name)
    branches = list(node.attr["branches"].list.func) if node.op in ALONE else []
    return str(branches[0].name) if len(branches) == 1 else None


def trace(
    body: Callable[..., list[Any]],
    specs: Iterable[tf.TensorSpec],
    stateful: bool = False,
    ordered: bool = False,
    alone: bool = False,
) -> Callee:
    """Traces a function.

    TensorFlow places, optimises and partitions a function that is called, for each
    device by itself, which is much of the time of a first step on many devices. The
    branch of a `Case` it gives to the device as it is, so that is how functions are
    called that one device can run `alone`: all ops have kernels there, as on CPUs, and
    those that TensorFlow would have oneDNN compute are oneDNN's.

    Args:
      body: of tensors, returns a list of them; takes nothing else from outside.
      specs: of the arguments.
      stateful: whether it reads or writes variables.
      ordered: whether it writes, so that ops must run in the order in which they were
        made.
      alone: whether the device can run it alone.
    """
    onednn = alone and onednn_rewrites()

    def traced(*args: Any) -> list[Any]:
        with quick_ops(by_onednn if onednn else None):
            return body(*args)

    attributes = {"_noinline": True} | ({} if ordered else {"_disable_acd": True})
    function = tf.function(
        traced, autograph=False, experimental_attributes=attributes
    ).get_concrete_function(*specs)
    return Callee(
        function,
        stateful,
        alone and not (onednn and left_to_tensorflow(function.graph)),
    )


def _attrs(function: Any, alone: bool) -> dict[str, Any]:
    """Returns the attributes of a call."""
    proto = tf.compat.v1.AttrValue

    def types(tensors: Iterable[Any]) -> Any:
        return proto(
            list=proto.ListValue(type=[t.dtype.as_datatype_enum for t in tensors])
        )

    called = tf.compat.v1.NameAttrList(name=function.name)
    attrs = {"Tin": types(function.inputs), "Tout": types(function.outputs)}
    if alone:
        shapes = [y.shape.as_proto() for y in function.outputs]
        return attrs | {
            "branches": proto(list=proto.ListValue(func=[called])),
            "output_shapes": proto(list=proto.ListValue(shape=shapes)),
        }
    return attrs | {
        "f": proto(func=called),
        "config": proto(s=b""),
        "config_proto": proto(s=PLAIN_CONFIG),
        "executor_type": proto(s=b""),
        "_disable_call_shape_inference": proto(b=True),
    }
