"""Random numbers: drawn by meshtf's generators, which give the same ones under every layout.

The key of a draw is the seed that TensorFlow's generator would get. Keras' seed generators keep
it in a variable, which each step replaces and checkpoints save: so the numbers are new in each
step, and go on after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import Tensor
from meshtf.module import scope
from meshtf.ops.control.seeds import seed
from meshtf.ops.elementwise.arithmetic import floormod
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.random.random import (
    categorical,
    random_normal,
    random_uniform,
    truncated_normal,
)
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.stack import unstack
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule

# By kind: the function, and which operand is the seed or the key (None: the run's seed).
_DRAWS: dict[str, tuple[Callable[..., Tensor], int | None]] = {
    "RandomStandardNormal": (random_normal, None),
    "RandomUniform": (random_uniform, None),
    "StatelessRandomNormal": (random_normal, 1),
    "StatelessRandomNormalV2": (random_normal, 1),
    "StatelessRandomUniform": (random_uniform, 1),
    "StatelessRandomUniformV2": (random_uniform, 1),
    "StatelessTruncatedNormal": (truncated_normal, 1),
    "StatelessTruncatedNormalV2": (truncated_normal, 1),
    "TruncatedNormal": (truncated_normal, None),
}
# The same, with the operand of the smallest integer; the next one is the limit.
_INTEGERS: dict[str, tuple[int | None, int]] = {
    "RandomUniformInt": (None, 1),
    "StatelessRandomUniformInt": (1, 2),
    "StatelessRandomUniformIntV2": (1, 4),
}
_BITS = 2**31


class _Draw(Rule):
    """A draw: other numbers than TensorFlow's, of the same distribution."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.of(node.outputs[0])

    def draw(
        self, lowering: Lowering, key: Value | None, function: Callable[[], Tensor]
    ) -> Tensor:
        """Calls a function that draws, under the seed that a value is."""
        if key is None:
            with scope(lowering.unused_name("draw")):
                return function()
        x = lowering.value(key)
        seeds = x if isinstance(x, tuple) else _seeds(lowering, key)
        with seed(*seeds):
            return function()


@rule(*_DRAWS)
class Random(_Draw):
    """Floats of a standard distribution."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        function, seed_index = _DRAWS[node.kind]
        output = node.outputs[0]
        return self.draw(
            lowering,
            None if seed_index is None else node.inputs[seed_index],
            lambda: function(
                lowering.mesh, lowering.shape(output), dtype=output.dtype.name
            ),
        )


@rule(*_INTEGERS)
class RandomIntegers(_Draw):
    """Integers between two numbers."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        seed_index, first = _INTEGERS[node.kind]
        low, high = (int(known(node, k)) for k in (first, first + 1))
        output = node.outputs[0]
        return self.draw(
            lowering,
            None if seed_index is None else node.inputs[seed_index],
            lambda: random_uniform(
                lowering.mesh,
                lowering.shape(output),
                low,
                high,
                dtype=output.dtype.name,
            ),
        )


@rule("Multinomial", "StatelessMultinomial")
class Categorical(_Draw):
    """Samples of classes, by their logits `[batch, classes]`."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        batch = analysis.of(node.inputs[0])[0]
        analysis.set(output, [batch, analysis.new(output.shape[1])])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        logits, output = node.inputs[0], node.outputs[0]
        classes = lowering.name(lowering.axes(logits)[1], "a sample of classes")
        shape = (
            f"{lowering.shape(output)}; {lowering.shape_of(lowering.axes(logits)[1])}"
        )
        x = broadcast(lowering.tensor(logits), shape)
        key = node.inputs[2] if node.kind == "StatelessMultinomial" else None
        index = self.draw(lowering, key, lambda: categorical(x, classes))
        return cast(index, output.dtype.name)


@rule("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter")
class Key(Rule):
    """What TensorFlow's generators need; for meshtf's it is the seed itself."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for value in node.outputs:
            analysis.of(value)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        if not node.inputs:
            return [0]
        return [_seeds(lowering, node.inputs[0]), None]


def _seeds(lowering: Lowering, value: Value) -> tuple[Any, ...]:
    """Returns the seeds that a vector of integers is."""
    if value.constant is not None:
        return tuple(int(x) % _BITS for x in value.constant)
    axis = lowering.axes(value)[0]
    if not axis:
        raise NoRule("a seed of one number")
    x = lowering.tensor(value)
    if x.dtype != "int32":
        x = cast(floormod(x, _BITS), "int32")
    return tuple(unstack(x, lowering.name(axis, "a seed")))
