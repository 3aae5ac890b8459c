"""Positions told to attention as a bias of its scores, by how far apart two of them
are.

    bias = RelativeBias(mesh, "heads:8")(positions, memory)      # [length memory_length heads]
    bias = distance_slopes(positions, memory, "heads:8")         # ALiBi, nothing is learned
    y = attention(x, bias=bias + causal_bias(...))

Positions are integers: mtf.range(mesh, "length:128"), or those of each row, [batch
length]; those that are looked at have a name of their own, `memory_length`.
"""

from __future__ import annotations

import math

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.initializers import Initializer, normal
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_ints
from meshtf.ops.elementwise.arithmetic import add, maximum, minimum, outer, subtract
from meshtf.ops.elementwise.unary import abs, exp, log
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.gather import range as range_
from meshtf.runtime.variable import Variable

_BUCKETS = "buckets"


class RelativeBias(Module):
    """A learned number for each head and each bucket of distances (Raffel et al., 2019,
    section 2.1).

    Half of the buckets are single distances; the others grow with the logarithm up to
    `max_distance`, beyond which all distances share one. Where memory may be ahead, it
    has half of all buckets.

    Args:
      mesh: where the table lies.
      heads_dim: such as "heads:8".
      buckets: how many there are.
      max_distance: from here on distances share a bucket.
      both_ways: whether memory may be ahead, as in an encoder.
      initializer: default: normal with variance 1 / buckets.
      name: the last part of the path of its variable.

    Raises:
      ShapeError: there are too few buckets.
    """

    def __init__(
        self,
        mesh: Mesh,
        heads_dim: ShapeLike,
        buckets: int = 32,
        max_distance: int = 128,
        both_ways: bool = False,
        initializer: Initializer | None = None,
        name: str = "relative_bias",
    ) -> None:
        check_ints(buckets=buckets, max_distance=max_distance)
        check_bools(both_ways=both_ways)
        super().__init__(name)
        self.each_way = buckets // 2 if both_ways else buckets
        if self.each_way < 2 or max_distance <= self.each_way // 2:
            raise ShapeError(
                f"{buckets} buckets are too few, or too many for distances up to "
                f"{max_distance}."
            )
        self.max_distance, self.both_ways = max_distance, both_ways
        with self.scope():
            self.table = Variable(
                mesh,
                Shape([(_BUCKETS, buckets)]) + heads_dim,
                normal(buckets**-0.5) if initializer is None else initializer,
                name="table",
            )

    def __call__(self, positions: Tensor, memory_positions: Tensor) -> Tensor:
        """Returns [..., length, memory_length, heads] for positions of these names."""
        check_tensors(positions=positions, memory_positions=memory_positions)
        return gather(
            self.table,
            self.buckets(outer(positions, memory_positions, subtract)),
            _BUCKETS,
        )

    def buckets(self, behind: Tensor) -> Tensor:
        """Returns the bucket of memory that is so many positions behind, or ahead if
        negative.
        """
        check_tensors(behind=behind)
        distance = abs(behind) if self.both_ways else maximum(behind, 0)
        single = self.each_way // 2
        grown = log(cast(maximum(distance, 1), "float32") * (1.0 / single))
        grown = (
            grown / math.log(self.max_distance / single) * float(self.each_way - single)
        )
        far = minimum(cast(grown, "int32") + single, self.each_way - 1)
        found = where(distance < single, distance, far)
        return (
            where(behind < 0, found + self.each_way, found) if self.both_ways else found
        )


def distance_slopes(
    positions: Tensor,
    memory_positions: Tensor,
    heads_dim: ShapeLike,
    dtype: str = "float32",
) -> Tensor:
    """Returns minus the distance, times a slope of each head (ALiBi: Press et al.,
    2021, section 3).

    Slopes are 2**(-8 i / n) for i = 1..n, where the number of heads n is a power of
    two; else those of the power below, and as many as are missing from those of the
    power above, every other one.

    Args:
      positions: integers, such as [length].
      memory_positions: integers, such as [memory_length].
      heads_dim: such as "heads:8".
      dtype: of the bias.

    Returns:
      [length memory_length heads].
    """
    check_tensors(positions=positions, memory_positions=memory_positions)
    heads = Shape(heads_dim)
    below = 2 ** int(math.log2(heads.size))
    first, *others = heads
    number = range_(positions.mesh, first, dtype)
    for dim in others:
        number = outer(
            number * float(dim.size), range_(positions.mesh, dim, dtype), add
        )
    power = where(
        number < below,
        (number + 1.0) * (-8 / below),
        (number * 2.0 + (1.0 - 2 * below)) * (-4 / below),
    )
    distance = cast(abs(outer(positions, memory_positions, subtract)), dtype)
    return outer(-distance, exp(power * math.log(2.0)))
