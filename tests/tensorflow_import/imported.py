"""Runs a TensorFlow function as a named program, and as TensorFlow does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.tensorflow_import.graph.program import Program
from meshtf.tensorflow_import.graph.read import read_function
from meshtf.tensorflow_import.named_program import NamedProgram

AXES = "data:4; model:2"


class Imported(NamedTuple):
    """A TensorFlow function and its program.

    Attributes:
        concrete: The function as TensorFlow traced it.
        program: The same, read.
        named: The same, with names.
    """

    concrete: Any
    program: Program
    named: NamedProgram

    def layout(self, draw: random.Random) -> str:
        """Returns a layout of one or two dimensions of the arguments, drawn."""
        inputs = self.program.inputs
        names = sorted({name for v in inputs for name in self.named.names_of(v)})
        chosen = draw.sample(names, min(2, len(names)))
        draw.shuffle(axes := ["data", "model"])
        return "; ".join(f"{name}:{axis}" for name, axis in zip(chosen, axes))

    def run(
        self, mesh: mtf.Mesh, arrays: Sequence[np.ndarray], gradients: bool
    ) -> list[np.ndarray]:
        """Returns the outputs on a mesh, then the gradients by float arguments of the sum of
        the squares of float outputs.
        """
        named, inputs = self.named, self.program.inputs
        xs = [
            mtf.asarray(mesh, x.reshape(named.sizes_of(v)), named.shape_of(v))
            for x, v in zip(arrays, inputs)
        ]

        def step(*tensors: mtf.Tensor) -> tuple[mtf.Tensor, ...]:
            with mtf.seed(1):
                ys = named.run(mesh, {}, tensors)
            if not gradients:
                return tuple(ys)
            squares = [mtf.reduce_sum(mtf.square(y)) for y in ys if _is_float(y.dtype)]
            sources = [x for x in tensors if _is_float(x.dtype)]
            dxs = mtf.gradients([mtf.add_n(squares)], sources)
            zeros = map(mtf.zeros_like, sources)
            return (*ys, *(z if dx is None else dx for dx, z in zip(dxs, zeros)))

        results = mtf.function(step, mesh=mesh)(*xs)
        values = [v for v in self.program.outputs if v.is_tensor]
        if gradients:
            values += [v for v in inputs if v.dtype.is_floating]
        return [y.numpy().reshape(v.shape) for y, v in zip(results, values)]

    def run_in_tensorflow(
        self, arrays: Sequence[np.ndarray], gradients: bool
    ) -> list[np.ndarray]:
        """Returns what `run` returns, by TensorFlow."""
        xs = [tf.constant(x) for x in arrays]
        if not gradients:
            return [y.numpy() for y in tf.nest.flatten(self.concrete(*xs))]
        sources = [x for x in xs if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            ys = tf.nest.flatten(self.concrete(*xs))
            squares = [tf.reduce_sum(y**2) for y in ys if y.dtype.is_floating]
        zero = tf.UnconnectedGradients.ZERO
        dxs = tape.gradient(squares, sources, unconnected_gradients=zero)
        return [y.numpy() for y in [*ys, *map(tf.convert_to_tensor, dxs)]]


def imported(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Imported:
    """Returns a function of arrays like these as a program."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arrays]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    program = read_function(concrete, [])
    return Imported(concrete, program, NamedProgram(program))


def _is_float(dtype: str) -> bool:
    return dtype in ("float32", "float64")


def check_equal(
    function: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    draw: random.Random,
    gradients: bool = True,
) -> Imported:
    """Compares a function with TensorFlow's, on eight positions and under a drawn layout."""
    result = imported(function, arrays)
    expected = result.run_in_tensorflow(arrays, gradients)
    layout = result.layout(draw)
    computed = result.run(mtf.Mesh(AXES, layout), arrays, gradients)
    assert len(computed) == len(expected)
    for y, x in zip(computed, expected):
        scale = np.abs(x).max(initial=1.0)
        np.testing.assert_allclose(y, x, atol=2e-5 * scale, rtol=2e-5, err_msg=layout)
    return result
