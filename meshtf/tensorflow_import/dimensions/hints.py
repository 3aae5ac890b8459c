"""Names that dimensions may get from arguments and variables, and how far each is trusted."""

from __future__ import annotations

from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.graph.state import path_of

# A hint: how far it is trusted (a smaller number is more), and the name.
Hint = tuple[int, str]
KNOWN, GIVEN, ROLE, TABLE, LAYER, POSITION = -1, 0, 1, 2, 4, 6


def hints_of(value: Value) -> list[list[Hint]]:
    """Returns names for each axis of an argument or a variable."""
    if value.kind == "variable":
        path = path_of(value.variable)
        return [
            _of_variable(path, k, len(value.shape)) for k in range(len(value.shape))
        ]
    return [[(GIVEN, name)] for name in _of_argument(value)]


def _of_argument(value: Value) -> list[str]:
    rank = len(value.shape)
    if rank == 2 and not value.dtype.is_floating:
        return ["batch", "length"]
    return {
        0: [],
        1: ["batch"],
        2: ["batch", "features"],
        3: ["batch", "length", "features"],
        4: ["batch", "height", "width", "channels"],
    }.get(rank, ["batch", *(f"dim_{k}" for k in range(1, rank))])


def _of_variable(path: str, axis: int, rank: int) -> list[Hint]:
    """Returns the hints for an axis of a variable, by its path ("dense_2/kernel")."""
    *layers, leaf = path.split("/")
    layer = "".join(c for c in (layers[-1] if layers else "") if not c.isdigit())
    layer = layer.strip("_") or leaf
    if "embedding" in leaf:
        if axis == 1:
            return [(TABLE, "d_model")]
        for role in ("position", "segment"):
            if role in path:
                return [(ROLE, role)]
        return [(ROLE, "vocab")]
    if leaf == "kernel" and rank == 4:
        return [
            [(5, "k_h")],
            [(5, "k_w")],
            [(LAYER, "channels")],
            [(LAYER, "channels")],
        ][axis]
    if leaf == "kernel" and rank == 2 and axis == 1:
        return [(LAYER, layer)]
    return [(7, layer)]
