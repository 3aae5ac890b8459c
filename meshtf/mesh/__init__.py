"""Meshes of devices, layouts (which dimension is sharded along which mesh axis), and the
placement of a tensor on a mesh (which axes shard which of its dimensions).

>>> from meshtf.mesh import Mesh
>>> mesh = Mesh("data:4;model:2", layout="batch:data;d_ff:model")
>>> mesh.size, mesh.layout
(8, batch:data; d_ff:model)
"""

from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.layout_use import LayoutUse
from meshtf.mesh.mesh import NO_CHANGES, Mesh
from meshtf.mesh.placement import Placement
from meshtf.mesh.state import OnStage, Partial, Replicated, Sharded, State, Varying

__all__ = [
    "OnStage",
    "NO_CHANGES",
    "Layout",
    "LayoutLike",
    "LayoutUse",
    "Mesh",
    "Partial",
    "Placement",
    "Sharded",
    "State",
    "Replicated",
    "Varying",
]
