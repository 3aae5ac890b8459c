"""`map`: a function for each entry along a dimension, recorded once.

    def member(x):                                   # one model of an ensemble
      return mtf.einsum([x, w], "batch;d_out")
    y = mtf.map(member, xs, "ensemble")               # [ensemble, batch, d_out]

With the layout "ensemble:data" each device runs the entries of its shard (see
`partition.sharded_loops`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.names.arguments import as_callable, as_dim
from meshtf.ops.loops.scan import scan

__all__ = ["map"]


def map(fn: Callable[..., Any], xs: Any, dim: str) -> Any:
    """Returns what `fn` returns for each entry of `xs` along a dimension, stacked along it.

    It is like `jax.lax.map`: a loop that is recorded once, and takes the memory of one entry at a
    time. Where the layout shards the dimension, each device runs the entries of its shard; one
    that has fewer than others runs its last one again, and one that has none the first of all. If
    `fn` has `mtf.cond` or `mtf.while_loop`, all devices run all entries, which `mtf.explain`
    notes. Random ops of `fn` draw other numbers for each entry, the same under every layout.

    Where the ops of `fn` take the further dimension, call `fn(xs)`: it is a batch dimension then,
    as under `jax.vmap`, since a dimension that an op does not name passes through it.

    Args:
      fn: a function of one entry: of `xs` without the dimension. It returns tensors in any
        nesting.
      xs: tensors with the dimension, in any nesting.
      dim: the name of the dimension; it is the first dimension of the results.

    Raises:
      ShapeError: `xs` lack `dim`, have several sizes of it, or a result has it as well.
      PlanError: `fn` writes to a variable.
    """
    fn = as_callable("fn", fn)
    dim = as_dim("dim", dim)

    def body(_carry: None, x: Any) -> tuple[None, Any]:
        return None, fn(x)

    _carry, results = scan(body, None, xs, dim=dim)
    return results
