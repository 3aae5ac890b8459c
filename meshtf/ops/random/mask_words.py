"""The random words of a dropout mask, for ops that make it themselves, part by part.

    words = mask_words(mesh, shape)                        # {dim: (a [dim], b [dim])}; or None
    mask = mask_of({"length": (a[:2], b[:2]), ...}, 0.1)   # within an op: bool [2, ...]

The mask of the entire shape is that of `mtf.dropout`: see `counter_bits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from meshtf.graph import (
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply_all,
)
from meshtf.mesh import Mesh
from meshtf.names import Shape
from meshtf.ops.common.batch_dimensions import Strided
from meshtf.ops.control.microbatch import microbatch_inputs
from meshtf.ops.control.seeds import seeds_of
from meshtf.ops.random.counter_bits import map_elements
from meshtf.ops.random.distributions import draw_function
from meshtf.ops.random.random_indices import drawn_indices
from meshtf.ops.random.random_ops import words_of

# By dimension: two tensors [dim].
Words: TypeAlias = dict[str, tuple[Tensor, Tensor]]


class MaskWords(Op):
    """The two words of each index of each dimension of a mask, int32 [dim] each: first those of the
    first dimension. The inputs are those of `Random`.

    Attributes:
      shape: the shape of the mask.
      strided: the dimensions that count examples of microbatches.
    """

    shape: Shape
    strided: tuple[Strided, ...] = ()

    conformance_samples = (
        Sample((Shape("b:4;l:6"),), ("int",), gradient=False),
        Sample((Shape("b:3;l:4;m:4"),), ("int", "int"), gradient=False),
        Sample(
            (Shape("b:4;l:6"), (Strided("b", 2, 1),)), ("int", "int"), gradient=False
        ),
    )

    def output_specs(self, *seeds: Spec) -> Specs:
        return tuple(Spec(Shape(dim), "int32") for dim in self.shape for _ in range(2))

    def local(self, context: LocalContext, *seeds: Any) -> LocalTensors:
        all_a, all_b = words_of(self.shape, self.strided, (), context, seeds)
        words = []
        for a, b in zip(all_a, all_b):
            words += [tf.bitcast(a, tf.int32), tf.bitcast(b, tf.int32)]
        return tuple(words)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> list[None]:
        return [None] * len(seeds)


def mask_words(mesh: Mesh | None, shape: Shape, name: str = "dropout") -> Words | None:
    """Returns the words of the mask that `mtf.dropout` draws for this shape, by dimension; None:
    indices of a dimension stand for others, so that it has no words of its own.

    Args:
      mesh: the mesh.
      shape: the shape of the mask.
      name: as in `mtf.dropout`.

    Raises:
      PlanError: there is no seed, or two ops of one name have the same seed.
    """
    if drawn_indices(mesh, shape):
        return None
    microbatch = microbatch_inputs(mesh, shape)
    words = apply_all(
        MaskWords(shape, microbatch.strided),
        *seeds_of(mesh, None, name),
        *microbatch.seeds,
        *microbatch.indices,
        mesh=mesh,
    )
    return dict(zip(shape.names, zip(words[::2], words[1::2])))


def mask_of(words: Mapping[str, tuple[Any, Any]], rate: float) -> Any:
    """Returns a mask, bool [*dims], false with the probability `rate`: a TensorFlow tensor.

    Args:
      words: the words of the indices of each dimension, int32 TensorFlow tensors.
      rate: the probability.
    """
    a, b = zip(*words.values())
    pair = (
        [tf.bitcast(x, tf.uint32) for x in a],
        [tf.bitcast(x, tf.uint32) for x in b],
    )
    sizes = [int(x.shape[0]) for x in a]
    return map_elements(draw_function("mask", "bool", rate, 0.0), pair, sizes)
