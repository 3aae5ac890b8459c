"""Layouts to check, and which of them are legal.

The rules of legality are implemented here a second time, independently of the library, so
that a wrong check in the library is noticed.

>>> from meshtf.names import Shape
>>> from meshtf.testing.conformance.layouts import all_layouts, is_legal
>>> len(all_layouts(["b", "h"], ["x", "y"]))
25
>>> is_legal([Shape("b:4;h:3")], {"b": "x+y", "h": "z"})
True
>>> is_legal([Shape("b:4;h:4")], {"b": "x", "h": "x"})    # two names on one axis
False
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from meshtf.mesh import Mesh
from meshtf.names import Shape

# The mesh axis by which each sharded dimension is sharded; several axes as "x+y".
Rules = dict[str, str]


def mesh_on(axes: str, layout: str = "", devices: str | Sequence[str] = ()) -> Mesh:
    """Returns a mesh with these axes and layout.

    Args:
      axes: the axes, such as "x:2;y:2"; "": one position.
      layout: the layout, such as "b:x;h:y".
      devices: names of devices that the mesh uses round-robin, or the devices of a live
        mesh in one string, such as "spmd:cpu"; empty: the devices of the local machine.
    """
    if not devices:
        return Mesh(axes, layout)
    if isinstance(devices, str):
        return Mesh(axes, layout, devices=devices)
    size = Mesh(axes).size
    round_robin = [devices[i % len(devices)] for i in range(size)]
    return Mesh(axes, layout, devices=round_robin)


def all_layouts(dims: Sequence[str], axes: Sequence[str]) -> list[Rules]:
    """Returns every way to give each dimension some of the axes or none."""
    layouts = []
    for axes_by_dim in itertools.product(("", *axis_choices(axes)), repeat=len(dims)):
        pairs = zip(dims, axes_by_dim, strict=True)
        layouts.append({dim: axes for dim, axes in pairs if axes})
    return layouts


def axis_choices(axes: Sequence[str]) -> list[str]:
    """Returns each axis and, joined by "+", all combinations of several in all orders."""
    return [
        "+".join(chosen)
        for count in range(1, len(axes) + 1)
        for chosen in itertools.permutations(axes, count)
    ]


def is_legal(shapes: Iterable[Shape], rules: Rules) -> bool:
    """Returns whether in each shape every axis shards at most one dimension.

    Args:
      shapes: the shapes of the tensors.
      rules: the layout.
    """
    for shape in shapes:
        sharded_dims = [name for name in shape.names if name in rules]
        used_axes = [axis for name in sharded_dims for axis in rules[name].split("+")]
        if len(set(used_axes)) < len(used_axes):
            return False
    return True


def layout_text(rules: Rules) -> str:
    """Returns the layout as text, such as "b:x;h:y"."""
    return ";".join(f"{dim}:{axis}" for dim, axis in rules.items())


def sample_layouts(
    layouts: list[Rules], limit: int, rng: np.random.Generator
) -> list[Rules]:
    """Returns all layouts if there are at most `limit`, otherwise `limit` random ones, in
    their order.
    """
    if len(layouts) <= limit:
        return layouts
    indices = sorted(rng.choice(len(layouts), limit, replace=False))
    return [layouts[i] for i in indices]
