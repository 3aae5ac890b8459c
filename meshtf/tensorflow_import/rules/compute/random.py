"""Random numbers: drawn by meshtf's generators, which give the same ones under every layout.

The key of a draw is the seed that TensorFlow's generator would get. Keras' seed generators keep
it in a variable, which each step replaces and checkpoints save: so the numbers are new in each
step, and go on after a restart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshtf.graph import Tensor, context
from meshtf.module import scope
from meshtf.ops.control.seeds import seed
from meshtf.ops.elementwise.arithmetic import floormod, logical_and, maximum
from meshtf.ops.elementwise.unary import log, sqrt
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.top_k import argmax
from meshtf.ops.random.random import (
    categorical,
    random_normal,
    random_uniform,
    truncated_normal,
)
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.shapes.stack import unstack
from meshtf.ops.sorting.sort import argsort
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.control.custom_gradients import without_gradient
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule

_FLOATS: dict[str, Callable[..., Tensor]] = {
    "RandomStandardNormal": random_normal,
    "RandomUniform": random_uniform,
    "StatelessRandomNormal": random_normal,
    "StatelessRandomNormalV2": random_normal,
    "StatelessRandomUniform": random_uniform,
    "StatelessRandomUniformV2": random_uniform,
    "StatelessTruncatedNormal": truncated_normal,
    "StatelessTruncatedNormalV2": truncated_normal,
    "TruncatedNormal": truncated_normal,
}
# Which operand is the smallest integer; the next one is the limit.
_INTEGERS = {
    "RandomUniformInt": 1,
    "StatelessRandomUniformInt": 2,
    "StatelessRandomUniformIntV2": 4,
}
# Which operand has the shape parameters.
_GAMMAS = {"RandomGamma": 1, "StatelessRandomGammaV2": 2, "StatelessRandomGammaV3": 4}
_TRIES = 16  # each fails in 5 % of cases at most
_BITS = 2**31


class _Draw(Rule):
    """A draw: other numbers than TensorFlow's, of the same distribution."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.of(node.outputs[0])

    def draw(
        self,
        lowering: Lowering,
        node: Node,
        function: Callable[..., Tensor],
        *args: Any,
    ) -> Tensor:
        """Calls a function that draws, under the seed or key that is an operand of stateless
        kinds; others have the run's own seed. Numbers do not depend on the layer, whose name
        Keras may choose.
        """
        with context(path=()):
            if not node.kind.startswith("Stateless"):
                with scope(lowering.unused_name("draw")):
                    return function(*args)
            key = node.inputs[2 if node.kind == "StatelessMultinomial" else 1]
            x = lowering.value(key)
            with seed(*(x if isinstance(x, tuple) else _seeds(lowering, key))):
                return function(*args)


@rule(*_FLOATS)
class Random(_Draw):
    """Floats of a standard distribution."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        function = functools.partial(_FLOATS[node.kind], dtype=output.dtype.name)
        return self.draw(
            lowering, node, function, lowering.mesh, lowering.shape(output)
        )


@rule(*_INTEGERS)
class RandomIntegers(_Draw):
    """Integers between two numbers."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        first, output = _INTEGERS[node.kind], node.outputs[0]
        low, high = (int(known(node, k)) for k in (first, first + 1))
        function = functools.partial(random_uniform, dtype=output.dtype.name)
        shape = lowering.shape(output)
        return self.draw(lowering, node, function, lowering.mesh, shape, low, high)


@rule(*_GAMMAS)
class Gamma(_Draw):
    """Numbers of gamma distributions.

    The method is that of G. Marsaglia and W. W. Tsang, A simple method for generating gamma
    variables, 2000: section 3, and section 6 for shape parameters below 1. All tries are drawn
    at once.
    """

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        alpha = node.inputs[_GAMMAS[node.kind]]
        analysis.broadcast([alpha], node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        value, output = node.inputs[_GAMMAS[node.kind]], node.outputs[0]
        alpha = without_gradient(
            lowering.aligned(value, lowering.last_axes(value, output)),
            f"{node.kind} at {node.path} has no gradient by its shape parameter alpha: stop "
            "it by tf.stop_gradient",
        )
        return self.draw(lowering, node, _gamma, lowering, output, alpha)


def _gamma(lowering: Lowering, output: Value, alpha: Any) -> Tensor:
    """Draws numbers of gamma distributions with shape parameters alpha."""
    mesh, shape, dtype = lowering.mesh, lowering.shape(output), output.dtype.name
    tries = lowering.unused_name("tries")
    tiny = float(np.finfo(output.dtype.as_numpy_dtype).tiny)
    alpha = broadcast(alpha, shape)
    is_small = alpha < 1.0
    d = where(is_small, alpha + 1.0, alpha) - 1.0 / 3.0
    with scope("normal"):
        x = random_normal(mesh, f"{shape}; {tries}:{_TRIES}", dtype=dtype)
    with scope("uniform"):
        u = random_uniform(mesh, x.shape, dtype=dtype)
    v = (1.0 + x / sqrt(9.0 * d)) ** 3
    bound = 0.5 * x * x + d * (1.0 - v + log(maximum(v, tiny)))
    accepted = logical_and(v > 0.0, log(maximum(u, tiny)) < bound)
    first = argmax(cast(accepted, "int32"), tries)
    y = d * gather(v, first, tries)
    with scope("power"):
        power = random_uniform(mesh, shape, dtype=dtype)
    return maximum(where(is_small, y * power ** (1.0 / alpha), y), tiny)


@rule("StatelessShuffle", "RandomShuffle")
class Shuffle(_Draw):
    """The entries of the first axis in another order."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        value = node.inputs[0]
        axis = lowering.axes(value)[0]

        def shuffled(x: Tensor, name: str) -> Tensor:
            size = f"{name}:{x.shape[name]}"
            keys = self.draw(lowering, node, random_uniform, lowering.mesh, size)
            moved = lowering.unused_name("shuffled")
            order = rename(argsort(keys, name), name, moved)
            return rename(gather(x, order, name), moved, name)

        return lowering.along(lowering.tensor(value), axis, shuffled)


@rule("Multinomial", "StatelessMultinomial")
class Categorical(_Draw):
    """Samples of classes, by their logits `[batch, classes]`."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        batch = analysis.of(node.inputs[0])[0]
        analysis.set(output, [batch, analysis.new(output.shape[1])])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        logits, output = node.inputs[0], node.outputs[0]
        axis = lowering.axes(logits)[1]
        classes = lowering.name(axis, "a sample of classes")
        shape = f"{lowering.shape(output)}; {lowering.shape_of(axis)}"
        x = broadcast(lowering.tensor(logits), shape)
        index = self.draw(lowering, node, categorical, x, classes)
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
