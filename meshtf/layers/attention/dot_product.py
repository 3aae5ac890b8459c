"""Attention as a function of queries, keys and values, and memories made shorter for
it.

    y = dot_product_attention(q, k, v, bias=causal_bias(mesh, "length:128", "memory_length:128"))

With q [batch heads length key] and k, v [batch heads memory_length key] scores are
[batch heads length memory_length]. Names pair rows by themselves, so keys and values
may lack the heads, or have some of several names for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.mixed_precision import in_type_of
from meshtf.names import Names, names_of
from meshtf.names.arguments import check_callables, check_floats, check_ints
from meshtf.ops.common.checks import require_dim, tensor_along
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.nn.softmax import softmax
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.ops.shapes.reshape import split_dim


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    memory_dim: str = "memory_length",
    key_dim: Names = "key",
    bias: Tensor | None = None,
    extra_logit: Tensor | float | None = None,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v: [..., value] for q[..., key].

    Names that q and k or v share pair their rows: batch, heads.

    Args:
      q: queries, [batch heads length key], say.
      k: keys, [batch heads memory_dim key], or some of these names.
      v: values, with memory_dim, and with names that take the place of `key_dim`.
      memory_dim: the name of what is looked at.
      key_dim: the name, or names, over which q and k are multiplied.
      bias: added to the scores, which are q without key_dim, and memory_dim.
      extra_logit: the score of one more row of zeros: who finds nothing may look there.
      scale: default: 1 / sqrt(size of key_dim).
      dropout: what attention weights pass through.
    """
    q, k, v = as_tensor("q", q), as_tensor("k", k), as_tensor("v", v)
    if scale is not None:
        check_floats(scale=scale)
    check_callables(dropout=dropout)
    if bias is not None:
        check_tensors(bias=bias)
    keys = names_of(key_dim, q.shape, k.shape, argument="key_dim")
    require_dim(q.shape, *keys)
    require_dim(k.shape, *keys, memory_dim)
    require_dim(v.shape, memory_dim)
    scale = 1.0 / math.sqrt(q.shape.only(keys).size) if scale is None else scale
    seen = q.shape.without(*keys)
    scores = einsum(
        [q * scale if scale != 1 else q, k], seen + k.shape.only([memory_dim])
    )
    scores = scores if bias is None else scores + in_type_of(scores, bias)
    weights = softmax(scores, memory_dim, extra_logit)
    weights = weights if dropout is None else dropout(weights)
    return einsum([weights, v], seen + v.shape.without(memory_dim, *seen.names))


def compress_mean(x: Tensor, dim: str, factor: int) -> Tensor:
    """Returns x with each `factor` rows of `dim` as one, their mean.

    As a memory it makes attention shorter (Liu et al., 2018, arXiv 1801.10198, section
    4.2.3):

        memory = compress_mean(x, "length", 4)
        visible = causal_mask(mesh, "length:128", "memory_length:32", stride=4)
        y = attention(x, memory, mask_bias(visible), extra_logit=0.0)

    Raises:
      ShapeError: x lacks `dim`, or the factor does not divide it.
    """
    x, dim = tensor_along(x, dim)
    check_ints(factor=factor)
    require_dim(x.shape, dim)
    if factor < 1 or x.shape[dim] % factor:
        raise ShapeError(
            f"{x.shape.dim(dim)!r} cannot be parted into rows of {factor}."
        )
    inner = f"{dim}_in_row"
    return reduce_mean(
        split_dim(x, dim, [(dim, x.shape[dim] // factor), (inner, factor)]), inner
    )
