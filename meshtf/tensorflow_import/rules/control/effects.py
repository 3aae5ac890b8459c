"""Prints and assertions: they run on the host, once for all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import HostOp, Spec, Specs, apply_all
from meshtf.ops.elementwise.unary import is_finite
from meshtf.ops.reductions.reduce import reduce_all
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


class PrintTensors(HostOp):
    """Prints tensors, as `tf.print` does.

    Attributes:
        function: A TensorFlow function that prints them.
    """

    function: Callable[..., None]

    def output_specs(self, *xs: Spec) -> Specs:
        return ()

    def run_on_host(self, *xs: Any) -> None:
        self.function(*xs)


class Check(HostOp):
    """Raises an error unless its first input is true. The other ones are shown.

    Attributes:
        function: A TensorFlow function that asserts it.
    """

    function: Callable[..., None]
    asserts: ClassVar[bool] = True

    def output_specs(self, *xs: Spec) -> Specs:
        return ()

    def run_on_host(self, *xs: Any) -> None:
        self.function(*xs)


class _Effect(Rule):
    """An operation without outputs."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for value in node.inputs:
            analysis.of(value)


@rule("PrintV2")
class Print(_Effect):
    """A print of tensors in a text."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        settings = {"template": "{}", "placeholder": "{}", "summarize": 3}
        settings |= {k: v for k, v in node.attributes.items() if k in settings}
        stream, end = (node.attributes[k] for k in ("output_stream", "end"))

        def run(*tensors: tf.Tensor) -> None:
            text = tf.raw_ops.StringFormat(inputs=_data(node, tensors), **settings)
            tf.raw_ops.PrintV2(input=text, output_stream=stream, end=end)

        # An op has an input: without tensors, one that nothing shows.
        xs = [lowering.tensor(v) for v in node.inputs] or [constant(lowering.mesh, 0)]
        apply_all(PrintTensors(run), *xs)
        return []


@rule("Assert")
class Assert(_Effect):
    """A condition, and texts and tensors that are shown if it is false."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        def run(holds: tf.Tensor, *tensors: tf.Tensor) -> None:
            # Errors leave out what is in double brackets: names of TensorFlow's nodes.
            flattened = [tf.reshape(x, [-1]) for x in _data(node, tensors)]
            data = [*flattened, f"({node.path})"]
            summarize = node.attributes["summarize"]
            tf.raw_ops.Assert(condition=holds, data=data, summarize=summarize)

        apply_all(Check(run), *(lowering.tensor(v) for v in node.inputs))
        return []


@rule("CheckNumerics")
class CheckNumerics(_Effect):
    """All elements of a tensor are finite."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        message = tf.compat.as_str(node.attributes["message"])
        data = [f"{message} : Tensor had Inf or NaN values", f"({node.path})"]

        def run(holds: tf.Tensor) -> None:
            tf.raw_ops.Assert(condition=holds, data=data, summarize=3)

        x = lowering.tensor(node.inputs[0])
        apply_all(Check(run), reduce_all(is_finite(x)))
        return []


def _data(node: Node, tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Returns what a node shows: texts, and tensors with the axes of the TensorFlow function."""
    remaining = iter(tensors)
    return [
        tf.reshape(next(remaining), value.shape) if isinstance(value, Value) else value
        for value in node.attributes["shown"]
    ]
