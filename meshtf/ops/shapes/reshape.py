"""Other names and shapes for the same elements: rename, flatten, unflatten, reshape,
transpose.

The layout shards a renamed tensor by its new names, so a program reshards by renaming:

    # If the layout is "group:data; experts:data", this is one all_to_all.
    y = mtf.rename(x, {"group": "group_all", "experts_all": "experts"})
    h = mtf.unflatten(x, "d_model", "heads:8;d_head:64")   # [batch, heads, d_head]
    x = mtf.flatten(h, "heads;d_head", "d_model")          # [batch, d_model]

A reshape divides the old and the new shape into corresponding blocks with equal numbers of
elements. In each block only the leading dimension of either shape may be sharded, and both
along the same mesh axes. Then shards are contiguous in both shapes.

    [a:4 b:6 c:4] -> [d:8 e:3 c:4]     blocks a b -> d e and c -> c; a is sharded like d
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    RenamingOp,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    register_operator,
)
from meshtf.graph.arguments import as_tensor
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import Dimension, Names, Shape, ShapeLike, name_of, names_of
from meshtf.names.arguments import as_dim
from meshtf.ops.common.batch_dimensions import record_rename, record_reshape
from meshtf.ops.common.checks import require_dim, require_dim_of_caller, tensor_along


def arrange(x: Any, names: Sequence[str], new_names: Sequence[str]) -> Any:
    """Returns a TensorFlow tensor with its axes in another order.

    Args:
      x: the tensor, [*names]. It is returned as it is if the order is the same.
      names: the name of each axis of x.
      new_names: the same names in the order of the result.
    """
    if tuple(names) == tuple(new_names):
        return x
    axes = {name: axis for axis, name in enumerate(names)}
    order = [axes[name] for name in new_names]
    return tf.transpose(x, order)


class Rename(RenamingOp):
    """x with other names. All names are replaced at once, so that names can be swapped.

    Attributes:
      pairs: an old and a new name for each renamed dimension: ("a", "b"), ("b", "a").
    """

    pairs: tuple[tuple[str, str], ...]
    # A partial sum consists of one addend on each device. If all inputs are partial sums, so
    # is the output.
    linearity = "joint"
    # Test inputs: the attribute `pairs`, then the input's kind of values and shape.
    conformance_samples = (
        Sample(((("a", "c"),),), ("a:4;b:3",)),
        Sample(((("a", "b"), ("b", "a")),), ("a:4;b:8",)),
        Sample(((("a", "c"), ("b", "d")),), ("int b:4;a:2;e:5",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        new_names = dict(self.pairs)
        require_dim(x.shape, *new_names)
        return (Spec(x.shape.rename(new_names), x.dtype),)

    def factor(self, dim: str) -> str:
        # A dimension of x and the dimension of the output that it becomes are one factor:
        # they are sharded in the same way. The factor has the new name.
        return dict(self.pairs).get(dim, dim)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (x,)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        inverse = tuple((new, old) for old, new in self.pairs)
        return [apply(Rename(inverse), dy)]

    def flops(self, *xs: Spec) -> int:
        return 0


class Reshape(RenamingOp):
    """The elements of x, in row-major order, in another shape.

    Attributes:
      old: the shape of x.
      new: the shape of the output.
    """

    old: Shape
    new: Shape
    linearity = "joint"  # if all inputs are partial sums, so is the output
    # Attributes: (old, new).
    conformance_samples = tuple(
        Sample((Shape(old), Shape(new)), (kind_of_values + old,))
        for old, new, kind_of_values in (
            ("a:4;b:8", "a:4;c:4;d:2", ""),
            ("a:4;c:4;d:2", "a:4;b:8", ""),
            ("a:2;b:2;c:4", "ab:4;c:4", ""),
            ("a:4;b:6;c:4", "d:8;e:3;c:4", ""),
            ("a:4;b:8", "b:8;a:4", ""),
            ("a:4;b:8", "b:4;a:8", "int "),
            ("a:1;b:4;c:3", "b:4;d:1;c:3", ""),
            ("a:15;b:2", "c:3;d:5;b:2", "int "),
        )
    )

    def output_specs(self, x: Spec) -> Specs:
        if x.shape != self.old or self.old.size != self.new.size:
            raise ShapeError(
                explain_error(
                    f"a tensor of {x.shape.size} elements cannot become one of "
                    f"{self.new.size}.",
                    required=repr(self.new),
                    way_out="The sizes of both shapes must have the same product.",
                )
            )
        return (Spec(self.new, x.dtype),)

    def _leading(self) -> dict[str, str]:
        """Returns the leading new dimension of each block, by its leading old dimension."""
        old_names = _names_by_start(self.old)
        new_names = _names_by_start(self.new)
        leading = {}
        for start, old_name in old_names.items():
            if start in new_names:
                leading[old_name] = new_names[start]
        return leading

    def factor(self, dim: str) -> str:
        # The leading dimensions of a block, of x and of the output, are one factor. The dot
        # distinguishes another dimension of a block from a dimension of the output that has
        # the same name.
        return self._leading().get(dim, "." + dim)

    def role(self, factor: str) -> Role:
        # What sharding the dimensions of a factor does.
        if factor in self._leading().values():
            return Role.MAP  # the output is sharded like x
        return Role.UNSHARDED

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.reshape(x, context.outputs[0].sizes),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        inverse = Reshape(old=self.new, new=self.old)
        return [apply(inverse, transpose(dy, self.new))]

    def flops(self, *xs: Spec) -> int:
        return 0


def _names_by_start(shape: Shape) -> dict[int, str]:
    """Returns the name of each dimension larger than 1, by its start: the product of the
    sizes of the dimensions before it. It is {} for a shape without elements.

    Where both shapes of a reshape have a dimension with the same start, a block begins.
    """
    names = {}
    start = 1
    for dim in shape:
        if dim.size > 1:
            names[start] = dim.name
        start *= dim.size
    if start == 0:
        return {}
    return names


class Transpose(ElementwiseOp):
    """x with its dimensions in the order of `names`."""

    names: tuple[str, ...]
    linearity = "joint"  # if all inputs are partial sums, so is the output
    # Attribute: names.
    conformance_samples = (
        Sample((("b", "a"),), ("a:4;b:3",)),
        Sample((("c", "a", "b"),), ("a:2;b:4;c:5",)),
        Sample((("b", "c", "a"),), ("int a:2;b:4;c:6",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        if sorted(self.names) != sorted(x.shape.names):
            raise ShapeError(
                f"a transposed tensor has the same names in another order: {x.shape!r} "
                f"cannot become [{' '.join(self.names)}]."
            )
        shape = Shape(x.shape.dim(name) for name in self.names)
        return (Spec(shape, x.dtype),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (arrange(x, context.inputs[0].names, self.names),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [transpose(dy, x.shape)]


def rename(
    x: Tensor, old: Names | Mapping[str, str], new: Names | None = None
) -> Tensor:
    """Returns x with other names: for x [a, b], rename(x, "a", "c") is [c, b].

    Args:
      x: a tensor or variable.
      old: the name or names to replace, or a mapping of new names by old names, as
        {"a": "b", "b": "a"}; all are replaced at once.
      new: the new name or names, unless `old` is a mapping.

    Raises:
      ShapeError: x lacks a name, or a name would occur twice.
    """
    x = as_tensor("x", x)
    if isinstance(old, Mapping):
        mapping = {}
        for old_name, new_name in old.items():
            mapping[as_dim("old", old_name)] = as_dim("new", new_name)
    else:
        mapping = _name_mapping(x, old, () if new is None else new)
    require_dim_of_caller(x.shape, *mapping)
    changes = {
        old_name: new_name
        for old_name, new_name in mapping.items()
        if old_name != new_name
    }
    # For random ops in microbatches, which need the batch indices of renamed dimensions.
    record_rename(x.shape, changes)
    if not changes:
        return x
    return apply(Rename(tuple(changes.items())), x)


def rename_dim(x: Tensor, old: Dimension, new: Dimension) -> Tensor:
    """Returns x [..., old, ...] with the dimension `old` renamed to `new`."""
    if old == new:
        return x
    return rename(x, {old.name: new.name})


def _name_mapping(x: Tensor, old: Names, new: Names) -> dict[str, str]:
    """Returns the new name of each old name, for the arguments of `rename`.

    Raises:
      ShapeError: there are more or fewer new names than old names, or a new name comes with
        another size than the dimension has.
    """
    old_names = names_of(old, x.shape, argument="old")
    no_dims = x.shape.only(())  # x need not have the new names
    new_names = names_of(new, no_dims, argument="new")
    if len(old_names) != len(new_names):
        raise ShapeError(
            f"rename needs a new name for each old one, not {new_names!r} for "
            f"{old_names!r}."
        )
    mapping = dict(zip(old_names, new_names))
    renamed_shape = Shape(
        (new_name, x.shape.get(name)) for name, new_name in mapping.items()
    )
    names_of(new, renamed_shape)  # raises if `new` has a name with another size
    return mapping


def flatten(x: Tensor, dims: Names, new: str) -> Tensor:
    """Returns x with several dimensions merged into one, in row-major order:
    [batch, heads, key] -> [batch, d_model] for dims "heads;key" and new "d_model".

    Args:
      x: a tensor or variable.
      dims: the names of the dimensions to merge.
      new: the name of the merged dimension, which is in place of the first of them.

    Raises:
      ShapeError: x lacks a name, or `new` is another dimension of x.
    """
    x = as_tensor("x", x)
    new = as_dim("new", new)
    names = names_of(dims, x.shape)
    require_dim_of_caller(x.shape, *names)
    # `new` may include a size, as "d_model:512", which is checked and removed.
    new = name_of(new, x.shape.only(names).size)
    if len(names) < 2:
        return rename(x, names, (new,))
    axis = x.shape.index(names[0])
    names_before = [name for name in x.shape.names[:axis] if name not in names]
    names_after = [name for name in x.shape.names[axis:] if name not in names]
    x = transpose(x, (*names_before, *names, *names_after))
    start = len(names_before)
    end = start + len(names)
    merged_dim = Dimension(new, x.shape.only(names).size)
    old_dims = list(x.shape)
    new_dims = [*old_dims[:start], merged_dim, *old_dims[end:]]
    return _reshape(x, new_dims, old=old_dims[start:end], new=[merged_dim])


def unflatten(x: Tensor, dim: str, shape: ShapeLike) -> Tensor:
    """Returns x with a dimension split into several: for x [batch, d],
    unflatten(x, "d", "heads:8;key:64") is [batch, heads, key].

    Args:
      x: a tensor or variable.
      dim: the name of the dimension to split.
      shape: the dimensions in its place, in row-major order.

    Raises:
      ShapeError: x lacks `dim`, or the sizes do not multiply to its size.
    """
    x, dim = tensor_along(x, dim)
    new_dims = Shape(shape)
    if new_dims.size != x.shape[dim]:
        raise ShapeError(
            explain_error(
                f'dimension "{dim}" of size {x.shape[dim]} cannot be split into '
                f"{new_dims!r}, which has {new_dims.size} elements.",
                tensor=repr(x.shape),
            )
        )
    axis = x.shape.index(dim)
    old_dims = list(x.shape)
    new_shape = [*old_dims[:axis], *new_dims, *old_dims[axis + 1 :]]
    return _reshape(x, new_shape, old=[old_dims[axis]], new=list(new_dims))


def reshape(x: Tensor, shape: ShapeLike) -> Tensor:
    """Returns the elements of x, in row-major order, as [*shape].

    Raises:
      ShapeError: the shapes have different numbers of elements.
    """
    x = as_tensor("x", x)
    return _reshape(x, shape, old=list(x.shape), new=list(Shape(shape)))


def _reshape(
    x: Tensor, shape: ShapeLike, *, old: Sequence[Dimension], new: Sequence[Dimension]
) -> Tensor:
    """Returns the elements of x as [*shape].

    Args:
      x: the tensor.
      shape: the shape of the result.
      old: the dimensions of x that change.
      new: the dimensions of the result in their place.
    """
    new_shape = Shape(shape)
    if new_shape.sizes == x.shape.sizes:
        return rename(x, dict(zip(x.shape.names, new_shape.names)))
    y = apply(Reshape(old=x.shape, new=new_shape), x)
    # For random ops in microbatches, which need the batch indices of new dimensions.
    record_reshape(old, new)
    return y


def transpose(x: Tensor, dims: Names) -> Tensor:
    """Returns x as [*dims], with its dimensions in this order.

    Raises:
      ShapeError: `dims` are not the names of x.
    """
    x = as_tensor("x", x)
    names = names_of(dims, x.shape)
    if names == x.shape.names:
        return x
    return apply(Transpose(names), x)


# For modules of folders that come before this one in the order of imports.
register_operator("transpose", transpose)
