"""What attention layers share: the products of their heads, and one step after the
other.

    cache = attention.empty_cache(x, positions=128)             # x[batch d_model], one position
    y, cache = attention.step(x, cache, position)               # position 0, 1, 2...

    read = attention.remember(xs)                               # many positions, [batch length ...]
    cache = attention.filled(cache, read, last, column)         # as their steps would leave it

A cache is two named tensors, so a layout cuts it like any other: along batch, heads or
positions.
"""

from __future__ import annotations

from typing import NamedTuple

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.masks import mask_bias
from meshtf.layers.attention.rotary import Angles, rotate
from meshtf.layers.dense import Dense
from meshtf.layers.dropout import Dropout
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Names, Shape, ShapeLike, names_of
from meshtf.names.arguments import as_dim, check_floats, check_ints, check_record
from meshtf.ops.elementwise.arithmetic import add, less_equal, maximum, outer, subtract
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather, take_along
from meshtf.ops.indexing.gather import range as range_
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.variables.fill import zeros


class Cache(NamedTuple):
    """Keys and values of what is looked at: [batch memory_heads memory_length key]
    each.
    """

    keys: Tensor
    values: Tensor


class DecodeStep(NamedTuple):
    """What a step knows of its position."""

    slot: Tensor  # of the cache, that is written: int32, a scalar or [batch]
    bias: Tensor  # of the scores of all rows: [... memory_length]
    angles: Angles | None  # of the position alone


class Heads(Module):
    """What attention layers share: products to queries, keys and values, and back;
    steps.

    Args:
      mesh: where the variables lie.
      model_dim: what comes in and goes out, such as "d_model:512".
      heads_dim: such as "heads:8".
      key_dim: the size of a head, such as "key:64".
      memory_heads_dim: those of `heads_dim` that keys and values have, too; None: all.
      length_dims: the names of positions.
      memory_dim: the name that positions get where they are looked at.
      use_bias: whether the products add a bias.
      output_initializer: of the kernel of the last product.
      dropout: of attention weights: its rate, and names along which one mask serves all
        rows.
      scale: what scores are multiplied by; None: 1 / sqrt(size of `key_dim`).
      name: the last part of the path of its variables.

    Raises:
      ShapeError: `memory_heads_dim` are none of `heads_dim`.
    """

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        memory_heads_dim: ShapeLike | None,
        length_dims: Names,
        memory_dim: str,
        use_bias: bool,
        output_initializer: Initializer | None,
        dropout: tuple[float, str],
        scale: float | None,
        name: str,
    ) -> None:
        if scale is not None:
            check_floats(scale=scale)
        super().__init__(name)
        self.length_dims, self.scale = names_of(length_dims, what="length_dims"), scale
        self.memory_dim = as_dim("memory_dim", memory_dim)
        self.heads, self.key_dim = Shape(heads_dim) + key_dim, Shape(key_dim)
        shared = Shape(heads_dim if memory_heads_dim is None else memory_heads_dim)
        if not set(shared) <= set(self.heads):
            raise ShapeError(
                explain_error(
                    f"keys and values of heads {shared!r} do not fit queries of "
                    f"{Shape(heads_dim)!r}.",
                    way_out='Part the heads by names: heads "groups:2;heads:4", memory '
                    'heads "groups:2".',
                )
            )
        self.memory_heads = shared + key_dim
        with self.scope():
            self.query = Dense(mesh, model_dim, self.heads, use_bias, name="query")
            self.key, self.value = (
                Dense(mesh, model_dim, self.memory_heads, use_bias, name=part)
                for part in ("key", "value")
            )
            self.output = Dense(
                mesh, self.heads, model_dim, use_bias, output_initializer, name="output"
            )
            self.dropout = Dropout(*dropout)

    def empty_cache(self, x: Tensor, positions: int) -> Cache:
        """Returns a cache of zeros for so many positions, for steps of the shape and
        type of x.
        """
        check_tensors(x=x)
        check_ints(positions=positions)
        shape = x.shape.without(*self.query.reduced_dims.names, *self.length_dims)
        shape = shape + self.memory_heads.without(*self.key_dim.names)
        shape = shape + [(self.memory_dim, positions)] + self.key_dim
        return Cache(*(zeros(x.mesh, shape, x.dtype) for _ in range(2)))

    def project_keys_values(
        self, memory: Tensor, angles: Angles | None = None
    ) -> Cache:
        """Returns keys and values of memory [batch length model_dim], such as an
        encoder's output.
        """
        check_tensors(memory=memory)
        k = self.apply_rotary(self.project_to_heads(self.key, memory), angles)
        v = self.project_to_heads(self.value, memory)
        return Cache(*(rename(y, self.length_dims, [self.memory_dim]) for y in (k, v)))

    def fill_cache(self, cache: Cache, read: Cache, last: Tensor, column: int) -> Cache:
        """Returns a cache as steps up to a position would leave it.

        Args:
          cache: from `empty_cache`.
          read: from `project_keys_values`, keys and values of positions from 0 on, perhaps beyond
            the last one.
          last: the number of the last position: int32, a scalar or [batch].
          column: of the step of this position.
        """
        check_record(Cache, cache=cache, read=read)
        check_tensors(last=last)
        check_ints(column=column)
        rows = cache.keys.shape.dim(self.memory_dim)
        age = (column - range_(last.mesh, rows)) % rows.size
        # What has no place is older than any position.
        place = maximum(outer(last, age, subtract), 0)
        return Cache(
            *(
                broadcast(take_along(x, place, rows.name), old.shape)
                for x, old in zip(read, cache)
            )
        )

    def step(
        self,
        x: Tensor,
        cache: Cache,
        position: Tensor,
        angles: Angles | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Returns the next position's output, and the cache with its key and value.

        It sees itself and what the cache holds of those before it: where more positions
        come than the cache has room for, the oldest are forgotten.

        Args:
          x: one position, [batch model_dim].
          cache: from `empty_cache`, or from the step before.
          position: its number, counted from 0: int32, a scalar or [batch].
          angles: rotary positions of all positions that come.
          bias: added to the scores, which are [batch heads memory_length]: of each row
            of the cache.
        """
        check_record(Cache, cache=cache)
        check_tensors(x=x)
        return self.step_at(x, cache, self.decode_step(cache, position, angles, bias))

    def decode_step(
        self,
        cache: Cache,
        position: Tensor,
        angles: Angles | None = None,
        bias: Tensor | None = None,
        column: Tensor | None = None,
    ) -> DecodeStep:
        """Returns what `step` makes of a position, which is the same for all layers of
        a kind.

        Arguments are those of `step`; of the cache only names and sizes count.

        Args:
          column: the number of the step. Where examples are at positions of their own,
            and each goes on by one in a step, one number says where in the cache all
            write; so nothing is copied. None: the position.
        """
        check_record(Cache, cache=cache)
        check_tensors(position=position, column=position if column is None else column)
        if angles is not None:
            check_record(Angles, angles=angles)
        if bias is not None:
            check_tensors(bias=bias)
        rows = cache.keys.shape.dim(self.memory_dim)
        column = position if column is None else column
        # Of what a row holds, in positions.
        age = outer(column, range_(position.mesh, rows), subtract) % rows.size
        past = mask_bias(
            self.is_visible(age, position), (cache.keys if bias is None else bias).dtype
        )
        return DecodeStep(
            column % rows.size,
            past if bias is None else outer(past, bias, add),
            None
            if angles is None
            else Angles(*(gather(a, position, self.length_dims[-1]) for a in angles)),
        )

    def step_at(
        self, x: Tensor, cache: Cache, decode_step: DecodeStep
    ) -> tuple[Tensor, Cache]:
        """Returns what `step` does, from what one layer's `decode_step` made for all of
        them.
        """
        check_tensors(x=x)
        check_record(Cache, cache=cache)
        check_record(DecodeStep, decode_step=decode_step)
        q, k, v = self.project(x, decode_step.angles)
        cache = Cache(
            *(
                dynamic_update(old, self.memory_dim, decode_step.slot, new)
                for old, new in zip(cache, (k, v))
            )
        )
        y = dot_product_attention(
            q, *cache, self.memory_dim, self.key_dim, decode_step.bias, scale=self.scale
        )
        return self.output(y, x.shape.names), cache

    def is_visible(self, age: Tensor, position: Tensor) -> Tensor:
        """Returns whether what was written `age` steps before this position is seen by
        it.
        """
        check_tensors(age=age, position=position)
        return outer(age, position, less_equal)

    def project(
        self, x: Tensor, angles: Angles | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of x; the first two are turned by rotary
        positions.
        """
        check_tensors(x=x)
        q, k, v = (
            self.project_to_heads(dense, x)
            for dense in (self.query, self.key, self.value)
        )
        return self.apply_rotary(q, angles), self.apply_rotary(k, angles), v

    def project_to_heads(self, dense: Dense, x: Tensor) -> Tensor:
        """Returns [batch heads length key]: products of one head's positions need no
        transpose then.
        """
        check_tensors(x=x)
        check_record(Dense, dense=dense)
        length = x.shape.only(self.length_dims).names
        rest = x.shape.without(*length, *dense.reduced_dims.names).names
        heads = dense.new_dims.without(*self.key_dim.names).names
        return dense(x, (*rest, *heads, *length, *self.key_dim.names))

    def apply_rotary(self, x: Tensor, angles: Angles | None) -> Tensor:
        """Returns queries or keys turned by rotary positions, if there are any."""
        check_tensors(x=x)
        return x if angles is None else rotate(x, self.key_dim.names[0], angles)
