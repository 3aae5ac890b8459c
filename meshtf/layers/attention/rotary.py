"""Rotary position embedding (RoPE): each pair of elements of a head is rotated by an angle
that is proportional to the position (Su et al., 2021, arXiv 2104.09864).

    embedding = rope(mtf.range(mesh, "length:128"), "key:64")
    q = apply_rope(q, "key", embedding)
    k = apply_rope(k, "key", embedding)

Then q · k depends only on the difference of the two positions. Element i is paired with
element i + key / 2. All layers can share the embedding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshtf.errors import ParseError, ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.layers.mixed_precision import cast_like
from meshtf.names import Dimension, ShapeLike
from meshtf.names.arguments import check_floats, check_record
from meshtf.ops.common.checks import single_dim, tensor_along
from meshtf.ops.elementwise.arithmetic import outer
from meshtf.ops.elementwise.unary import cos, exp, sin
from meshtf.ops.elementwise.where_cast_clip import cast, clip
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.shapes.slice import concat
from meshtf.ops.windows.shift import roll


class RotaryEmbedding(NamedTuple):
    """Cosines and signed sines of the angles of each position.

    Attributes:
      cos: the cosines, [..., length, key].
      sin: the sines, [..., length, key], negated for the first element of each pair.
    """

    cos: Tensor
    sin: Tensor


class RotaryScaling(NamedTuple):
    """How frequencies of rotary positions are lowered for texts that are longer than those a
    model was trained on, as in Llama 3.1 (Grattafiori et al., 2024, arXiv 2407.21783).

    The count of periods of a pair of elements within `length` positions tells its new
    frequency: from `high_frequency` periods on it is the old one, up to `low_frequency`
    periods it is divided by `factor`, and between them it changes linearly.

    Attributes:
      factor: what low frequencies are divided by.
      low_frequency: the count of periods of the fastest pairs that are slowed down by `factor`.
      high_frequency: the count of periods of the slowest pairs that are not slowed down.
      length: the count of positions that the model was trained on at first.
    """

    factor: float
    low_frequency: float
    high_frequency: float
    length: float


def rope(
    positions: Tensor,
    key_dim: ShapeLike,
    theta: float = 10000.0,
    dtype: str = "float32",
    scaling: RotaryScaling | None = None,
) -> RotaryEmbedding:
    """Returns the cosines and sines [..., key] of the rotations at positions [...]. Both
    elements of pair i are rotated by the angle position * theta**(-2 i / key).

    Args:
      positions: the positions: integers [...], such as mtf.range(mesh, "length:128").
      key_dim: the dimension of the elements of a head, such as "key:64".
      theta: the base of the frequencies; the slowest pair has a period of about
        2 * pi * theta positions.
      dtype: the data type of the embedding, such as "float64" for heads in float64.
      scaling: how frequencies are lowered for longer texts; None: they are not.

    Raises:
      ParseError: the numbers of `scaling` are no scaling.
      ShapeError: the size of a head is odd.
    """
    positions = as_tensor("positions", positions)
    check_floats(theta=theta)
    name = single_dim(key_dim).name
    size = single_dim(key_dim).size
    if size % 2:
        raise ShapeError(
            f"rotary positions rotate pairs: {name}:{size} must have an even size."
        )
    pair_index = index_range(positions.mesh, Dimension(name, size // 2), dtype)
    frequencies = exp(pair_index * (-2.0 * math.log(theta) / size))
    if scaling is not None:
        check_record(RotaryScaling, scaling=scaling)
        frequencies = _scaled(frequencies, scaling)
    angles = outer(cast(positions, dtype), frequencies)
    angles = transpose(angles, (*positions.shape.names, name))
    cosines = cos(angles)
    sines = sin(angles)
    return RotaryEmbedding(
        cos=concat([cosines, cosines], name), sin=concat([-sines, sines], name)
    )


def apply_rope(x: Tensor, key_dim: str, embedding: RotaryEmbedding) -> Tensor:
    """Returns x [..., length, key] with each pair of elements along `key_dim` rotated by
    its angle.

    Args:
      x: queries or keys, [..., length, key].
      key_dim: the name of the dimension of the elements of a head.
      embedding: the angles of each position, from `rope`.
    """
    x, key_dim = tensor_along(x, key_dim, dim_name="key_dim")
    check_record(RotaryEmbedding, embedding=embedding)
    # The rotation of (a, b) is (a cos - b sin, b cos + a sin): the other element of each
    # pair is multiplied by the signed sine.
    other_elements = roll(x, key_dim, x.shape[key_dim] // 2)
    return x * cast_like(embedding.cos, x) + other_elements * cast_like(
        embedding.sin, x
    )


def _scaled(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Returns the new frequencies [key] of old ones, in radians a position.

    Raises:
      ParseError: the numbers are no scaling.
    """
    check_floats(**scaling._asdict())
    is_ordered = 0 <= scaling.low_frequency < scaling.high_frequency
    if scaling.factor <= 0 or scaling.length <= 0 or not is_ordered:
        raise ParseError(
            f"{scaling} scales no rotary positions.\n  factor and length are more than 0, and "
            "high_frequency is more than low_frequency; those of Llama 3.1 are "
            "RotaryScaling(8.0, 1.0, 4.0, 8192)."
        )
    periods = frequencies * (scaling.length / (2.0 * math.pi))
    between = scaling.high_frequency - scaling.low_frequency
    share = clip((periods - scaling.low_frequency) * (1.0 / between), 0.0, 1.0)
    return frequencies * (share + (1.0 - share) * (1.0 / scaling.factor))
