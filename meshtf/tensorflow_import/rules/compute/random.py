"""Random numbers: drawn by meshtf's generators, which give the same ones under every layout.

The key of a draw is the seed that TensorFlow's generator would get. Keras' seed generators keep
it in a variable, which each step replaces and checkpoints save: so the numbers are new in each
step, and go on after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.module import scope
from meshtf.ops.control.custom_gradient import custom_gradient
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
# The same for gamma distributions, with the operand of their shape parameters.
_GAMMAS: dict[str, tuple[int | None, int]] = {
    "RandomGamma": (None, 1),
    "StatelessRandomGammaV2": (1, 2),
    "StatelessRandomGammaV3": (1, 4),
}
_TRIES = 16  # each fails in 5 % of cases at most
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


@rule(*_GAMMAS)
class Gamma(_Draw):
    """Numbers of gamma distributions.

    The method is that of G. Marsaglia and W. W. Tsang, A simple method for generating gamma
    variables, 2000: section 3, and section 6 for shape parameters below 1. All tries are drawn
    at once.
    """

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        alpha = node.inputs[_GAMMAS[node.kind][1]]
        analysis.broadcast([alpha], node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        seed_index, index = _GAMMAS[node.kind]
        key = None if seed_index is None else node.inputs[seed_index]
        output = node.outputs[0]
        axes = lowering.axes(output)
        value = node.inputs[index]
        rank = len(value.shape)
        alpha = lowering.aligned(value, axes[len(axes) - rank :])
        return self.draw(
            lowering, key, lambda: _gamma(lowering, output, _constant(alpha, node))
        )


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


def _constant(alpha: Tensor, node: Node) -> Any:
    """Returns shape parameters, by which there is no gradient: it is refused."""

    @custom_gradient
    def identity(x: Tensor) -> tuple[Tensor, Any]:
        def gradient(_: Tensor) -> Any:
            raise ArgumentError(
                f"{node.kind} at {node.path} has no gradient by its shape parameter alpha: "
                "stop it by tf.stop_gradient"
            )

        return 1.0 * x, gradient

    return identity(alpha)


@rule("StatelessShuffle", "RandomShuffle")
class Shuffle(_Draw):
    """The entries of the first axis in another order."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        analysis.set(node.outputs[0], axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        value = node.inputs[0]
        key = node.inputs[1] if node.kind == "StatelessShuffle" else None
        axis = lowering.axes(value)[0]

        def shuffled(x: Tensor, name: str) -> Tensor:
            size = f"{name}:{x.shape[name]}"
            numbers = self.draw(
                lowering, key, lambda: random_uniform(lowering.mesh, size)
            )
            places = lowering.unused_name("places")
            order = rename(argsort(numbers, name), name, places)
            return rename(gather(x, order, name), places, name)

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
