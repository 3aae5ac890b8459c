"""The order of a sequence in which every chunk of causal attention has the same work.

    order = ZigzagOrder("length:8", chunks=2)
    order.apply(x)                  # positions 0 1 6 7 | 2 3 4 5: chunk 0, chunk 1
    order.undo(order.apply(x))      # x

With c chunks, the sequence is cut into 2 c halves of chunks, and chunk i has the halves i and
2 c - 1 - i. Take a query of chunk i and a key of another chunk j. If j < i, both halves of
the queries are after the first half of the keys, and before the second. If j > i, the second
half of the queries is after both halves of the keys, and the first half before both. So of
the four pairs of halves two are needed, whatever i and j are: `ZigzagPairs` selects them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Mesh
from meshtf.names import Dimension, ShapeLike
from meshtf.names.arguments import check_ints
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.random.random_indices import random_indices
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten
from meshtf.ops.shapes.stack import stack, unstack


class ZigzagOrder:
    """The zigzag order of the positions of a sequence.

    Args:
      dim: the positions, such as "length:32768".
      chunks: the count of chunks.

    Raises:
      ShapeError: the sequence cannot be cut into halves of so many chunks.
    """

    def __init__(self, dim: ShapeLike, chunks: int) -> None:
        check_ints(chunks=chunks)
        self.dim = single_dim(dim)
        if chunks < 1 or self.dim.size % (2 * chunks):
            raise ShapeError(
                explain_error(
                    f"{self.dim!r} cannot be cut into the halves of {chunks} chunks.",
                    way_out=f"Take a size that {2 * max(chunks, 1)} divides.",
                )
            )
        name = self.dim.name
        self._chunks = Dimension(f"{name}_chunks", chunks)
        self._which_half = Dimension(f"{name}_half", 2)
        self._half_chunks = Dimension(f"{name}_halves", 2 * chunks)
        self._in_half = Dimension(f"{name}_in_half", self.dim.size // (2 * chunks))

    def __repr__(self) -> str:
        return f"ZigzagOrder({self.dim!r}, chunks={self._chunks.size})"

    def apply(self, x: Tensor) -> Tensor:
        """Returns x [..., length, ...] with the positions in zigzag order.

        Raises:
          ShapeError: x lacks the dimension.
        """
        x = as_tensor("x", x)
        half_chunks = self._split(x, [self._half_chunks, self._in_half])
        chunk = index_range(x.mesh, self._chunks)
        sources = stack(
            [chunk, (self._half_chunks.size - 1) - chunk], self._which_half.name, axis=1
        )
        return self._merge(
            gather(half_chunks, sources, self._half_chunks.name),
            [self._chunks, self._which_half, self._in_half],
            x,
        )

    def undo(self, x: Tensor) -> Tensor:
        """Returns x [..., length, ...], which is in zigzag order, in the order of the
        positions.

        Raises:
          ShapeError: x lacks the dimension.
        """
        x = as_tensor("x", x)
        half_chunks = self._split(x, [self._half_chunks, self._in_half])
        chunk = index_range(x.mesh, self._chunks)
        # Where the halves are of the first half of the sequence, and of the second.
        sources = stack(
            [2 * chunk, (self._half_chunks.size - 1) - 2 * chunk], self._which_half.name
        )
        return self._merge(
            gather(half_chunks, sources, self._half_chunks.name),
            [self._which_half, self._chunks, self._in_half],
            x,
        )

    def positions(self, index: Tensor) -> Tensor:
        """Returns the position of the element at each index of the zigzag order, integers
        [...].

        Args:
          index: indices along the dimension, integers [...].
        """
        index = as_tensor("index", index)
        half_size = self._in_half.size
        chunk = index // (2 * half_size)
        in_chunk = index - chunk * (2 * half_size)
        in_second_half = (self._half_chunks.size - 2 - chunk) * half_size + in_chunk
        return where(in_chunk < half_size, chunk * half_size + in_chunk, in_second_half)

    @contextlib.contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Within this context random ops draw, for tensors in zigzag order, the numbers that
        they draw in the order of the positions.
        """
        with random_indices({self.dim: self.positions}):
            yield

    def _split(self, x: Tensor, dims: list[Dimension]) -> Tensor:
        """Returns x with the dimension of positions split into others."""
        require_dim_of_caller(x.shape, self.dim.name)
        return unflatten(x, self.dim.name, dims)

    def _merge(self, x: Tensor, dims: list[Dimension], like: Tensor) -> Tensor:
        """Returns x with the dimensions merged into that of positions, in the order of the
        dimensions of `like`.
        """
        names = [dim.name for dim in dims]
        order: list[str] = []
        for name in like.shape.names:
            order.extend(names if name == self.dim.name else [name])
        return flatten(transpose(x, order), names, self.dim.name)


class ZigzagPairs:
    """The two pairs of halves of chunks whose scores a step of causal ring attention needs:
    queries and keys, each stacked along a new dimension of size 2.

    Pair 0 is always the second half of the queries with the first half of the keys. Pair 1
    is the first half of both, where the keys are of an earlier chunk than the queries, and
    the second half of both elsewhere.

    Args:
      chunks: the dimension of the chunks.
      step: how many chunks the keys have moved on: int32 [], or an int from 1 on.
      length_dim: the name of the positions of queries in a chunk.
      kv_length_dim: the name of the positions of keys in a chunk.
      mesh: the mesh of the tensors.
    """

    def __init__(
        self,
        chunks: Dimension,
        step: Tensor | int,
        length_dim: str,
        kv_length_dim: str,
        mesh: Mesh | None,
    ) -> None:
        self.length_dim = length_dim
        self.kv_length_dim = kv_length_dim
        self.pair_dim = f"{length_dim}_pairs"
        # Chunk i has the keys of chunk i - step; before chunk 0 comes the last one.
        self.keys_are_earlier = index_range(mesh, chunks) >= step

    def queries(self, x: Tensor) -> Tensor:
        """Returns the queries of both pairs, [pairs, ..., length / 2, ...], of x [...,
        length, ...].
        """
        return self._stacked(x, self.length_dim, pair_0=1)

    def keys(self, x: Tensor) -> Tensor:
        """Returns the keys of both pairs, [pairs, ..., kv_length / 2, ...], of x [...,
        kv_length, ...].
        """
        return self._stacked(x, self.kv_length_dim, pair_0=0)

    def sums(self, x: Tensor) -> Tensor:
        """Returns the sums of both pairs for each query, [..., length, ...], of x [pairs,
        ..., length / 2, ...].
        """
        pair_0, pair_1 = unstack(x, self.pair_dim)
        half_0 = where(self.keys_are_earlier, pair_1, 0.0)
        half_1 = pair_0 + where(self.keys_are_earlier, 0.0, pair_1)
        return self._joined(half_0, half_1)

    def maxima(self, x: Tensor, absent: float) -> Tensor:
        """Returns the maximum of both pairs for each query, [..., length, ...], of x
        [pairs, ..., length / 2, ...]; `absent` for queries that are in no pair.
        """
        pair_0, pair_1 = unstack(x, self.pair_dim)
        half_0 = where(self.keys_are_earlier, pair_1, absent)
        half_1 = maximum(pair_0, where(self.keys_are_earlier, absent, pair_1))
        return self._joined(half_0, half_1)

    def _stacked(self, x: Tensor, dim: str, pair_0: int) -> Tensor:
        """Returns the halves of x along a dimension that both pairs have, [pairs, ..., dim /
        2, ...]; x itself if it lacks the dimension.

        Args:
          x: a tensor [..., dim, ...].
          dim: the name of the dimension.
          pair_0: the index of the half that pair 0 has.
        """
        if dim not in x.shape:
            return x
        half_dim = f"{dim}_half"
        split = unflatten(x, dim, [(half_dim, 2), (dim, x.shape[dim] // 2)])
        both = unstack(split, half_dim)
        return stack([both[pair_0], where(self.keys_are_earlier, *both)], self.pair_dim)

    def _joined(self, half_0: Tensor, half_1: Tensor) -> Tensor:
        """Returns both halves of the queries as one tensor [..., length, ...]."""
        half_dim = f"{self.length_dim}_half"
        axis = half_0.shape.names.index(self.length_dim)
        half_chunks = stack([half_0, half_1], half_dim, axis=axis)
        return flatten(half_chunks, [half_dim, self.length_dim], self.length_dim)


@contextlib.contextmanager
def zigzag_numbers(dims: Sequence[Dimension], chunks: int) -> Iterator[None]:
    """Within this context random ops draw, along dimensions in zigzag order, the numbers of the
    positions: see `ZigzagOrder.random_numbers`.

    Args:
      dims: the dimensions.
      chunks: the count of chunks; 1: the dimensions are in their own order.
    """
    with contextlib.ExitStack() as stack:
        for dim in dims if chunks > 1 else ():
            stack.enter_context(ZigzagOrder(dim, chunks).random_numbers())
        yield
