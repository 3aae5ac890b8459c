"""Ring attention: attention to a sequence whose keys and values no device holds entirely.

    y = ring_attention(q, k, v, "length:4096")              # [batch, heads, length, key]

Queries, keys and values are split into *chunks* along the positions. Queries stay where they
are, and in each step the keys and values of every chunk go to the next one, around a ring,
until all queries have met all keys (Liu et al., 2023, arXiv 2310.01889). With `length`
sharded along a mesh axis of p devices, a device holds 1 / p of the keys and values, and as
many that are on their way; neighbours exchange them while a step computes. The chunks are
dimensions like any other, so the result is the same under every layout, and on one device.

In causal attention the queries of the last chunk attend to all keys, and those of the first
to few. In *zigzag order* every chunk has as much to do: with c chunks, the sequence is cut
into 2 c halves of chunks, and chunk i has the halves i and 2 c - 1 - i:

    order = ZigzagOrder("length:32768", chunks=8)
    tokens, positions = order.apply(tokens), order.apply(positions)
    q, k, v = ...                                  # of tokens in this order
    y = ring_attention(q, k, v, "length:4096", bias_of=causal_bias, query_inputs=positions,
                       kv_inputs=kv_positions, zigzag=True)

Then half of the scores are never computed: those of keys after all queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor, context, current, gradients
from meshtf.graph.arguments import as_tensor
from meshtf.layers.attention.context_parallel.all_to_all import (
    PairBiasOf,
    positions_axes,
)
from meshtf.layers.attention.context_parallel.ring_step import (
    RingSettings,
    RingStep,
    chunks_dim,
    once_differentiable,
)
from meshtf.layers.attention.context_parallel.zigzag import zigzag_numbers
from meshtf.names import (
    Dimension,
    Names,
    ShapeLike,
    accumulation_dtype,
    has_gradient,
    names_of,
    nested,
)
from meshtf.names.arguments import check_bools, check_callables, check_floats
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.layout_region import layout
from meshtf.ops.control.seeds import alternatives
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.unary import exp, log
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.scan import scan, scan_and_sum
from meshtf.ops.random.random_indices import index_function
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.ops.shapes.reshape import flatten, unflatten
from meshtf.ops.variables.fill import zeros_like
from meshtf.ops.windows.shift import roll

_STEPS = "ring_steps"  # the dimension of the loop over steps


class _Partial(NamedTuple):
    """Attention to some of the keys.

    Attributes:
      maxima: the maximum of each query's scores, [..., length].
      sums: the sum of exp(score - maximum), [..., length].
      values: the sum of exp(score - maximum) * value, [..., length, value].
    """

    maxima: Tensor
    sums: Tensor
    values: Tensor


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chunk: ShapeLike,
    bias_of: PairBiasOf | None = None,
    query_inputs: Any = None,
    kv_inputs: Any = None,
    kv_length_dim: str = "kv_length",
    key_dim: Names = "key",
    zigzag: bool = False,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v, [..., value] for q [..., key], as
    `dot_product_attention` does.

    Args:
      q: queries, such as [batch, heads, length, key].
      k: keys, [batch, heads, kv_length_dim, key], or a subset of these names.
      v: values, such as [batch, heads, kv_length_dim, value]; `value` may be called
        `key_dim` as well.
      chunk: the name of the positions of queries, with the count of queries in a chunk,
        such as "length:4096". Keys and values have as many chunks. A mesh axis that shards
        the positions should divide the count of chunks.
      bias_of: a function of the entries of `query_inputs` and `kv_inputs` for chunks of
        queries, [..., length_chunks, length], and for the chunks of keys that have come to
        them, [..., length_chunks, kv_length_dim]; it returns the bias of their scores, [...,
        length_chunks, length, kv_length_dim]. "length_chunks" is the name of the positions of
        queries with "_chunks". Functions such as `mtf.outer` keep this dimension without
        naming it. Tensors with gradients come to it by its arguments. None: no bias.
      query_inputs: the first argument of `bias_of`: tensors in any nesting, such as the
        positions of the queries. Tensors with the dimension of `chunk` are split into
        chunks, others are passed as they are.
      kv_inputs: the second argument of `bias_of`, in the same way, such as the positions of
        keys. It goes around the ring with the keys.
      kv_length_dim: the name of the positions of keys and values.
      key_dim: the name, or names, of the elements of a head: the matmul of q and k sums
        over them.
      zigzag: whether all tensors are in the zigzag order of the chunks (`ZigzagOrder`), and
        `bias_of` masks all keys after a query: then scores of chunks that are masked
        entirely are not computed.
      scale: a factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: a function that is applied to the attention weights.

    Raises:
      ShapeError: a tensor lacks a dimension, or a chunk does not divide it.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    v = as_tensor("v", v)
    check_bools(zigzag=zigzag)
    check_callables(bias_of=bias_of, dropout=dropout)
    chunk_dim = single_dim(chunk)
    key_names = names_of(key_dim, q.shape, k.shape, argument="key_dim")
    require_dim_of_caller(q.shape, chunk_dim.name, *key_names)
    require_dim_of_caller(k.shape, kv_length_dim, *key_names)
    require_dim_of_caller(v.shape, kv_length_dim)
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape.only(key_names).size)
    else:
        check_floats(scale=scale)
    chunks = chunks_dim(q, k, chunk_dim, kv_length_dim, zigzag=zigzag)
    dims = q.shape.dim(chunk_dim.name), k.shape.dim(kv_length_dim)
    with zigzag_numbers(dims, chunks.size if zigzag else 1):
        index_functions = [index_function(dim) for dim in dims]
    settings = RingSettings(
        chunks=chunks,
        length_dim=chunk_dim.name,
        kv_length_dim=kv_length_dim,
        key_names=key_names,
        zigzag=zigzag,
        bias_of=bias_of,
        dropout=dropout,
        inputs=(query_inputs, kv_inputs),
        query_index_of=index_functions[0],
        key_index_of=index_functions[1],
        caller=current(),
    )
    return _Ring(settings).attend(q * scale if scale != 1 else q, k, v)


class _Ring:
    """The steps around the ring, forward and backward.

    Operands are the tensors q, k and v, and those among the inputs of `bias_of`. Those with
    the positions of queries stay, and those with the positions of keys move.

    Args:
      settings: the settings of the ring.
    """

    def __init__(self, settings: RingSettings) -> None:
        self.settings = settings
        self.chunks = settings.chunks
        self.length_names = (settings.length_dim, settings.kv_length_dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the result of `ring_attention` for queries that are scaled."""
        inputs = nested.flatten(self.settings.inputs)
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        for x in tensors:
            if set(self.length_names) <= set(x.shape.names):
                raise ShapeError(
                    explain_error(
                        "a tensor with the positions of queries and of keys is as large "
                        "as the scores, and goes around no ring.",
                        tensor=repr(x.shape),
                        way_out="Have bias_of compute it from tensors that have one of "
                        "them.",
                    )
                )
        return custom_gradient(self._attend_with_rule)(q, k, v, *tensors)

    def _attend_with_rule(self, *operands: Tensor) -> tuple[Tensor, Any]:
        """Returns the result for operands, and the rule of its gradient."""
        q = operands[0]
        region = self._region(q)
        # Each step has random ops of the same paths, for other pairs of chunks.
        with layout(region), alternatives() as self.alternative:
            in_chunks = [self._split(x) for x in operands]
            partial = self._attend_in_steps(in_chunks)
            y = cast(partial.values / partial.sums, q.dtype)
            # Constants of the backward steps, whose gradients are those of sums.
            log_sums = stop_gradient(partial.maxima + log(partial.sums))
            result = self._merge(y)

        def rule(dy: Tensor) -> list[Tensor | None]:
            """Returns the cotangents of the operands."""
            # Tensors of the backward steps are placed as those of the forward steps.
            with (
                layout(region),
                context(primals=(*in_chunks, y)),
                alternatives() as self.alternative,
            ):
                dy_in_chunks = cast(self._split(dy), log_sums.dtype)
                value_names = y.shape.without(*log_sums.shape.names).names
                # The weights of a query add up to 1: the cotangent of this sum.
                d_sums = -reduce_sum(
                    dy_in_chunks * cast(y, log_sums.dtype), value_names
                )
                totals = self._backward_steps(
                    in_chunks, log_sums, [dy_in_chunks, d_sums]
                )
                return [
                    None if total is None else self._cotangent(x, total)
                    for x, total in zip(operands, totals)
                ]

        return result, rule

    def _region(self, q: Tensor) -> dict[str, str]:
        """Returns the layout of chunks: they are sharded as positions are outside."""
        region = dict.fromkeys(self.length_names, "")
        region[self.chunks.name] = "+".join(positions_axes(q, self.length_names))
        return region

    def _split(self, x: Tensor) -> Tensor:
        """Returns x [..., length, ...] as [..., chunks, length / chunks, ...]."""
        for name in self.length_names:
            if name in x.shape:
                size = x.shape[name] // self.chunks.size
                x = unflatten(x, name, [self.chunks, Dimension(name, size)])
        return x

    def _merge(self, x: Tensor) -> Tensor:
        """Returns x [..., chunks, length / chunks, ...] as [..., length, ...]."""
        for name in self.length_names:
            if name in x.shape:
                x = flatten(x, [self.chunks.name, name], name)
        return x

    def _cotangent(self, x: Tensor, total: Tensor) -> Tensor:
        """Returns the cotangent of an operand x, from the sum of all steps in chunks."""
        return once_differentiable(cast(self._merge(total), x.dtype))

    def _moves(self, x: Tensor) -> bool:
        """Returns whether an operand goes around the ring."""
        return self.settings.kv_length_dim in x.shape

    def _moved(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Returns tensors that go around the ring, each chunk one place on."""
        return [roll(x, self.chunks.name, 1) for x in xs]

    def _with_moving(
        self, operands: Sequence[Tensor], moving: Sequence[Tensor]
    ) -> list[Tensor]:
        """Returns the operands, with `moving` in place of those that go around."""
        remaining = iter(moving)
        return [next(remaining) if self._moves(x) else x for x in operands]

    def _middle_steps(self, q: Tensor) -> Tensor:
        """Returns the indices of all steps but the first and the last: int32."""
        return index_range(q.mesh, Dimension(_STEPS, self.chunks.size - 2)) + 1

    def _attend_in_steps(self, operands: Sequence[Tensor]) -> _Partial:
        """Returns attention of all queries to all keys, in a step for each chunk."""
        partial = self._add_step(None, operands, 0)
        num_steps = self.chunks.size
        if num_steps == 1:
            return partial
        moving = self._moved([x for x in operands if self._moves(x)])

        def step(carry: Any, index: Tensor) -> tuple[Any, None]:
            """Attends to the keys that have come, and sends them on at the same time."""
            partial, moving = carry
            present = self._with_moving(operands, moving)
            return (
                self._add_step(partial, present, index),
                self._moved(moving),
            ), None

        (partial, moving), _ = scan(
            step, (partial, moving), self._middle_steps(operands[0]), dim=_STEPS
        )
        present = self._with_moving(operands, moving)
        return self._add_step(partial, present, num_steps - 1)

    def _add_step(
        self, partial: _Partial | None, operands: Sequence[Tensor], index: Tensor | int
    ) -> _Partial:
        """Returns attention to the keys of earlier steps and to those of one more.

        Args:
          partial: attention to the keys of earlier steps; None: this is the first.
          operands: the operands of the step, in chunks.
          index: the index of the step.
        """
        with self.alternative():
            step = RingStep(self.settings, operands, index)
            maxima = step.maxima()
            if partial is not None:
                maxima = maximum(maxima, partial.maxima)
            sums, values = step.sums(maxima)
        if partial is not None:
            # The sums of earlier steps are relative to another maximum.
            factor = exp(partial.maxima - maxima)
            sums = sums + partial.sums * factor
            values = values + partial.values * factor
        return _Partial(maxima, sums, values)

    def _backward_steps(
        self,
        operands: Sequence[Tensor],
        log_sums: Tensor,
        cotangents: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Returns the cotangent of each operand, in chunks; None for integers.

        The cotangents of keys go around with the keys, and once more at the end: then they
        are where the keys began.

        Args:
          operands: the operands, in chunks.
          log_sums: the logarithm of the sum of each query's exp(score).
          cotangents: those of the attention weights times values, and of the weights' sum.
        """
        floats = [x for x in operands if has_gradient(x.dtype)]
        moves = [self._moves(x) for x in floats]
        num_steps = self.chunks.size

        def terms(
            moving: Sequence[Tensor] | None, index: Tensor | int
        ) -> list[list[Tensor]]:
            """Returns the cotangents that one step adds: of what stays, of what moves."""
            present = operands
            if moving is not None:
                present = self._with_moving(operands, moving)
            # So that gradients do not flow on into the steps before this one.
            present = [stop_gradient(x) for x in present]
            targets = [x for x in present if has_gradient(x.dtype)]
            with self.alternative(), context(runs_again=True):
                step = RingStep(self.settings, present, index)
                sums, values = step.sums(log_sums)
            dxs = gradients([values, sums], targets, grad_ys=cotangents)
            groups: list[list[Tensor]] = [[], []]
            for x, dx, is_moving in zip(targets, dxs, moves):
                dx = zeros_like(x) if dx is None else dx
                groups[is_moving].append(cast(dx, accumulation_dtype(x.dtype)))
            return groups

        def step(carry: Any, index: Tensor) -> tuple[Any, Any, None]:
            """Adds the terms of a step, while keys and their cotangents go on."""
            moving, d_moving = carry
            d_stays, d_present = terms(moving, index)
            d_moving = _added(self._moved(d_moving), d_present)
            return (self._moved(moving), d_moving), d_stays, None

        d_stays, d_moving = terms(None, 0)
        if num_steps > 1:
            moving = self._moved([x for x in operands if self._moves(x)])
            (moving, d_moving), d_middle, _ = scan_and_sum(
                step, (moving, d_moving), self._middle_steps(operands[0]), dim=_STEPS
            )
            d_last, d_present = terms(moving, num_steps - 1)
            d_stays = _added(_added(d_stays, d_middle), d_last)
            d_moving = self._moved(_added(self._moved(d_moving), d_present))
        totals = {False: iter(d_stays), True: iter(d_moving)}
        return [
            next(totals[self._moves(x)]) if has_gradient(x.dtype) else None
            for x in operands
        ]


def _added(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Tensor]:
    """Returns the sums of corresponding tensors."""
    return [x + y for x, y in zip(xs, ys, strict=True)]
