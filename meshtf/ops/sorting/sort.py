"""sort and argsort along a dimension, stable among equal elements.

    y = mtf.sort(x, "length")                            # the smallest first
    order = mtf.argsort(scores, "items", descending=True)
    z = mtf.take_along_axis(x, order, "items")

Where axes divide the dimension, there are two algorithms. Neither gathers it:

    if another dimension can be sharded instead   all-to-all, a local sort (`Sort`), and
                                                  all-to-all back
    if no other dimension can be sharded          each device sorts its shard; then neighbours
                                                  merge their shards (`ops.sorting.merge_sort`),
                                                  in as many iterations as there are shards

The second algorithm moves about as many bytes as an all-gather, and each iteration waits for
a neighbour, but a device stores at most three shards. To sort a long dimension by the first
algorithm, have another dimension that the mesh axis divides and that is not sharded.

If axes do not divide the dimension, `Sort` runs, for which the dimension is not sharded.
"""

from __future__ import annotations

from meshtf.graph import Tensor, apply_all, current
from meshtf.names.arguments import as_bool
from meshtf.ops.common.checks import tensor_along
from meshtf.ops.sorting.merge_sort import merge_sorted
from meshtf.ops.sorting.sort_op import Sort


def sort(x: Tensor, dim: str, descending: bool = False) -> Tensor:
    """Returns x [..., dim, ...] sorted along `dim`, the smallest first.

    NaN is larger than all numbers, as in NumPy and JAX. All NaN are equal, as 0.0 and -0.0
    are.

    Args:
      x: a tensor of floats or integers.
      dim: the name of the dimension along which x is sorted.
      descending: whether the largest comes first.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x has no order.
    """
    values, _ = _sort_with_order(x, dim, descending)
    return values


def argsort(x: Tensor, dim: str, descending: bool = False) -> Tensor:
    """Returns the index in x of each element of `sort(x, dim)`, int32 [..., dim, ...].

    Indices of equal elements ascend. Arguments and errors are those of `sort`.
    """
    _, order = _sort_with_order(x, dim, descending)
    return order


def _sort_with_order(x: Tensor, dim: str, descending: bool) -> tuple[Tensor, Tensor]:
    """Returns the results of `sort` and `argsort`."""
    x, dim = tensor_along(x, dim)
    descending = as_bool("descending", descending)
    num_shards = _shards_to_merge(x, dim)
    if num_shards > 1:
        return merge_sorted(x, dim, blocks=num_shards, descending=descending)
    values, order = apply_all(Sort(dim, descending), x)
    return values, order


def _shards_to_merge(x: Tensor, dim: str) -> int:
    """Returns the number of shards of `dim` by the active layout rules; 1 if another
    dimension can be sharded instead, or if shards of `dim` end with padding.
    """
    mesh = x.mesh
    if mesh is None:
        return 1
    # The region: the changes of the mesh's layout by the enclosing `with mtf.layout` blocks.
    region = current().region
    placement, _ = mesh.place(x.shape, mesh.layout_in(region))
    num_shards = mesh.group_size(*placement.axes_of(dim))
    if x.shape[dim] % num_shards:
        return 1  # blocks of a merge have equal sizes
    for other_dim in x.shape:
        is_sharded = other_dim.name in placement.shards
        if not is_sharded and other_dim.size % num_shards == 0:
            return 1
    return num_shards
