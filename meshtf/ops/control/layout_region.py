"""Finer layouts: of a region, and of one tensor in GShard's words (arXiv 2006.16668,
section 3.2).

    with mtf.layout("*:; d_ff:model"):          # a region: all that is made inside
      h = layer(x)
    h = mtf.split(h, "length", "model")         # one tensor, otherwise laid out than by the rules
    h = mtf.shard(h, {"batch": "data"})         # exactly so
    h = mtf.replicate(h)                        # whole everywhere

All of it is one thing: the rules in force where a node is made. The gradient of a
tensor that is laid out so is laid out likewise.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from meshtf.errors import LayoutError, ShapeError, explain_error, near_misses
from meshtf.graph import (
    ReshardOp,
    Sample,
    Source,
    Spec,
    Tensor,
    apply,
    context,
    current,
)
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Layout, LayoutLike
from meshtf.names.arguments import as_dim, as_int


def layout(changes: LayoutLike) -> AbstractContextManager[Any]:
    """Lays out otherwise what is made inside a `with` block: tensors, and variables.

    Tensors that cross the border move by themselves, and gradients follow the forward
    choice.

    Args:
      changes: rules on top of those in force: "heads:model" adds or replaces one,
        "heads:" takes one away, "*:" all of them.

    Raises:
      ParseError: `changes` cannot be read, or a rule names several axes.
    """
    return context(region=current().region.then(_checked(changes)))


def stage(number: int) -> AbstractContextManager[Any]:
    """Places what is made inside a `with` block, variables too, at one stage of the
    mesh's axis for stages; what is used from elsewhere is sent there.

    Gradients are made where their ops ran. Without such an axis (`Mesh(stages=...)`, by
    default one called "stage") all stages are one.

    Raises:
      MeshError: an op or a variable inside meets a mesh with fewer stages.
    """
    return context(stage=as_int("number", number))


class Lay(ReshardOp):
    """The input, brought at once to where the rules in force say."""

    samples = (
        Sample((), ("b:4;h:8",)),
        Sample((), ("b:3;h:8;k:2",)),
        Sample((), ("int h:4",)),
        Sample((), ("bool b:4",)),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        return xs

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        return [apply(Lay(), dy)]


def shard(x: Any, layout: LayoutLike) -> Tensor:
    """Returns x cut exactly as `layout` says, such as {"batch": "data"}; all else is
    whole.

    Raises:
      ParseError: `layout` cannot be read, or a rule names several axes.
      ShapeError: x lacks a dimension of `layout`.
      LayoutError: two dimensions go to one axis, a size does not divide, or the mesh
        lacks the axis and does not name it among its `optional_axes`; on one position
        all axes may be absent.
    """
    x = as_tensor("x", x)
    rules = _checked(layout, tensor=repr(x.shape))
    _check_names(x, (name for name, _ in rules.items()))
    for name, axes in rules.items():
        _check_there(x, name, axes)
    return _lay(x, Layout.changes("*:").then(rules))


def replicate(x: Any) -> Tensor:
    """Returns x whole on every position."""
    return _lay(x, Layout.changes("*:"))


def split(x: Any, dim: str, axis: str) -> Tensor:
    """Returns x with `dim` cut along `axis`, and other dimensions as the rules in force
    say.

    To cut a tensor into several tensors, see `chunk`.

    Raises:
      ShapeError: x has no such dimension.
      LayoutError: `axis` is no name, the size does not divide, or the mesh lacks the
        axis and does not name it among its `optional_axes`; on one position all axes
        may be absent.
    """
    x = as_tensor("x", x)
    dim = as_dim("dim", dim, x.shape)
    if not isinstance(axis, str):
        raise LayoutError(
            explain_error(
                f"mtf.split cuts a dimension along an axis of the mesh; {axis!r} is no "
                "name of one.",
                tensor=repr(x.shape),
                **{"from": Source.of_caller()},
                way_out=f'To get several tensors, write mtf.chunk(x, "{dim}", '
                f"{axis!r}).",
            )
        )
    _check_names(x, [dim])
    _check_there(x, dim, (axis,))
    return _lay(
        x,
        Layout.changes(
            {name: "" for name in x.shape.names if _axes(x, name) == (axis,)}
            | {dim: axis}
        ),
    )


def _axes(x: Any, name: str) -> tuple[str, ...]:
    layout = current().region if x.mesh is None else x.mesh.layout_in(current().region)
    return layout.axes(name)


def _check_there(x: Tensor, dim: str, axes: Iterable[str]) -> None:
    """Refuses axes that the mesh lacks, unless they may be absent. Raises
    LayoutError.
    """
    mesh = x.mesh
    if mesh is None or mesh.size == 1:
        return
    for axis in axes:
        if axis not in (*mesh.axes, *mesh.optional_axes):
            close = near_misses(axis, mesh.axes)
            raise LayoutError(
                explain_error(
                    f'"{dim}" cannot be sharded along "{axis}": the mesh has no axis '
                    f"{axis!r}." + (f" Did you mean {close}?" if close else ""),
                    mesh=repr(mesh),
                    tensor=repr(x.shape),
                    **{"from": Source.of_caller()},
                    way_out="Name one of its axes; if it may be absent: Mesh(..., "
                    f'optional_axes="{axis}").',
                )
            )


def _checked(changes: LayoutLike, **came: object) -> Layout:
    rules = Layout.changes(changes)
    rules.check_axes(**came, **{"from": Source.of_caller()})
    return rules


def _lay(x: Any, changes: Layout) -> Tensor:
    with context(region=current().region.then(changes)):
        return apply(Lay(), x)


def _check_names(x: Any, names: Iterable[str]) -> None:
    for name in names:
        if name not in x.shape:
            close = near_misses(name, x.shape.names)
            raise ShapeError(
                explain_error(
                    f'the tensor has no dimension "{name}".'
                    + (f" Did you mean {close}?" if close else ""),
                    tensor=repr(x.shape),
                    **{"from": Source.of_caller()},
                    way_out="Name one of its dimensions.",
                )
            )
