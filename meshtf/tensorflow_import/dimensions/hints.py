"""Names that dimensions may get from arguments and variables, and how far each is trusted.

A hint for a merged axis names its factors: "heads*d_head". A dimension that is split later
has the names of `_FACTORS`, or is called after its outer factor.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.graph.state import path_of

# A hint: how far it is trusted (a smaller number is more), and the name.
Hint = tuple[int, str]
# How far names are trusted:
KNOWN = -1  # of an earlier trace
GIVEN = 0  # of arguments: batch, length
ROLE = 1  # of a layer's variables: heads, vocab
STRUCTURE = 2  # of what operations do with it
TABLE = 3  # of tables
LAYER = 4  # a layer's name
WEAK = 6  # tables of positions
LAST = 7  # layers that have it as an input: only where nothing else names it

# Names of the factors of dimensions that operations split, by the name of the dimension.
_FACTORS = {
    "d_head": ("rotary", "d_head"),
    "heads": ("heads", "group"),
    "length": ("length", "window"),
    "channels": ("groups", "channels"),
}
_IMAGES = ("batch", "height", "width", "input_channels")
_VIDEOS = ("batch", "frames", *_IMAGES[1:])
# Names of layers whose kernels make heads, or join them again.
_TO_HEADS = ("query", "key", "value")
_FROM_HEADS = ("attention_output",)


@dataclasses.dataclass(frozen=True)
class Hints:
    """What is known of a program's arguments and variables before it is analysed.

    Attributes:
        variables: By a variable's identity, hints for each of its axes; None: variables have
            hints by their paths.
        arguments: What the first arguments are called, such as "token_ids".
        labels_from: From which argument on they are labels and weights, of which only the
            batch is named.
        axes: By an argument's identity, the names that the user gave its axes.
    """

    variables: Mapping[int, Sequence[Sequence[Hint]]] | None = None
    arguments: Sequence[str] = ()
    labels_from: int | None = None
    axes: Mapping[int, Sequence[str]] = dataclasses.field(default_factory=dict)

    def of(self, value: Value, inputs: list[Value]) -> Sequence[Sequence[Hint]]:
        """Returns hints for each axis of a variable, or of one of a program's inputs."""
        if id(value) in self.axes:
            return [[(KNOWN, name)] for name in self.axes[id(value)]]
        if value.kind != "variable":
            index = inputs.index(value)
            if self.labels_from is not None and index >= self.labels_from:
                return [[(GIVEN, "batch")]]
            return _of_argument(value, "".join(self.arguments[index : index + 1]))
        if self.variables is not None:
            return self.variables.get(id(value.variable), ())
        path = path_of(value.variable)
        rank = len(value.shape)
        return [_of_variable(path, k, rank) for k in range(rank)]


def factor_names(name: str, count: int) -> list[str]:
    """Returns names for the factors that a dimension is split into, the outer one first."""
    names = name.split("*")
    if len(names) == 1:
        names = list(_FACTORS.get(name, (name, f"{name}_inner")))
    if len(names) > count:  # the last factor is merged of several
        return [*names[: count - 1], "*".join(names[count - 1 :])]
    return [*names, *(f"{names[-1]}_inner" for _ in range(count - len(names)))]


def _of_argument(value: Value, name: str) -> list[list[Hint]]:
    """Returns the hints of an argument, by its rank and type, and by its own name."""
    rank = len(value.shape)
    length = next(
        (f"{side}_length" for side in ("encoder", "decoder") if side in name), "length"
    )
    if rank == 2 and not value.dtype.is_floating:
        return [[(GIVEN, "batch")], [(GIVEN, length)]]
    names = {3: ("batch", length, "features"), 4: _IMAGES, 5: _VIDEOS}
    return [
        [(TABLE if axis in ("features", "input_channels") else GIVEN, axis)]
        for axis in names.get(rank, ("batch", "features"))[: rank if rank < 6 else 1]
    ]


def _of_variable(path: str, axis: int, rank: int) -> list[Hint]:
    """Returns the hints for an axis of a variable, by its path ("dense_2/kernel")."""
    *layers, leaf = path.split("/")
    layer = stem_of(layers[-1]) if layers else leaf
    if "embedding" in leaf and rank == 2:
        if "attention" in layer:  # biases by distance, for each head
            return [(ROLE, ("buckets", "heads")[axis])]
        if axis == 1:
            return [(TABLE, "d_model")]
        if leaf.startswith("rel") or "relative" in path:
            return [(ROLE, "buckets")]
        for role in ("position", "segment"):
            if role in path:
                return [(WEAK if role == "position" else ROLE, role)]
        return [(ROLE, "vocab")]
    if leaf == "kernel" and rank == 3 and layer in (*_TO_HEADS, *_FROM_HEADS):
        return []  # `hint_projections` knows more
    if leaf == "kernel" and rank == 4:
        names = ("k_height", "k_width", "channels", "channels")
        return [(LAYER, names[axis])]
    if leaf == "kernel" and rank == 2 and axis == 1:
        return [(LAYER, layer)]
    return [(LAST, layer)] if layer else []


def is_projection(variable: Value) -> bool:
    """Whether a variable is a kernel that makes heads of what attention reads, or joins them
    again, by its path.
    """
    *layers, leaf = path_of(variable.variable).split("/")
    layer = stem_of(layers[-1]) if layers else ""
    is_named = layer in (*_TO_HEADS, *_FROM_HEADS)
    return leaf == "kernel" and len(variable.shape) == 3 and is_named


def joins_heads(variable: Value) -> bool:
    """Whether a projection joins heads: its layer's name tells."""
    return stem_of(path_of(variable.variable).split("/")[-2]) in _FROM_HEADS


def stem_of(name: str) -> str:
    """Returns a layer's name without the numbers of layers: "stage_0_block_1_conv" is
    "stage_block_conv".
    """
    return re.sub(r"(?<=[^_])_\d+(?=_|$)", "", name)
