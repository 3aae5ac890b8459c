"""Attention by all_to_all: the positions are sharded outside, and the heads inside.

    y = all_to_all_attention(q, k, v, "length:128")          # [batch, heads, length, key]

With `length` sharded along a mesh axis, an all_to_all of queries, keys and values shards the
heads along this axis instead; each device attends to all positions for its heads, and
another all_to_all shards the positions of the result (Ulysses: Jacobs et al., 2023, arXiv
2309.14509). This is `blockwise_attention` in a region of another layout, so the result is
the same under every layout, and on one device. It needs a dimension of heads that the axis
divides; grouped-query attention shards the heads of keys and values if the axis divides
them, and otherwise the heads of queries that share one, and gathers keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import Source, Tensor, current
from meshtf.graph.arguments import as_tensor
from meshtf.layers.attention.blockwise import blockwise_attention
from meshtf.names import Names, ShapeLike, names_of, nested
from meshtf.names.arguments import as_dim, check_callables
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.control.layout_region import layout, relayout

# A function of the entries of `query_inputs` for some queries, and of those of `kv_inputs`
# for some keys; it returns the bias of the scores of these.
PairBiasOf = Callable[[Any, Any], Tensor | None]


def all_to_all_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: ShapeLike,
    heads: Names = "heads",
    bias_of: PairBiasOf | None = None,
    query_inputs: Any = None,
    kv_inputs: Any = None,
    kv_length_dim: str = "kv_length",
    key_dim: Names = "key",
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v, [..., value] for q [..., key], as
    `dot_product_attention` does.

    Args:
      q: queries, such as [batch, heads, length, key].
      k: keys, [batch, heads, kv_length_dim, key], or a subset of these names.
      v: values, such as [batch, heads, kv_length_dim, value].
      block: the name of the positions of queries, with the count of queries in a block,
        such as "length:128".
      heads: the name, or names, of the dimensions of heads.
      bias_of: a function of `kv_inputs` and of the entries of `query_inputs` for a block of
        queries; it returns the bias of their scores, [..., length, kv_length_dim]. None: no
        bias.
      query_inputs: the first argument of `bias_of`: tensors in any nesting, such as the
        positions of the queries.
      kv_inputs: the second argument of `bias_of`, such as the positions of the keys.
      kv_length_dim, key_dim, scale, dropout: as in `blockwise_attention`.

    Raises:
      ShapeError: a tensor lacks a dimension, or the size of a block does not divide it.
      LayoutError: the mesh axes of the positions divide no dimension of heads.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    length_dim = single_dim(block).name
    kv_length_dim = as_dim("kv_length_dim", kv_length_dim)
    heads_names = names_of(heads, q.shape, argument="heads")
    require_dim_of_caller(q.shape, length_dim, *heads_names)
    check_callables(bias_of=bias_of)
    region = heads_region(q, k, (length_dim, kv_length_dim), heads_names)
    if region is None:
        axes = "+".join(positions_axes(q, (length_dim, kv_length_dim)))
        raise LayoutError(
            explain_error(
                f'"{length_dim}" is sharded along "{axes}", which does not divide '
                f"{q.shape.only(heads_names)!r}, the heads of the queries.",
                mesh=str(q.mesh),
                source=Source.of_caller(),
                way_out="Take ring attention, a smaller axis, or a count of heads that "
                "it divides.",
            )
        )
    with layout(region):
        q, k, v = map(_relayout, (q, k, v))
        # Otherwise the bias of all keys would be gathered, which is larger.
        query_inputs, kv_inputs = nested.map_structure(
            _relayout, (query_inputs, kv_inputs)
        )
        y = blockwise_attention(
            q,
            k,
            v,
            block,
            bias_of=(lambda inputs: bias_of(inputs, kv_inputs)) if bias_of else None,
            query_inputs=query_inputs,
            kv_length_dim=kv_length_dim,
            key_dim=key_dim,
            scale=scale,
            dropout=dropout,
        )
    return relayout(y)


def _relayout(x: Any) -> Any:
    """Returns a tensor, sharded as the active rules say; other values as they are."""
    return relayout(x) if isinstance(x, Tensor) else x


def positions_axes(q: Tensor, length_names: tuple[str, str]) -> tuple[str, ...]:
    """Returns the mesh axes along which the active layout rules shard the positions.

    Args:
      q: the queries, [..., length, key].
      length_names: the names of the positions of queries and of keys.
    """
    if q.mesh is None:
        return ()
    rules = q.mesh.layout_in(current().region)
    axes = rules.axes(length_names[0]) or rules.axes(length_names[1])
    return tuple(axis for axis in axes if q.mesh.axes.get(axis, 1) > 1)


def heads_region(
    q: Tensor, k: Tensor, length_names: tuple[str, str], heads_names: tuple[str, ...]
) -> dict[str, str] | None:
    """Returns the layout in which the axes of the positions shard heads instead; None: they
    divide no dimension of heads.

    Args:
      q: the queries, [..., heads, length, key].
      k: the keys, [..., kv_length, key], with some of the dimensions of heads.
      length_names: the names of the positions of queries and of keys.
      heads_names: the names of the heads of queries.
    """
    axes = positions_axes(q, length_names)
    mesh = q.mesh
    if mesh is None or not axes:
        return {}
    region = dict.fromkeys(length_names, "")
    rules = mesh.layout_in(current().region)
    # Heads that keys have as well come first: then no device needs all keys.
    for name in sorted(heads_names, key=lambda name: name not in k.shape):
        all_axes = {*axes, *rules.axes(name)}
        ordered_axes = [axis for axis in mesh.axes if axis in all_axes]
        if q.shape[name] % mesh.group_size(*ordered_axes) == 0:
            return {**region, name: "+".join(ordered_axes)}
    return None
