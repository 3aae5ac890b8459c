"""Embeddings: a learned vector for each id, and sinusoids for each position.

    embed = Embedding(mesh, "vocab:256", "d_model:512")
    x = embed(tokens)                 # int32 [batch, length] -> [batch, length, d_model]
    logits = embed.attend(x)          # -> [batch, length, vocab], with the same table

    positions = mtf.range(mesh, "length:128")
    x = x + Embedding(mesh, "position:128", "d_model:512", name="positions")(positions)
    x = x + sinusoids(positions, "d_model:512")             # or fixed instead of learned

With `vocab` sharded, each device looks up the ids of its shard, and the result is the sum
over devices.
"""

from __future__ import annotations

import math

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.initializers import Initializer, normal
from meshtf.layers.mixed_precision import cast_like
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Dimension, Shape, ShapeLike, dtype_name
from meshtf.names.arguments import check_floats
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.elementwise.arithmetic import outer
from meshtf.ops.elementwise.unary import cos, exp, sin
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.shapes.slice import concat
from meshtf.runtime.variable import Variable


class Embedding(Module):
    """Looks up ids in a learned table.

    Args:
      mesh: the mesh of the table.
      vocab_dim: the dimension of ids, such as "vocab:256".
      output_dim: the dimension of a vector, such as "d_model:512".
      initializer: the initializer of the table; default: normal with variance 1.
      expert_dims: dimensions with a separate table for each entry, such as "ensemble:4".
      dtype: the data type of the output, such as "bfloat16"; default: that of the table.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "embedding"

    def __init__(
        self,
        mesh: Mesh,
        vocab_dim: ShapeLike,
        output_dim: ShapeLike,
        initializer: Initializer | None = None,
        expert_dims: ShapeLike = "",
        dtype: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.vocab_dim = Shape(vocab_dim)
        self.output_dim = Shape(output_dim)
        self.dtype = dtype
        if dtype is not None:
            dtype_name(dtype)  # a check: raises if there is no such data type
        with self.scope():
            self.table = Variable(
                mesh,
                Shape(expert_dims) + self.vocab_dim + self.output_dim,
                normal() if initializer is None else initializer,
                name="table",
                stacked_dims=Shape(expert_dims),
            )

    def __call__(self, ids: Tensor) -> Tensor:
        """Returns the vectors [..., expert_dims, output_dim] of integer ids [...], which
        may have `expert_dims`.
        """
        check_tensors(ids=ids)
        vectors = gather(self.table, ids, dim=self.vocab_dim.names[0])
        # The output is cast, not the table, so that the gradients of an id that occurs
        # often are summed in float32.
        return cast(vectors, self.dtype or vectors.dtype)

    def attend(self, x: Tensor) -> Tensor:
        """Returns logits [..., expert_dims, vocab_dim]: the matmul of x [..., output_dim]
        with the table.
        """
        check_tensors(x=x)
        require_dim_of_caller(x.shape, *self.output_dim.names)
        all_dims = x.shape + self.table.shape.without(*x.shape.names)
        logits_dims = all_dims.without(*self.output_dim.names)
        return einsum([x, cast_like(self.table, x)], logits_dims)


def sinusoids(
    positions: Tensor,
    dim: ShapeLike,
    shortest: float = 1.0,
    longest: float = 10000.0,
    dtype: str = "float32",
) -> Tensor:
    """Returns [..., dim]: sines, then cosines, of positions [...] (Vaswani et al., 2017,
    section 3.5).

    Args:
      positions: the positions: integers [...], such as mtf.range(mesh, "length:128").
      dim: the dimension of the sines and cosines, of even size, such as "d_model:512".
      shortest: the shortest period is 2 * pi * shortest positions.
      longest: the longest period is 2 * pi * longest positions.
      dtype: the data type of the result, such as "float64" for embeddings in float64.

    Raises:
      ShapeError: `dim` is odd, or too small for two periods.
    """
    positions = as_tensor("positions", positions)
    check_floats(shortest=shortest, longest=longest)
    name = single_dim(dim).name
    size = single_dim(dim).size
    if size % 2 or size < 4:
        raise ShapeError(
            f"sinusoids come in pairs, two at least: {name}:{size} must be even."
        )
    # Angular frequencies fall geometrically from 1 / shortest to 1 / longest.
    index = index_range(positions.mesh, Dimension(name, size // 2), dtype)
    log_ratio = -math.log(longest / shortest) / (size // 2 - 1)
    frequencies = exp(index * log_ratio) * (1 / shortest)
    angles = outer(cast(positions, dtype), frequencies)
    angles = transpose(angles, (*positions.shape.names, name))
    return concat([sin(angles), cos(angles)], name)
