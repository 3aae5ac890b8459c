"""Layouts to check, and which of them are legal.

The rules of legality are implemented here a second time, independently of the library, so
that a wrong check in the library is noticed.

>>> from meshtf.names import Shape
>>> from meshtf.testing.conformance.layouts import all_layouts, is_legal
>>> len(all_layouts(["b", "h"], ["x", "y"]))
9
>>> is_legal([Shape("b:4;h:3")], {"x": 2}, {"h": "x"})       # 3 does not divide
False
>>> is_legal([Shape("b:4;h:4")], {"x": 2}, {"b": "x", "h": "x"})    # two names on one axis
False
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meshtf.mesh import Mesh
from meshtf.names import Shape

Rules = dict[str, str]  # the mesh axis by which each sharded dimension is sharded


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
    """Returns every way to give each dimension one axis or none."""
    layouts = []
    for axis_by_dim in itertools.product((None, *axes), repeat=len(dims)):
        pairs = zip(dims, axis_by_dim, strict=True)
        layouts.append({dim: axis for dim, axis in pairs if axis})
    return layouts


def is_legal(shapes: Iterable[Shape], axes: Mapping[str, int], rules: Rules) -> bool:
    """Returns whether in each shape every axis shards at most one dimension, and the size
    of each sharded dimension is a multiple of the size of its axis.

    Args:
      shapes: the shapes of the tensors.
      axes: the size of each mesh axis.
      rules: the layout.
    """
    for shape in shapes:
        sharded_dims = [name for name in shape.names if name in rules]
        used_axes = [rules[name] for name in sharded_dims]
        if len(set(used_axes)) < len(used_axes):
            return False
        if any(shape[name] % axes[rules[name]] for name in sharded_dims):
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
