"""Dot-product attention as a function, and pooling of keys and values to shorten them.

    y = dot_product_attention(q, k, v, bias=causal_bias(mesh, "length:128", "kv_length:128"))

With q [batch, heads, length, key] and k, v [batch, heads, kv_length, key] scores are
[batch, heads, length, kv_length]. Dimensions are matched by name, so all heads share k and v
without a dimension of heads (multi-query attention), and with heads in two dimensions k and
v may have one of them (grouped-query attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.attention.masks import mask_bias
from meshtf.layers.dropout import Dropout
from meshtf.layers.mixed_precision import cast_like
from meshtf.mesh import Mesh
from meshtf.names import Names, names_of
from meshtf.names.arguments import (
    as_dim,
    as_int,
    check_bools,
    check_callables,
    check_floats,
    check_ints,
)
from meshtf.ops.attention.fused_attention import fused_attention
from meshtf.ops.common.checks import require_dim_of_caller, tensor_along
from meshtf.ops.elementwise.arithmetic import add, outer, subtract
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.nn.softmax import softmax
from meshtf.ops.random.mask_words import Words, mask_words
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.ops.shapes.reshape import unflatten
from meshtf.runtime.runtimes import runs_on_cpus

# From so many positions on attention is one op, where it can be. CPUs have no kernels for it, and
# compute the scores twice.
FUSED_LENGTH = 512
FUSED_LENGTH_ON_CPUS = 4096
FUSED_DTYPES = ("bfloat16", "float16")


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_length_dim: str = "kv_length",
    key_dim: Names = "key",
    bias: Tensor | None = None,
    sink_logit: Tensor | float | None = None,
    scale: float | None = None,
    dropout: Dropout | Callable[[Tensor], Tensor] | None = None,
    length_dim: str | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v: [..., value] for q [..., key].

    Names that q shares with k or v, other than `key_dim`, are batch dimensions.

    Where `fuses` says so it is one op, which stores no scores: see `ops.attention`.

    Args:
      q: queries, such as [batch, heads, length, key].
      k: keys, [batch, heads, kv_length_dim, key], or a subset of these names.
      v: values, such as [batch, heads, kv_length_dim, value]; `value` may be called
        `key_dim` as well.
      kv_length_dim: the name of the positions of keys and values.
      key_dim: the name, or names, of the elements of a head: the matmul of q and k sums
        over them.
      bias: added to the scores: [batch, heads, length, kv_length_dim] or a subset of
        these names. Masks are large negative biases: see `mask_bias`.
      sink_logit: the score of one additional position whose value is zero, so that a
        query may attend to nothing.
      scale: the factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: what is applied to the attention weights: a layer, as in training, or a function.
      length_dim: the name of the positions of queries; None: they have none.
      causal: whether query i attends to keys from 0 to i only.
      window: to how many of the last keys a causal query attends; None: all.

    Raises:
      ShapeError: an input lacks a dimension, or `causal` is set without `length_dim`.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    v = as_tensor("v", v)
    if scale is not None:
        check_floats(scale=scale)
    if not isinstance(dropout, Dropout):
        check_callables(dropout=dropout)
    check_bools(causal=causal)
    if length_dim is not None:
        length_dim = as_dim("length_dim", length_dim)
    if window is not None:
        window = as_int("window", window, least=1)
    if bias is not None:
        check_tensors(bias=bias)
    key_dims = names_of(key_dim, q.shape, k.shape, argument="key_dim")
    require_dim_of_caller(q.shape, *key_dims)
    require_dim_of_caller(k.shape, *key_dims, kv_length_dim)
    require_dim_of_caller(v.shape, kv_length_dim)
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape.only(key_dims).size)
    if scale != 1:
        q = q * scale
    if sink_logit is None and fuses(
        q, k, v, length_dim, kv_length_dim, key_dims, dropout
    ):
        assert length_dim is not None
        (key,) = key_dims
        names = (length_dim, kv_length_dim, key)
        rate, words = _random_words(q, k, names, dropout)
        if words is not None:
            return fused_attention(q, k, v, *names, causal, window, bias, rate, words)
    query_dims = q.shape.without(*key_dims)
    if causal:
        causal_bias = _causal_bias(q, k, length_dim, kv_length_dim, window)
        bias = causal_bias if bias is None else outer(bias, causal_bias, add)
    scores = einsum([q, k], query_dims + k.shape.only([kv_length_dim]))
    if bias is not None:
        scores = scores + cast_like(bias, scores)
    weights = softmax(scores, kv_length_dim, sink_logit=sink_logit)
    if isinstance(dropout, Dropout):
        weights = dropout(weights, training=True)
    elif dropout is not None:
        weights = dropout(weights)
    value_dims = v.shape.without(kv_length_dim, *query_dims.names)
    return einsum([weights, v], query_dims + value_dims)


def fuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    length_dim: str | None,
    kv_length_dim: str,
    key_dims: tuple[str, ...],
    dropout: Dropout | Callable[[Tensor], Tensor] | None,
) -> bool:
    """Returns whether attention is one op: with 16-bit tensors of at least `FUSED_LENGTH`
    positions, on CPUs `FUSED_LENGTH_ON_CPUS`. The arguments are those of `dot_product_attention`,
    such as q [batch, heads, length, key].
    """
    if length_dim is None or len(key_dims) != 1:
        return False
    if dropout is not None and not isinstance(dropout, Dropout):
        return False
    if len({q.dtype, k.dtype, v.dtype}) > 1 or length_dim not in q.shape:
        return False
    length = min(q.shape[length_dim], k.shape[kv_length_dim])
    if not fuses_tensors(q.mesh, q.dtype, length):
        return False
    scores = (*q.shape.without(*key_dims).names, kv_length_dim)
    return (
        not k.shape.without(*key_dims, *scores) and len(v.shape.without(*scores)) == 1
    )


def fuses_tensors(mesh: Mesh | None, dtype: str, length: int) -> bool:
    """Returns whether attention of tensors on a mesh, of a data type and with so many positions, is
    one op.
    """
    if dtype not in FUSED_DTYPES or length < FUSED_LENGTH:
        return False
    return length >= FUSED_LENGTH_ON_CPUS or not runs_on_cpus(mesh)


def _random_words(
    q: Tensor, k: Tensor, names: tuple[str, str, str], dropout: Any
) -> tuple[float, Words | None]:
    """Returns the rate of dropout, and the random words of its mask; None: it has none.

    Args:
      q: queries.
      k: keys.
      names: the positions of queries, those of keys, and the elements of a head.
      dropout: the layer; None: no weights are dropped.
    """
    if dropout is None:
        return 0.0, {}
    _, kv_length, key = names
    scores = q.shape.without(key) + k.shape.only([kv_length])
    broadcast = names_of(dropout.broadcast, scores)
    with dropout.scope():  # the mask is that of the layer
        return dropout.rate, mask_words(q.mesh, scores.without(*broadcast))


def _causal_bias(
    q: Tensor, k: Tensor, length_dim: str | None, kv_length_dim: str, window: int | None
) -> Tensor:
    """Returns the bias of causal attention [length, kv_length]; see `dot_product_attention`."""
    if length_dim is None:
        raise ShapeError(
            explain_error(
                "causal attention needs the positions of queries.",
                q=repr(q.shape),
                source=Source.of_caller(),
                way_out='Name their dimension: length_dim="length".',
            )
        )
    require_dim_of_caller(q.shape, length_dim)
    positions = index_range(q.mesh, q.shape.dim(length_dim))
    kv_positions = index_range(q.mesh, k.shape.dim(kv_length_dim))
    distance = outer(positions, kv_positions, subtract)
    visible = distance >= 0
    if window is not None:
        visible = visible & (distance < window)
    return mask_bias(visible)


def compress_mean(x: Tensor, dim: str, factor: int) -> Tensor:
    """Returns the means of groups of `factor` neighbouring entries of `dim`:
    [..., dim, ...] -> [..., dim / factor, ...].

    Attention to the means of 4 positions needs a quarter of the FLOPs (memory-compressed
    attention; Liu et al., 2018, arXiv 1801.10198, section 4.2.3, has a strided convolution
    in place of the mean):

        context = compress_mean(x, "length", 4)
        visible = causal_mask(mesh, "length:128", "kv_length:32", stride=4)
        y = attention(x, context, mask_bias(visible), sink_logit=0.0)

    Args:
      x: a tensor [..., dim, ...], such as the input of keys and values.
      dim: the name of the dimension to shorten.
      factor: the count of entries in a group.

    Raises:
      ShapeError: x lacks `dim`, or the factor does not divide it.
    """
    x, dim = tensor_along(x, dim)
    check_ints(factor=factor)
    require_dim_of_caller(x.shape, dim)
    if factor < 1 or x.shape[dim] % factor:
        raise ShapeError(
            f"{x.shape.dim(dim)!r} cannot be split into groups of {factor}."
        )
    in_group = f"{dim}_in_group"
    groups = unflatten(x, dim, [(dim, x.shape[dim] // factor), (in_group, factor)])
    return reduce_mean(groups, in_group)
