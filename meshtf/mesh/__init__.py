"""Meshes of devices, layouts, and the state of a tensor on a mesh.

>>> from meshtf.mesh import Mesh
>>> mesh = Mesh("data:4;model:2", layout="batch:data;d_ff:model")
>>> mesh.size, mesh.layout
(8, batch:data; d_ff:model)
"""

from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.layout_use import LayoutUse
from meshtf.mesh.mesh import EVERYWHERE, Mesh
from meshtf.mesh.state import At, Pending, Placement, Split, State, Whole

__all__ = [
    "At",
    "EVERYWHERE",
    "Layout",
    "LayoutLike",
    "LayoutUse",
    "Mesh",
    "Pending",
    "Placement",
    "Split",
    "State",
    "Whole",
]
