"""Layouts of a region of the code, and of one tensor (GShard, arXiv:2006.16668, 3.2).

    with mtf.layout("*:; d_ff:model"):          # all tensors made inside
      h = layer(x)
    h = mtf.split(h, "length", "model")         # one tensor: one dimension
    h = mtf.shard(h, {"batch": "data"})         # one tensor: all dimensions
    h = mtf.replicate(h)                        # one tensor: no dimension is sharded

A layout rule such as "d_ff:model" shards the dimension d_ff along the mesh axis model. The
active rules are those of the mesh, changed by each enclosing region: "d_ff:" removes the rule
of d_ff, and "*:" all rules. All functions of this file change the active rules for the ops
that are applied inside. The gradient of a tensor has the layout of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from meshtf.errors import LayoutError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    ReshardOp,
    Sample,
    Source,
    Tensor,
    apply,
    context,
    current,
)
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Layout, LayoutLike
from meshtf.names.arguments import as_dim, as_int
from meshtf.ops.common.checks import did_you_mean
from meshtf.ops.common.op_bases import _Identity


def layout(changes: LayoutLike) -> AbstractContextManager[Any]:
    """Changes the layout of tensors and variables that are made inside a `with` block.

    Tensors that enter or leave the block are resharded, and gradients have the layout of
    the forward tensors.

    Args:
      changes: changes of the active rules: "heads:model" adds or replaces a rule,
        "heads:" removes one, "*:" removes all.

    Raises:
      ParseError: `changes` cannot be read.
    """
    # The region, of the context in which ops are applied: the changes of rules by all
    # enclosing blocks.
    region = current().region.then(Layout.changes(changes))
    return context(region=region)


def stage(index: int) -> AbstractContextManager[Any]:
    """Places tensors and variables that are made inside a `with` block on one pipeline
    stage.

    Stages are the coordinates along the mesh's axis of stages (`Mesh(stages=...)`, by
    default the axis "stage"). Inputs on other stages are sent to this one. Gradients are
    computed on the stage of the forward op. On a mesh without such an axis there is one
    stage, and nothing changes.

    Args:
      index: the index of the stage.

    Raises:
      MeshError: the mesh of an op or variable inside has too few stages. The op or variable
        raises it.
    """
    return context(stage=as_int("index", index))


class Relayout(_Identity, ReshardOp):
    """The inputs, which the runtime reshards as the active layout rules say.

    Attributes:
      of_gradient: whether cotangents are resharded as well.
    """

    of_gradient: bool = True
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (
        Sample(inputs=("b:4;h:8",)),
        Sample(inputs=("b:3;h:8;k:2",)),
        Sample(inputs=("int h:4",)),
        Sample(inputs=("bool b:4",)),
    )

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return [apply(Relayout(), dy) if self.of_gradient else dy]


def shard(x: Any, layout: LayoutLike) -> Tensor:
    """Returns x [...], sharded exactly as `layout` says.

    Args:
      x: a tensor.
      layout: a mesh axis for each dimension to shard, or several, such as {"batch":
        "data+fsdp"}. Along all other axes the result is replicated.

    Raises:
      ParseError: `layout` cannot be read.
      ShapeError: x lacks a dimension of `layout`.
      LayoutError: two dimensions go to one axis, the mesh is strict and the axis does not
        divide a size, or the mesh lacks the axis and it is not one of the mesh's
        `optional_axes`. On a mesh of size 1 all axes may be absent.
    """
    x = as_tensor("x", x)
    rules = Layout.changes(layout)
    _check_names(x, [name for name, _ in rules.items()])
    for name, axes in rules.items():
        _check_axes_exist(x, name, axes)
    return _reshard(x, Layout.changes("*:").then(rules))


def replicate(x: Any) -> Tensor:
    """Returns x [...], replicated on all devices of its mesh."""
    return _reshard(x, Layout.changes("*:"))


def relayout(x: Tensor) -> Tensor:
    """Returns x [...], sharded as the active rules say, whatever placements the ops before
    and after prefer. The cotangent may have any placement.
    """
    return apply(Relayout(of_gradient=False), as_tensor("x", x))


def split(x: Any, dim: str, axis: str) -> Tensor:
    """Returns x [..., dim, ...] with `dim` sharded along `axis`, and with the other
    dimensions sharded as the active rules say.

    To divide a tensor into several tensors, see `chunk`.

    Args:
      x: a tensor.
      dim: the name of a dimension of x.
      axis: the name of an axis of the mesh, or of several, such as "data+fsdp".

    Raises:
      ShapeError: x has no such dimension.
      LayoutError: `axis` is no name, the mesh is strict and it does not divide the size, or
        the mesh lacks the axis and it is not one of the mesh's `optional_axes`. On a mesh
        of size 1 all axes may be absent.
    """
    x = as_tensor("x", x)
    dim = as_dim("dim", dim, x.shape)
    if not isinstance(axis, str):
        raise LayoutError(
            explain_error(
                f"mtf.split shards a dimension along an axis of the mesh; {axis!r} is "
                "no name of one.",
                tensor=repr(x.shape),
                source=Source.of_caller(),
                way_out=f'To get several tensors, write mtf.chunk(x, "{dim}", '
                f"{axis!r}).",
            )
        )
    _check_names(x, [dim])
    axes = axis.split("+")
    _check_axes_exist(x, dim, axes)
    # An axis shards at most one dimension, so no other dimension keeps one of these: "name:"
    # is the rule that shards a dimension along no axis.
    changes = {}
    for name in x.shape.names:
        axes_of_name = _axes_of(x, name)
        if not set(axes).isdisjoint(axes_of_name):
            changes[name] = "+".join(a for a in axes_of_name if a not in axes)
    changes[dim] = axis
    return _reshard(x, Layout.changes(changes))


def _axes_of(x: Any, name: str) -> tuple[str, ...]:
    """Returns the mesh axes along which the active rules shard dimension `name` of x."""
    # The changes of rules by all enclosing blocks.
    region = current().region
    layout = region if x.mesh is None else x.mesh.layout_in(region)
    return layout.axes(name)


def _check_axes_exist(x: Tensor, dim: str, axes: Iterable[str]) -> None:
    """Raises LayoutError if the mesh of x lacks one of the axes and it is not optional.

    Args:
      x: the tensor.
      dim: the name of the dimension to be sharded, for the error.
      axes: the names of the axes.
    """
    mesh = x.mesh
    if mesh is None or mesh.size == 1:
        return
    for axis in axes:
        if axis not in (*mesh.axes, *mesh.optional_axes):
            suggestion = did_you_mean(axis, mesh.axes)
            raise LayoutError(
                explain_error(
                    f'"{dim}" cannot be sharded along "{axis}": the mesh has no axis '
                    f"{axis!r}.{suggestion}",
                    mesh=str(mesh),
                    tensor=repr(x.shape),
                    source=Source.of_caller(),
                    way_out="Name one of its axes; if it may be absent: Mesh(..., "
                    f'optional_axes="{axis}").',
                )
            )


def _reshard(x: Any, changes: Layout) -> Tensor:
    """Returns x, resharded as the active rules with these changes say."""
    with context(region=current().region.then(changes)):
        return apply(Relayout(), x)


def _check_names(x: Any, names: Iterable[str]) -> None:
    """Raises ShapeError if x lacks a dimension of one of the names."""
    for name in names:
        if name not in x.shape:
            suggestion = did_you_mean(name, x.shape.names)
            raise ShapeError(
                explain_error(
                    f'the tensor has no dimension "{name}".{suggestion}',
                    tensor=repr(x.shape),
                    source=Source.of_caller(),
                    way_out="Name one of its dimensions.",
                )
            )
