"""The base class of attention layers: projections to and from heads, and decoding with a
cache of keys and values.

    cache = attention.init_cache(x, positions=128)              # x [batch, d_model]
    y, cache = attention.decode_step(x, cache, position)        # position 0, 1, 2...

    # The same cache from a single pass over a prompt. `last`: the last position of the
    # prompt; `step_index`: the index of the step that would decode it.
    keys_values = attention.project_keys_values(xs)             # xs [batch, length, d_model]
    cache = attention.fill_cache(cache, keys_values, last, step_index)

A cache is two named tensors, which a layout can shard like any other tensor: along batch,
heads or `kv_length`. An entry along `kv_length` is a *slot*. A cache is a ring buffer: step
i writes to slot i % num_slots, so once all slots are written, the oldest is overwritten.
"""

from __future__ import annotations

from typing import NamedTuple

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.masks import mask_bias
from meshtf.layers.attention.rotary import RotaryEmbedding, apply_rope
from meshtf.layers.dense_layer import Dense
from meshtf.layers.dropout import Dropout
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Names, Shape, ShapeLike, names_of
from meshtf.names.arguments import as_dim, check_floats, check_ints, check_record
from meshtf.ops.elementwise.arithmetic import add, less_equal, maximum, outer, subtract
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather, take_along_axis
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.variables.fill import zeros


class Cache(NamedTuple):
    """Keys and values of the positions that queries attend to: a cache for decoding, or the
    projections of a sequence.

    Attributes:
      keys: a tensor [batch, kv_heads, kv_length, key].
      values: a tensor of the same shape as the keys.
    """

    keys: Tensor
    values: Tensor


class DecodeStep(NamedTuple):
    """The inputs of a decoding step that do not depend on the layer, so that equally
    configured layers can share them.

    Attributes:
      slot: the slot of the cache that the step writes: int32, a scalar or [batch].
      bias: a bias of the scores of all slots, [..., kv_length], with the mask.
      rope: the rotary embedding of the step's position, [..., key]; None: no rotation.
    """

    slot: Tensor
    bias: Tensor
    rope: RotaryEmbedding | None


class Heads(Module):
    """The base class of attention layers: dense layers to queries, keys and values, and
    back to `model_dim`; decoding steps.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: the dimension of the heads, such as "heads:8".
      key_dim: the dimension of the elements of a head, such as "key:64".
      kv_heads_dim: the dimensions of `heads_dim` that keys and values have, such as
        "groups:2" of "groups:2;heads:4" for grouped-query attention; None: all of them.
      length_dims: the names of the dimensions of the queries' positions: one, or several in
        `LocalAttention`. With several there is no cache.
      kv_length_dim: the name of the positions of keys and values.
      use_bias: whether the dense layers add a bias.
      output_bias: whether the output layer adds a bias; None: as `use_bias`.
      output_initializer: the initializer of the kernel of the output layer; default: that
        of `Dense`.
      dropout_rate: the fraction of attention weights that is dropped in training.
      dropout_broadcast: names along which the dropout mask is broadcast.
      scale: a factor of the scores; None: 1 / sqrt(size of `key_dim`).
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Attributes:
      query_dims: the dimensions of the queries of one position: those of `heads_dim`, then
        `key_dim`.
      kv_dims: the dimensions of the keys, and of the values, of one position: those of
        `kv_heads_dim`, then `key_dim`.

    Raises:
      ShapeError: `kv_heads_dim` is not a subset of `heads_dim`.
    """

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        kv_heads_dim: ShapeLike | None,
        length_dims: Names,
        kv_length_dim: str,
        use_bias: bool,
        output_bias: bool | None,
        output_initializer: Initializer | None,
        dropout_rate: float,
        dropout_broadcast: str,
        scale: float | None,
        name: str | None,
    ) -> None:
        if scale is not None:
            check_floats(scale=scale)
        super().__init__(name)
        self.length_dims = names_of(length_dims, argument="length_dims")
        self.scale = scale
        self.kv_length_dim = as_dim("kv_length_dim", kv_length_dim)
        self.key_dim = Shape(key_dim)
        self.query_dims = Shape(heads_dim) + key_dim
        kv_heads_dims = _kv_heads_dims(heads_dim, kv_heads_dim)
        if not set(kv_heads_dims) <= set(self.query_dims):
            raise ShapeError(
                explain_error(
                    f"keys and values of heads {kv_heads_dims!r} do not fit queries of "
                    f"{Shape(heads_dim)!r}.",
                    way_out='Split the heads by names: heads_dim="groups:2;heads:4", '
                    'kv_heads_dim="groups:2".',
                )
            )
        self.kv_dims = kv_heads_dims + key_dim
        with self.scope():
            self.query = Dense(
                mesh, model_dim, self.query_dims, use_bias=use_bias, name="query"
            )
            self.key = Dense(
                mesh, model_dim, self.kv_dims, use_bias=use_bias, name="key"
            )
            self.value = Dense(
                mesh, model_dim, self.kv_dims, use_bias=use_bias, name="value"
            )
            self.output = Dense(
                mesh,
                self.query_dims,
                model_dim,
                use_bias=use_bias if output_bias is None else output_bias,
                kernel_initializer=output_initializer,
                name="output",
            )
            self.dropout = Dropout(dropout_rate, broadcast=dropout_broadcast)

    def init_cache(self, x: Tensor, positions: int) -> Cache:
        """Returns a cache of zeros.

        Args:
          x: the input of a step, [batch, model_dim]; only its mesh, shape and data type
            are read.
          positions: the count of slots.
        """
        check_tensors(x=x)
        check_ints(positions=positions)
        batch_dims = x.shape.without(*self.query.reduced_dims.names, *self.length_dims)
        kv_heads_dims = self.kv_dims.without(*self.key_dim.names)
        slots_dim = Shape([(self.kv_length_dim, positions)])
        shape = batch_dims + kv_heads_dims + slots_dim + self.key_dim
        return Cache(
            keys=zeros(x.mesh, shape, x.dtype), values=zeros(x.mesh, shape, x.dtype)
        )

    def project_keys_values(
        self, context: Tensor, rope: RotaryEmbedding | None = None
    ) -> Cache:
        """Returns the keys and values, [batch, kv_heads, kv_length, key] each, of
        `context` [batch, length, model_dim], such as an encoder's output; keys are
        rotated by `rope` if given. Only for a single dimension of positions.
        """
        check_tensors(context=context)
        k = self.apply_rope(self.project_to_heads(self.key, context), rope)
        v = self.project_to_heads(self.value, context)
        return Cache(
            keys=rename(k, self.length_dims, [self.kv_length_dim]),
            values=rename(v, self.length_dims, [self.kv_length_dim]),
        )

    def fill_cache(
        self, cache: Cache, keys_values: Cache, last: Tensor, step_index: int
    ) -> Cache:
        """Returns the cache that decoding positions 0 to `last` one by one would produce.

        Args:
          cache: a cache from `init_cache`.
          keys_values: keys and values from `project_keys_values`, of positions from 0 to
            `last` or further.
          last: the last position of each example: int32, a scalar or [batch].
          step_index: the index of the step that decodes the last position, common to all
            examples. So step `step_index - last + p` decodes position p of an example.
        """
        check_record(Cache, cache=cache, keys_values=keys_values)
        check_tensors(last=last)
        check_ints(step_index=step_index)
        slots_dim = cache.keys.shape.dim(self.kv_length_dim)
        # The count of steps since each slot was written: [kv_length].
        age = (step_index - index_range(last.mesh, slots_dim)) % slots_dim.size
        # A slot with age > last is not written by any step: its source is clamped to 0,
        # and `decode_step` masks it.
        source = maximum(outer(last, age, subtract), 0)
        keys = take_along_axis(keys_values.keys, source, dim=slots_dim.name)
        values = take_along_axis(keys_values.values, source, dim=slots_dim.name)
        # Adds batch dimensions that only the cache has, and restores its order.
        return Cache(
            keys=broadcast(keys, cache.keys.shape),
            values=broadcast(values, cache.values.shape),
        )

    def decode_step(
        self,
        x: Tensor,
        cache: Cache,
        position: Tensor,
        rope: RotaryEmbedding | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Returns the output at one position, [batch, model_dim], and the cache with the
        key and value of that position.

        The position attends to itself and to the earlier positions that the cache still
        stores.

        Args:
          x: the input at the position, [batch, model_dim].
          cache: the cache from `init_cache`, or from the previous step.
          position: the index of the position, from 0: int32, a scalar or [batch].
          rope: the rotary embedding of all positions; None: no rotation.
          bias: added to the scores of all slots, [batch, heads, kv_length].
        """
        check_record(Cache, cache=cache)
        check_tensors(x=x)
        decode_step = self.prepare_decode_step(cache, position, rope=rope, bias=bias)
        return self.decode_prepared_step(x, cache, decode_step)

    def prepare_decode_step(
        self,
        cache: Cache,
        position: Tensor,
        rope: RotaryEmbedding | None = None,
        bias: Tensor | None = None,
        step_index: Tensor | None = None,
    ) -> DecodeStep:
        """Returns the argument `decode_step` of `decode_prepared_step`, which layers of
        the same class and settings can share.

        The other arguments are as in `decode_step`. Only the names, sizes and data type of
        the cache are read.

        Args:
          step_index: the index of the step, int32 [], common to the batch. The step
            writes slot step_index % num_slots, so examples at different positions write
            the same slot, without a scatter. None: the position.
        """
        check_record(Cache, cache=cache)
        if step_index is None:
            step_index = position
        check_tensors(position=position, step_index=step_index)
        if rope is not None:
            check_record(RotaryEmbedding, rope=rope)
        if bias is not None:
            check_tensors(bias=bias)
        slots_dim = cache.keys.shape.dim(self.kv_length_dim)
        # The count of steps since each slot was written: [..., kv_length].
        slot_index = index_range(position.mesh, slots_dim)
        age = outer(step_index, slot_index, subtract) % slots_dim.size
        is_visible = self.is_visible(age, position)
        if bias is None:
            slot_bias = mask_bias(is_visible, cache.keys.dtype)
        else:
            slot_bias = outer(mask_bias(is_visible, bias.dtype), bias, add)
        if rope is not None:
            # The dimension along which `rope` has one entry for each position: the only one,
            # since a layer with several dimensions of positions has no cache.
            length_dim = self.length_dims[-1]
            rope = RotaryEmbedding(
                cos=gather(rope.cos, position, dim=length_dim),
                sin=gather(rope.sin, position, dim=length_dim),
            )
        return DecodeStep(slot=step_index % slots_dim.size, bias=slot_bias, rope=rope)

    def decode_prepared_step(
        self, x: Tensor, cache: Cache, decode_step: DecodeStep
    ) -> tuple[Tensor, Cache]:
        """Returns the same output and cache as the method `decode_step`.

        Args:
          x: the input at one position, [batch, model_dim].
          cache: the cache from `init_cache`, or from the previous step.
          decode_step: the result of `prepare_decode_step` of a layer of the same class
            and settings.
        """
        check_tensors(x=x)
        check_record(Cache, cache=cache)
        check_record(DecodeStep, decode_step=decode_step)
        q, k, v = self.project(x, decode_step.rope)
        slot = decode_step.slot
        cache = Cache(
            keys=dynamic_update(cache.keys, self.kv_length_dim, begin=slot, updates=k),
            values=dynamic_update(
                cache.values, self.kv_length_dim, begin=slot, updates=v
            ),
        )
        y = dot_product_attention(
            q,
            cache.keys,
            cache.values,
            kv_length_dim=self.kv_length_dim,
            key_dim=self.key_dim,
            bias=decode_step.bias,
            scale=self.scale,
        )
        return self.output(y, x.shape.names), cache

    def is_visible(self, age: Tensor, position: Tensor) -> Tensor:
        """Returns bool [..., kv_length]: whether a position attends to a slot that was
        written `age` steps ago. A slot with age > position was never written.

        Args:
          age: the count of steps since each slot was written: int32 [..., kv_length].
          position: the position of each example: int32, a scalar or [batch].
        """
        check_tensors(age=age, position=position)
        return outer(age, position, less_equal)

    def project(
        self, x: Tensor, rope: RotaryEmbedding | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of x, [batch, heads, length, key] each;
        queries and keys are rotated by `rope` if given.
        """
        check_tensors(x=x)
        q = self.project_to_heads(self.query, x)
        k = self.project_to_heads(self.key, x)
        v = self.project_to_heads(self.value, x)
        return self.apply_rope(q, rope), self.apply_rope(k, rope), v

    def project_to_heads(self, dense: Dense, x: Tensor) -> Tensor:
        """Returns a dense layer's output as [batch, heads, length, key]. In this order the
        matmuls of attention need no transpose.
        """
        check_tensors(x=x)
        check_record(Dense, dense=dense)
        length_names = x.shape.only(self.length_dims).names
        batch_names = x.shape.without(*length_names, *dense.reduced_dims.names).names
        head_names = dense.new_dims.without(*self.key_dim.names).names
        order = (*batch_names, *head_names, *length_names, *self.key_dim.names)
        return dense(x, order=order)

    def apply_rope(self, x: Tensor, rope: RotaryEmbedding | None) -> Tensor:
        """Returns queries or keys [..., heads, key], rotated by `rope` if given."""
        check_tensors(x=x)
        if rope is None:
            return x
        # A rotary embedding is along one dimension: the first, if `key_dim` has several.
        return apply_rope(x, self.key_dim.names[0], rope)


def _kv_heads_dims(heads_dim: ShapeLike, kv_heads_dim: ShapeLike | None) -> Shape:
    """Returns the dimensions of the heads of keys and values; names without sizes, as in
    "groups", have the sizes of `heads_dim`.
    """
    heads = Shape(heads_dim)
    if kv_heads_dim is None:
        return heads
    if isinstance(kv_heads_dim, str) and ":" not in kv_heads_dim:
        names = names_of(kv_heads_dim, argument="kv_heads_dim")
        return Shape([heads.dim(name) for name in names])
    return Shape(kv_heads_dim)
