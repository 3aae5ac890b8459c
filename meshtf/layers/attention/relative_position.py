"""Relative positions: a bias of attention scores by the distance of query and key.

    bias = RelativeBias(mesh, "heads:8")(positions, kv_positions)  # [length, kv_length, heads]
    bias = distance_slopes(positions, kv_positions, "heads:8")    # ALiBi, without variables
    y = attention(x, bias=bias + causal_bias(...))

Positions are integers, [length], such as mtf.range(mesh, "length:128"), or [batch, length]
if they differ between examples. Positions of keys have the name `kv_length`.
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
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.runtime.variable import Variable

_BUCKETS = "buckets"  # the dimension of the table that has an entry for each bucket


class RelativeBias(Module):
    """A learned bias for each head and each bucket of distances (Raffel et al., 2019,
    section 2.1, arXiv 1910.10683).

    Half of the buckets are for one distance each. The other buckets cover ranges of
    distances that grow logarithmically up to `max_distance`, and all larger distances
    share the last one. With `both_ways`, half of all buckets are for keys after the query.

    Args:
      mesh: the mesh of the table.
      heads_dim: the dimension of the heads, such as "heads:8".
      buckets: the count of buckets.
      max_distance: all distances from `max_distance` on share a bucket.
      both_ways: whether keys may be after the query, as in an encoder.
      initializer: the initializer of the table; default: normal with variance 1 / buckets.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Raises:
      ShapeError: there are too few buckets, or too many for `max_distance`.
    """

    default_name = "relative_bias"

    def __init__(
        self,
        mesh: Mesh,
        heads_dim: ShapeLike,
        buckets: int = 32,
        max_distance: int = 128,
        both_ways: bool = False,
        initializer: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        check_ints(buckets=buckets, max_distance=max_distance)
        check_bools(both_ways=both_ways)
        super().__init__(name)
        # The count of buckets for keys on one side of the query.
        self.buckets_per_side = buckets
        if both_ways:
            self.buckets_per_side = buckets // 2
        if self.buckets_per_side < 2 or max_distance <= self.buckets_per_side // 2:
            raise ShapeError(
                f"{buckets} buckets are too few, or too many for distances up to "
                f"{max_distance}."
            )
        self.max_distance = max_distance
        self.both_ways = both_ways
        with self.scope():
            self.table = Variable(
                mesh,
                Shape([(_BUCKETS, buckets)]) + heads_dim,
                normal(buckets**-0.5) if initializer is None else initializer,
                name="table",
            )

    def __call__(self, positions: Tensor, kv_positions: Tensor) -> Tensor:
        """Returns the bias [..., length, kv_length, heads] of positions of queries
        [..., length] and keys [..., kv_length].
        """
        return self.from_table(self.table.tensor(), positions, kv_positions)

    def from_table(
        self, table: Tensor, positions: Tensor, kv_positions: Tensor
    ) -> Tensor:
        """Returns the bias of `__call__` for a table [buckets, heads] in place of the
        layer's: for functions that need every tensor with a gradient as an argument.
        """
        check_tensors(table=table, positions=positions, kv_positions=kv_positions)
        behind = outer(positions, kv_positions, subtract)
        return gather(table, self.buckets(behind), dim=_BUCKETS)

    def buckets(self, behind: Tensor) -> Tensor:
        """Returns the bucket of each distance, int32 with the shape of `behind`.

        Args:
          behind: the position of the query minus the position of the key, integers [...].
        """
        check_tensors(behind=behind)
        if self.both_ways:
            distance = abs(behind)
        else:
            distance = maximum(behind, 0)
        # The count of buckets of one distance each; the others are logarithmic.
        num_exact = self.buckets_per_side // 2
        log_ratio = log(cast(maximum(distance, 1), "float32") * (1.0 / num_exact))
        max_log_ratio = math.log(self.max_distance / num_exact)
        num_logarithmic = float(self.buckets_per_side - num_exact)
        far_index = cast(log_ratio / max_log_ratio * num_logarithmic, "int32")
        far_bucket = minimum(num_exact + far_index, self.buckets_per_side - 1)
        bucket = where(distance < num_exact, distance, far_bucket)
        if self.both_ways:
            return where(behind < 0, bucket + self.buckets_per_side, bucket)
        return bucket


def distance_slopes(
    positions: Tensor,
    kv_positions: Tensor,
    heads_dim: ShapeLike,
    dtype: str = "float32",
) -> Tensor:
    """Returns -distance * slope for the slope of each head (ALiBi: Press et al., 2021,
    section 3).

    For n heads, n a power of two, the slopes are 2**(-8 i / n), i = 1..n. For another
    count of heads they are the slopes for the next lower power of two, followed by every
    second slope for the next higher one.

    Args:
      positions: the positions of queries: integers, such as [length].
      kv_positions: the positions of keys: integers, such as [kv_length].
      heads_dim: the dimension of the heads, such as "heads:8".
      dtype: the data type of the bias.

    Returns:
      [length, kv_length, heads].
    """
    check_tensors(positions=positions, kv_positions=kv_positions)
    heads = Shape(heads_dim)
    lower_power = 2 ** int(math.log2(heads.size))
    head_index = _merged_index(positions, heads, dtype)
    # The base-2 logarithm of each slope: -8 i / n, with i = head_index + 1 and n the lower
    # power of two; the remaining heads have i = 1, 3, 5... and n the higher power.
    exponent = where(
        head_index < lower_power,
        (head_index + 1.0) * (-8 / lower_power),
        (head_index * 2.0 + (1.0 - 2 * lower_power)) * (-4 / lower_power),
    )
    distance = cast(abs(outer(positions, kv_positions, subtract)), dtype)
    return outer(-distance, exp(exponent * math.log(2.0)))


def _merged_index(positions: Tensor, dims: Shape, dtype: str) -> Tensor:
    """Returns the index [*dims] of each entry as if `dims` were merged into one
    dimension; the tensor is on the mesh of `positions`.
    """
    first_dim, *inner_dims = dims
    index = index_range(positions.mesh, first_dim, dtype)
    for dim in inner_dims:
        inner_index = index_range(positions.mesh, dim, dtype)
        index = outer(index * float(dim.size), inner_index, add)
    return index
