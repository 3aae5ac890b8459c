"""Layouts to try, and which of them are legal: told here once more, apart from the
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


def mesh_on(axes: str, layout: str = "", devices: Sequence[str] = ()) -> Mesh:
    """Returns a mesh whose positions lie on `devices` in turn; without any, on what
    there is.
    """
    size = Mesh(axes).size
    return Mesh(
        axes,
        layout,
        devices=[devices[i % len(devices)] for i in range(size)] if devices else None,
    )


def all_layouts(dims: Sequence[str], axes: Sequence[str]) -> list[Rules]:
    """Returns every way to give each dimension one axis or none."""
    choices = itertools.product((None, *axes), repeat=len(dims))
    return [
        {dim: axis for dim, axis in zip(dims, chosen, strict=True) if axis}
        for chosen in choices
    ]


def is_legal(shapes: Iterable[Shape], axes: Mapping[str, int], rules: Rules) -> bool:
    """Whether each shape gives an axis to one dimension at most, and every cut size
    divides.
    """
    for shape in shapes:
        taken = [rules[name] for name in shape.names if name in rules]
        if len(set(taken)) < len(taken):
            return False
        if any(
            shape[name] % axes[rules[name]] for name in shape.names if name in rules
        ):
            return False
    return True


def spell(rules: Rules) -> str:
    """Returns rules as the string that a mesh takes."""
    return ";".join(f"{dim}:{axis}" for dim, axis in rules.items())


def pick(layouts: list[Rules], limit: int, rng: np.random.Generator) -> list[Rules]:
    """Returns all layouts if they are at most `limit`, else as many drawn ones."""
    if len(layouts) <= limit:
        return layouts
    return [layouts[i] for i in sorted(rng.choice(len(layouts), limit, replace=False))]
