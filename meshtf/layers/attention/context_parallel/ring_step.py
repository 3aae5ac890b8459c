"""One step of ring attention: queries attend to the keys that have come to their chunk.

step = RingStep(settings, operands, index=3)
maxima = step.maxima()                          # [chunks, length]
sums, values = step.sums(shift=maxima)          # [chunks, length], [chunks, length, value]
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph import Context, Tensor, context
from meshtf.layers.attention.context_parallel.all_to_all import PairBiasOf
from meshtf.layers.attention.context_parallel.zigzag import ZigzagPairs
from meshtf.layers.mixed_precision import cast_like
from meshtf.names import Dimension, Shape, accumulation_dtype, nested
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.elementwise.arithmetic import add, outer
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.random.random_indices import IndexOf, random_indices
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum


@dataclasses.dataclass(frozen=True)
class RingSettings:
    """What all steps around a ring share.

    Attributes:
      chunks: the dimension of the chunks.
      length_dim: the name of the positions of queries, also of those in a chunk.
      kv_length_dim: the name of the positions of keys, also of those in a chunk.
      key_names: the names of the elements of a head.
      zigzag, bias_of, dropout: as in `ring_attention`.
      inputs: `query_inputs` and `kv_inputs` of `ring_attention`.
      query_index_of, key_index_of: the functions from indices of queries and of keys to those
        for which random ops draw.
      caller: the context of the call, whose iterations random ops are in.
    """

    chunks: Dimension
    length_dim: str
    kv_length_dim: str
    key_names: tuple[str, ...]
    zigzag: bool
    bias_of: PairBiasOf | None
    dropout: Callable[[Tensor], Tensor] | None
    inputs: Any
    query_index_of: IndexOf
    key_index_of: IndexOf
    caller: Context


class RingStep:
    """The scores of one step.

    Args:
      settings: the settings of the ring.
      operands: q, k, v, and the tensors among the inputs of `bias_of`, in chunks.
      index: the index of the step, which counts how many chunks the keys have moved on: an
        int, or int32 [].
    """

    def __init__(
        self, settings: RingSettings, operands: Sequence[Tensor], index: Tensor | int
    ) -> None:
        self.settings = settings
        self.index = index
        self.mesh = operands[0].mesh
        q, k, *_ = operands
        # The dimensions of positions in a chunk.
        self.chunk_shape = Shape(
            [q.shape.dim(settings.length_dim), k.shape.dim(settings.kv_length_dim)]
        )
        self.pairs: ZigzagPairs | None = None
        # In the first step, keys and queries are of one chunk: all pairs of halves but one
        # are needed.
        if settings.zigzag and not (isinstance(index, int) and index == 0):
            self.pairs = ZigzagPairs(
                settings.chunks,
                index,
                settings.length_dim,
                settings.kv_length_dim,
                self.mesh,
            )
            operands = [self.pairs.keys(self.pairs.queries(x)) for x in operands]
        q, k, self.values, *inputs = operands
        self.query_dims = q.shape.without(*settings.key_names)
        self.length_dims = (
            q.shape.dim(settings.length_dim),
            k.shape.dim(settings.kv_length_dim),
        )
        self.scores = self._scores(q, k, inputs)

    def maxima(self) -> Tensor:
        """Returns the maximum of each query's scores, [..., chunks, length, ...];
        -infinity for queries that no key of the step is for.
        """
        maxima = reduce_max(self.scores, self.settings.kv_length_dim)
        if self.pairs is None:
            return maxima
        return self.pairs.maxima(maxima, absent=-float("inf"))

    def sums(self, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two sums over the keys of the step: of exp(score - shift), and of
        exp(score - shift) * value with dropout.

        Args:
          shift: a number for each query, [..., chunks, length, ...].
        """
        if self.pairs is not None:
            shift = self.pairs.queries(shift)
        weights = exp(self.scores - shift)
        sums = reduce_sum(weights, self.settings.kv_length_dim)
        weights = self._drop(cast(weights, self.values.dtype))
        value_dims = self.values.shape.without(
            self.settings.kv_length_dim, *self.query_dims.names
        )
        values = einsum([weights, self.values], self.query_dims + value_dims)
        values = cast(values, sums.dtype)
        if self.pairs is None:
            return sums, values
        return self.pairs.sums(sums), self.pairs.sums(values)

    def _scores(self, q: Tensor, k: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Returns the scores with the bias, [..., chunks, length, kv_length, ...]; those of
        float16 and bfloat16 in float32.
        """
        settings = self.settings
        keys_dim = k.shape.only([settings.kv_length_dim])
        products = einsum([q, k], self.query_dims + keys_dim)
        scores = cast(products, accumulation_dtype(products.dtype))
        if settings.bias_of is None:
            return scores
        remaining = iter(inputs)
        query_inputs, kv_inputs = nested.map_structure(
            lambda x: next(remaining) if isinstance(x, Tensor) else x, settings.inputs
        )
        with self._random_numbers():
            bias = settings.bias_of(query_inputs, kv_inputs)
        if bias is None:
            return scores
        self._check_bias(bias)
        return scores + cast_like(bias, scores)

    def _check_bias(self, bias: Tensor) -> None:
        """Raises ShapeError for the bias of queries or keys without their chunks."""
        chunks = self.settings.chunks.name
        positions = {self.settings.length_dim, self.settings.kv_length_dim}
        if chunks in bias.shape or not positions & set(bias.shape.names):
            return
        raise ShapeError(
            explain_error(
                f'bias_of returned a bias without "{chunks}": it would be the same for all '
                "chunks of ring attention.",
                bias=repr(bias.shape),
                scores=repr(self.query_dims),
                source=bias.node.source,
                way_out=f'Its arguments have "{chunks}". Keep it: mtf.outer does, and an '
                "einsum that names it.",
            )
        )

    def _drop(self, weights: Tensor) -> Tensor:
        """Returns the attention weights with dropout."""
        if self.settings.dropout is None:
            return weights
        with self._random_numbers():
            return self.settings.dropout(weights)

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Within this context, random ops draw the numbers that they draw if all scores are
        computed at once.
        """
        functions: dict[Dimension, IndexOf] = {
            self.length_dims[0]: lambda _: self._query_indices(),
            self.length_dims[1]: lambda _: self._key_indices(),
        }
        with (
            context(iterations=self.settings.caller.iterations),
            random_indices(functions),
        ):
            yield

    def _query_indices(self) -> Tensor:
        """Returns the indices of queries in the sequence, int32 [chunks, length]."""
        settings = self.settings
        index = self._indices(
            settings.length_dim, index_range(self.mesh, settings.chunks)
        )
        index = settings.query_index_of(index)
        return index if self.pairs is None else self.pairs.queries(index)

    def _key_indices(self) -> Tensor:
        """Returns the indices of keys in the sequence, int32 [chunks, kv_length]."""
        settings = self.settings
        # After s steps, chunk i has the keys of chunk i - s.
        chunk = index_range(self.mesh, settings.chunks) - self.index
        chunk = where(chunk < 0, chunk + settings.chunks.size, chunk)
        index = settings.key_index_of(self._indices(settings.kv_length_dim, chunk))
        return index if self.pairs is None else self.pairs.keys(index)

    def _indices(self, name: str, chunk: Tensor) -> Tensor:
        """Returns the indices of the positions of chunks, [chunks, dim] for the indices
        [chunks] of the chunks.
        """
        dim = self.chunk_shape.dim(name)
        return outer(chunk * dim.size, index_range(self.mesh, dim), add)


def chunks_dim(
    q: Tensor, k: Tensor, chunk: Dimension, kv_length_dim: str, zigzag: bool
) -> Dimension:
    """Returns the dimension of the chunks.

    Args:
      q: the queries, [..., length, key].
      k: the keys, [..., kv_length_dim, key].
      chunk: the name of the positions of queries, with their count in a chunk.
      kv_length_dim: the name of the positions of keys.
      zigzag: whether chunks have two halves.

    Raises:
      ShapeError: positions cannot be split into chunks, or chunks into halves.
    """
    dim = q.shape.dim(chunk.name)
    if dim.size <= chunk.size:
        return Dimension(f"{chunk.name}_chunks", 1)
    count = dim.size // chunk.size
    sections = "two halves of each of " if zigzag else ""
    for x_dim in (dim, k.shape.dim(kv_length_dim)):
        divisor = 2 * count if zigzag else count
        if dim.size % chunk.size or x_dim.size % divisor:
            raise ShapeError(
                explain_error(
                    f"{x_dim!r} cannot be split into {sections}the chunks of ring "
                    f"attention: {dim!r} in chunks of {chunk.size}.",
                    way_out="Take a chunk that divides it, or mtf.pad the tensors.",
                )
            )
    return Dimension(f"{chunk.name}_chunks", count)


@custom_gradient
def once_differentiable(x: Tensor) -> tuple[Tensor, Any]:
    """Returns x [...]; its gradient raises PlanError, since the backward pass takes sums as
    constants that a gradient of the gradient would need.
    """

    def refuse(dy: Tensor) -> Tensor:
        raise PlanError(
            explain_error(
                "ring attention has no gradient of its gradient.",
                tensor=repr(x.shape),
                way_out="Take mtf.layers.blockwise_attention or dot_product_attention "
                "there.",
            )
        )

    return x, refuse
