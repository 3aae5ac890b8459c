"""Layouts to check, and which of them are legal: the rules are stated independently of the
library.

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

Rules = dict[str, str]  # dimension -> axis


def mesh_on(axes: str, layout: str = "", devices: str | Sequence[str] = ()) -> Mesh:
    """Returns a mesh that uses a list of devices round-robin, or those that a string
    such as "spmd:cpu" describes; if empty, the devices of this machine.
    """
    if not devices:
        return Mesh(axes, layout)
    if isinstance(devices, str):
        return Mesh(axes, layout, devices=devices)
    size = Mesh(axes).size
    return Mesh(axes, layout, devices=[devices[i % len(devices)] for i in range(size)])


def all_layouts(dims: Sequence[str], axes: Sequence[str]) -> list[Rules]:
    """Returns every way to give each dimension one axis or none."""
    choices = itertools.product((None, *axes), repeat=len(dims))
    return [
        {dim: axis for dim, axis in zip(dims, chosen, strict=True) if axis}
        for chosen in choices
    ]


def is_legal(shapes: Iterable[Shape], axes: Mapping[str, int], rules: Rules) -> bool:
    """Returns whether in each shape every axis shards at most one dimension, and the sizes
    of all sharded dimensions are divisible by the axis size.
    """
    for shape in shapes:
        sharded_dims = [name for name in shape.names if name in rules]
        used_axes = [rules[name] for name in sharded_dims]
        if len(set(used_axes)) < len(used_axes):
            return False
        if any(shape[name] % axes[rules[name]] for name in sharded_dims):
            return False
    return True


def spell(rules: Rules) -> str:
    """Returns rules as a layout string."""
    return ";".join(f"{dim}:{axis}" for dim, axis in rules.items())


def pick(layouts: list[Rules], limit: int, rng: np.random.Generator) -> list[Rules]:
    """Returns all layouts if there are at most `limit`, otherwise `limit` random ones."""
    if len(layouts) <= limit:
        return layouts
    return [layouts[i] for i in sorted(rng.choice(len(layouts), limit, replace=False))]
