"""Reductions and updates by integer index: segment_sum, segment_max, segment_min, segment_mean,
scatter, scatter_add, scatter_update.

    best = mtf.math.segment_max(scores, ids, "bins:16")           # [batch], [batch] -> [bins]
    y = mtf.scatter(updates, ids, "slots:8")                 # [batch d], [batch] -> [slots d]
    cache = mtf.scatter_update(cache, ids, updates, "slots") # cache, with updates at ids

Updates with a negative id are dropped. An id that is too large is an error under every
layout, as in gather; under XLA its update is dropped. If several updates have one id,
scatter and scatter_update take the last of them, under every layout. Where the updated
dimension is sharded, each device computes its shard of the result. Where the updates are
sharded, devices reduce their results by maximum or by sum.
"""

from __future__ import annotations

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Dimension,
    Names,
    Shape,
    ShapeLike,
    accumulation_dtype,
    names_of,
)
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import (
    Segment,
    gather_with_bounds,
)
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import flatten, reshape, transpose
from meshtf.ops.variables.fill import ones

_SCATTERED = ".updates"  # the temporary name of the merged dimensions of updates


def segment_dim_and_output_shape(
    x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names
) -> tuple[str, Shape]:
    """Returns the attributes `dim` and `output_shape` of a segment op.

    Args:
      x: the values, [*batch, *reduced, *rest].
      ids: the segment ids, [*batch, *reduced].
      dim: the new dimension, such as "bins:16".
      batch: the names of ids that are not reduced.

    Returns:
      The name of the new dimension, and the shape of the output, [*batch, dim, *rest].
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    segment_dim = single_dim(dim)
    batch_names = names_of(batch, ids.shape, x.shape, argument="batch")
    require_dim_of_caller(ids.shape, *batch_names)
    batch_dims = [ids.shape.dim(name) for name in batch_names]
    rest_dims = x.shape.without(*ids.shape.names)
    return segment_dim.name, Shape([*batch_dims, segment_dim, *rest_dims])


def segment_sum(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns sums of x by segment, [*batch, dim, *(x without names of ids)]: element i of
    the new `dim` is the sum of x where ids are i.

    Negative ids are ignored. An id that is too large is an error, as in `gather`; under
    XLA it is ignored.

    Args:
      x: the values, a tensor with all names of ids.
      ids: the segment of each value, an integer tensor.
      dim: the new dimension, such as "bins:16".
      batch: the names of ids that are not summed over.

    Raises:
      ShapeError: x lacks a name of ids, or has `dim`.
      DTypeError: ids are not integers, or x is bool.
    """
    dim_name, output_shape = segment_dim_and_output_shape(x, ids, dim=dim, batch=batch)
    return apply(Segment("sum", dim_name, output_shape), x, ids)


def segment_max(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns maxima of x by segment, [*batch, dim, *(x without names of ids)]: element i
    of the new `dim` is the largest of the elements of x where ids are i.

    Empty segments are -inf, or the smallest integer. Equal largest elements share the
    gradient. Whether a segment with NaN gives NaN is not defined: `mtf.check_numerics`
    finds NaN before.

    Args:
      x: a tensor with all dimensions of ids.
      ids: the segment of each element, integers; elements with negative ids are ignored.
      dim: the dimension of the segments, such as "segment:8".
      batch: names of ids that the result keeps: each of their entries has segments of its
        own.

    Raises:
      ShapeError, DTypeError: as in `segment_sum`.
    """
    return _segment_extreme("max", x, ids, dim, batch)


def segment_min(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns minima of x by segment, [*batch, dim, *(x without names of ids)]: element i
    of the new `dim` is the smallest of the elements of x where ids are i.

    Empty segments are inf, or the largest integer. Equal smallest elements share the
    gradient. NaN, arguments and errors are as in `segment_max`.
    """
    return _segment_extreme("min", x, ids, dim, batch)


def _segment_extreme(
    kind: str, x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names
) -> Tensor:
    """Returns the maxima or minima by segment, for the arguments of `segment_max`."""
    dim_name, output_shape = segment_dim_and_output_shape(x, ids, dim=dim, batch=batch)
    return apply(Segment(kind, dim_name, output_shape), x, ids)


def segment_mean(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns means of x by segment, [*batch, dim, *(x without names of ids)]; 0 for empty
    segments.

    x is a tensor of floats. Arguments and errors are those of `segment_sum`.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    # In bfloat16, counts would stop at 256.
    dtype = accumulation_dtype(x.dtype)
    count = segment_sum(ones(ids.mesh, ids.shape, dtype), ids, dim, batch)
    total = segment_sum(cast(x, dtype), ids, dim, batch)
    mean = total / maximum(count, 1.0)
    return cast(mean, x.dtype)


def scatter(updates: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns updates placed by index, [*batch, dim, *(updates without names of ids)]:
    element i of the new `dim` is the last update whose id is i, or 0 if there is none.

    Arguments are those of `segment_sum`, which adds updates of the same id.

    Raises:
      ShapeError: updates lack a name of ids, or have `dim`.
      DTypeError: ids are not integers.
    """
    updates = as_tensor("updates", updates)
    ids = as_tensor("ids", ids)
    dim_name, output_shape = segment_dim_and_output_shape(
        updates, ids, dim=dim, batch=batch
    )
    y, _ = _last_updates(updates, ids, dim_name, output_shape)
    return y


def scatter_add(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x with updates added at the indices `ids` of `dim`; all updates with the same
    id are added.

    Args:
      x: a tensor [*batch, dim, *rest], in any order.
      ids: an integer tensor [*batch, *scattered]; names that x has too are batch
        dimensions.
      updates: a tensor [*batch, *scattered, *rest], in any order.
      dim: the name of the dimension of x that ids index.

    Raises:
      ShapeError: the shapes do not fit.
      DTypeError: ids are not integers, or the types of x and updates differ.
    """
    x, ids, updates = _checked_updates(x, ids, updates, dim)
    return x + apply(Segment("sum", dim, x.shape), updates, ids)


def scatter_update(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x [..., dim, ...] with the elements at the indices `ids` of `dim` replaced by
    updates; the last of several updates with the same id counts.

    Arguments and errors are those of `scatter_add`.
    """
    x, ids, updates = _checked_updates(x, ids, updates, dim)
    new_values, update_index = _last_updates(updates, ids, dim, x.shape)
    is_updated = update_index >= 0
    return transpose(where(is_updated, new_values, x), x.shape)


def _last_updates(
    updates: Tensor, ids: Tensor, dim: str, output_shape: Shape
) -> tuple[Tensor, Tensor]:
    """Returns the last update of each element of `dim`, and the index of that update.

    Args:
      updates: the updates, [*batch, *scattered, *rest].
      ids: the index of each update in `dim`, [*batch, *scattered].
      dim: the name of the updated dimension.
      output_shape: the shape of the result, [*batch, dim, *rest].

    Returns:
      The updates, of shape `output_shape`; 0 where there is none. Their indices in the merged
      scattered dimensions, [*batch, dim]; negative where there is none.
    """
    scattered_names = [name for name in ids.shape.names if name not in output_shape]
    ids = _merge_scattered(ids, scattered_names)
    updates = _merge_scattered(updates, scattered_names)
    (update_dim,) = (
        ids_dim for ids_dim in ids.shape if ids_dim.name not in output_shape
    )
    # The last update of an element is the maximum of the indices of its updates.
    indices = broadcast(index_range(ids.mesh, update_dim), ids.shape)
    batch = output_shape.only(ids.shape.names)
    last_op = Segment("max", dim, batch + output_shape.dim(dim))
    last_update_index = apply(last_op, indices, ids)
    new_values = gather_with_bounds(
        updates, last_update_index, update_dim.name, out_of_range="zeros"
    )
    return transpose(new_values, output_shape), last_update_index


def _merge_scattered(x: Tensor, scattered_names: list[str]) -> Tensor:
    """Returns x with the dimensions `scattered_names` merged into one, or with an added dimension
    of size 1 if there are none.
    """
    if not scattered_names:
        return reshape(x, [Dimension(_SCATTERED, 1), *x.shape])
    if len(scattered_names) == 1:
        return x
    return flatten(x, scattered_names, _SCATTERED)


def _checked_updates(
    x: Tensor, ids: Tensor, updates: Tensor, dim: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the arguments of `scatter_add`. Raises ShapeError if their shapes do not fit."""
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    updates = as_tensor("updates", updates)
    require_dim_of_caller(x.shape, dim)
    expected = ids.shape + x.shape.without(dim, *ids.shape.names)
    if dim in ids.shape or set(expected) != set(updates.shape):
        raise ShapeError(
            explain_error(
                f'the updates along "{dim}" must have the dimensions of ids and the '
                "remaining ones of x.",
                x=repr(x.shape),
                ids=repr(ids.shape),
                updates=repr(updates.shape),
                way_out=f"Bring them to {expected!r}, in any order.",
            )
        )
    return x, ids, updates
