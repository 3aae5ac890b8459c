"""The space of layouts: which dimensions an axis of a mesh may shard together, and how the
variables are stored.

>>> from meshtf.names import Shape
>>> shapes = [Shape("batch:8;d_model:4"), Shape("d_model:4;d_ff:16"), Shape("batch:8;d_ff:16")]
>>> sharded_together(shapes, {"batch", "d_model", "d_ff"})
[('batch',), ('d_ff',), ('d_model',)]

Two dimensions of one tensor cannot be on one axis. So an axis shards a set of dimensions no
two of which any tensor has: the largest such sets are tried, since sharding more of a tensor
costs a device less. Dimensions count that an argument or a variable has; others are names
within a layer.

The axis of the stages of a pipeline shards the layers, and either nothing else or all that no
tensor has beside them, such as the vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshtf.names import Shape
from meshtf.names.arguments import as_choice, as_sequence

# The choice that is priced without a plan for each value.
MICROBATCHES = "microbatches"
STAGE = "stage"  # the axis of the stages of a pipeline
STORAGES = ("replicated", "slots", "variables")
# The name of an axis that shards this dimension; others have the name of their dimension.
_AXIS_NAMES = {
    "batch": "data",
    "length": "seq",
    "experts": "expert",
    "heads": "model",
    "d_ff": "model",
    "vocab": "model",
}


def read_storages(storage: object) -> Sequence[str]:
    """Returns the ways to store variables that are tried."""
    if isinstance(storage, str):
        storage = [storage]
    names = as_sequence("storage", storage, 'names, such as ("variables",)')
    for name in names:
        as_choice("storage", name, STORAGES)
    return list(names)


def sharded_together(
    shapes: Iterable[Shape], names: Collection[str], in_variables: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Returns the largest sets of dimensions that one axis can shard, each sorted; and of sets
    with dimensions of examples, those dimensions alone, so that variables can be sharded in
    another way along the axis.

    Args:
      shapes: the shapes of all tensors.
      names: the dimensions that may be sharded.
      in_variables: the dimensions that variables have.
    """
    conflicts: dict[str, set[str]] = {name: {name} for name in names}
    for shape in set(shapes):
        for name in shape.names:
            if name in conflicts:
                conflicts[name].update(shape.names)
    sets = list(_largest_sets(set(), set(names), set(), conflicts))
    if in_variables:
        sets += [dims - set(in_variables) for dims in sets]
    return sorted({tuple(sorted(dims)) for dims in sets if dims})


def _largest_sets(
    chosen: set[str],
    candidates: set[str],
    excluded: set[str],
    conflicts: Mapping[str, set[str]],
) -> Iterator[set[str]]:
    """Yields the largest sets without conflicts (Bron and Kerbosch, 1973, algorithm 457).

    Args:
      chosen: the names that each set contains.
      candidates: the names that may be added.
      excluded: the names whose sets were yielded already.
      conflicts: name -> the names that it cannot be in a set with.
    """
    if not candidates and not excluded:
        yield chosen
        return
    for name in sorted(candidates):
        yield from _largest_sets(
            chosen | {name},
            candidates - conflicts[name],
            excluded - conflicts[name],
            conflicts,
        )
        candidates = candidates - {name}
        excluded = excluded | {name}


@dataclasses.dataclass(frozen=True)
class Structure:
    """A layout without sizes: the axes and what they shard.

    Attributes:
      axes: axis -> the dimensions that it shards.
      storage: "replicated"; "slots": the optimizer's slots are sharded along the axes of
        examples as well (ZeRO-1); "variables": variables and slots are (FSDP, ZeRO-3).
      stored_dim: the dimension of variables that is sharded for that; "" if none is.
      stored_axes: the axes that it is sharded along.
      choices: further settings of the program, as pairs: (("recompute", True),).
      stage_axis: the axis of the stages of a pipeline: it shards the layers that a scan walks;
        "": there is no pipeline.
    """

    axes: tuple[tuple[str, tuple[str, ...]], ...]
    storage: str = "replicated"
    stored_dim: str = ""
    stored_axes: tuple[str, ...] = ()
    choices: tuple[tuple[str, object], ...] = ()
    stage_axis: str = ""

    @property
    def without_stages(self) -> Structure:
        """This structure without a pipeline."""
        axes = tuple(pair for pair in self.axes if pair[0] != self.stage_axis)
        return dataclasses.replace(self, axes=axes, stage_axis="")

    @property
    def before_updates(self) -> Structure:
        """This structure as far as the program depends on it that precedes updates: nothing
        reads slots there.
        """
        if self.storage != "slots":
            return self
        return dataclasses.replace(
            self, storage="replicated", stored_dim="", stored_axes=()
        )

    @property
    def layout(self) -> str:
        """The rules of the layout."""
        axes_of: dict[str, list[str]] = {}
        for axis, dims in self.axes:
            for dim in dims:
                axes_of.setdefault(dim, []).append(axis)
        return "; ".join(f"{dim}:{'+'.join(axes)}" for dim, axes in axes_of.items())

    def with_choices(self, choices: tuple[tuple[str, object], ...]) -> Structure:
        """Returns this structure with other settings of the program."""
        return dataclasses.replace(self, choices=choices)

    def with_each(self, choices: Mapping[str, Sequence[object]]) -> Iterator[Structure]:
        """Yields this structure with each combination of values of choices."""
        for values in itertools.product(*choices.values()):
            yield self.with_choices(tuple(zip(choices, values, strict=True)))

    @property
    def stored_rule(self) -> str:
        """The further rule for variables or slots; "" if there is none."""
        if self.storage == "replicated":
            return ""
        return f"{self.stored_dim}:{'+'.join(self.stored_axes)}"

    def mesh_settings(self) -> dict[str, Any]:
        """Returns the arguments of `Mesh` other than its axes."""
        settings: dict[str, Any] = {
            "layout": self.layout,
            "variable_layout": "",
            "optimizer_layout": "",
        }
        if self.storage == "variables":
            settings["variable_layout"] = self.stored_rule
        if self.storage == "slots":
            settings["optimizer_layout"] = self.stored_rule
        return settings


def axis_name(dims: Sequence[str], used_names: Collection[str]) -> str:
    """Returns a name for an axis that shards these dimensions.

    >>> axis_name(("batch",), ()), axis_name(("batch",), ("data",)), axis_name(("d",), ())
    ('data', 'fsdp', 'd')

    A number at the end of a dimension's name does not matter, and is not followed by another:

    >>> axis_name(("batch_2",), ()), axis_name(("d_2",), ()), axis_name(("d_2",), ("d_2",))
    ('data', 'd_2', 'd_2_b')
    """
    stems = [re.sub(r"_\d+$", "", dim) for dim in dims]
    named = [_AXIS_NAMES[dim] for dim in (*dims, *stems) if dim in _AXIS_NAMES]
    first = named[0] if named else dims[0]
    if first == "data" and first in used_names:
        first = "fsdp"
    name = first
    for i in itertools.count(2):
        if name not in used_names:
            return name
        name = f"{first}_{chr(ord('a') + i - 1) if first[-1].isdigit() else i}"
    raise AssertionError  # `count` never ends


def sets_of_stages(
    shapes: Iterable[Shape], names: Collection[str], pipelined: str
) -> list[tuple[str, ...]]:
    """Returns the sets of dimensions that the axis of stages can shard: the layers alone, and
    with all that no tensor has beside them.

    >>> from meshtf.names import Shape
    >>> shapes = [Shape("vocab:8;d_model:4"), Shape("layers:2;d_model:4;d_ff:16")]
    >>> sets_of_stages(shapes, {"vocab", "d_ff"}, "layers")
    [('layers',), ('layers', 'vocab')]

    Args:
      shapes: the shapes of all tensors.
      names: the dimensions that may be sharded.
      pipelined: the dimension of the layers.
    """
    sets: list[tuple[str, ...]] = [(pipelined,)]
    for dims in sharded_together(shapes, {*names, pipelined}):
        if pipelined in dims and len(dims) > 1:
            sets.append((pipelined, *(dim for dim in dims if dim != pipelined)))
    return sets


def without_dims(
    sets: Iterable[tuple[str, ...]], names: Collection[str]
) -> list[tuple[str, ...]]:
    """Returns sets of dimensions without some of them, each once.

    >>> without_dims([("layers",), ("layers", "vocab")], ["vocab"])
    [('layers',)]
    """
    remaining = (tuple(dim for dim in dims if dim not in names) for dims in sets)
    return list(dict.fromkeys(remaining))


def structures(
    sets: Sequence[tuple[str, ...]],
    max_axes: int,
    variables: Sequence[Shape],
    scanned: Collection[str] = (),
    unsharded: Collection[str] = (),
) -> Iterator[Structure]:
    """Yields all structures of up to `max_axes` axes.

    Args:
      sets: what one axis can shard.
      max_axes: the most axes.
      variables: the shapes of the variables that are trained.
      scanned: the dimensions that loops scan.
      unsharded: the dimensions that no rule shards, such as windows of kernels.
    """
    for count in range(max_axes + 1):
        for combination in itertools.combinations_with_replacement(sets, count):
            axes: dict[str, tuple[str, ...]] = {}
            for dims in combination:
                axes[axis_name(dims, axes)] = dims
            yield from structures_of_axes(axes, variables, scanned, unsharded)


def structures_of_names(
    sets: Sequence[tuple[str, ...]],
    names: Sequence[str],
    variables: Sequence[Shape],
    scanned: Collection[str] = (),
    unsharded: Collection[str] = (),
) -> Iterator[Structure]:
    """Yields all structures whose axes have given names. The arguments are those of
    `structures`, with the names in place of their number.
    """
    for combination in itertools.product(sets, repeat=len(names)):
        axes = dict(zip(names, combination))
        yield from structures_of_axes(axes, variables, scanned, unsharded)


def structures_of_axes(
    axes: Mapping[str, tuple[str, ...]],
    variables: Sequence[Shape],
    scanned: Collection[str] = (),
    unsharded: Collection[str] = (),
    stage_axis: str = "",
) -> Iterator[Structure]:
    """Yields the structures with given axes, one for each way to store the variables.

    Two axes that shard the same are of use only for examples, if variables are sharded along
    one of them (hybrid FSDP).

    Args:
      axes: axis -> the dimensions that it shards.
      variables: the shapes of the variables that are trained.
      scanned: the dimensions that loops scan.
      unsharded: the dimensions that no rule shards.
      stage_axis: the axis of the stages of a pipeline; "": there is none.
    """
    in_variables = {name for shape in variables for name in shape.names}
    pairs = tuple(axes.items())
    stored_dim = _stored_dim(pairs, variables, scanned, unsharded)
    # The axes of examples along which every variable with the dimension can be sharded.
    stored_names = {
        name for shape in variables if stored_dim in shape for name in shape.names
    }
    data_axes = [
        axis
        for axis, dims in axes.items()
        if set(dims) - in_variables and not stored_names & set(dims)
    ]
    counts = {dims: list(axes.values()).count(dims) for dims in axes.values()}
    repeated = [dims for dims, count in counts.items() if count > 1]
    if repeated:
        is_hybrid = len(repeated) == 1 and counts[repeated[0]] == 2
        inner = [axis for axis in data_axes if axes[axis] == repeated[0]]
        if is_hybrid and inner and stored_dim:
            stored_axes: tuple[str, ...] = (inner[-1],)
            yield Structure(
                pairs, "variables", stored_dim, stored_axes, stage_axis=stage_axis
            )
        return
    stored_axes = tuple(data_axes)
    for storage in STORAGES:
        if storage == "replicated":
            yield Structure(pairs, stage_axis=stage_axis)
        elif data_axes and stored_dim:
            yield Structure(
                pairs, storage, stored_dim, stored_axes, stage_axis=stage_axis
            )


def _stored_dim(
    axes: Sequence[tuple[str, tuple[str, ...]]],
    variables: Sequence[Shape],
    scanned: Collection[str],
    unsharded: Collection[str],
) -> str:
    """Returns the dimension of most elements of variables that no axis shards, and no loop
    scans if there is another; "" if there is none. None is among `unsharded`.
    """
    excluded = {*unsharded, *(dim for _, dims in axes for dim in dims)}
    elements: dict[str, int] = {}
    for shape in variables:
        for dim in shape:
            if dim.name not in excluded:
                elements[dim.name] = elements.get(dim.name, 0) + shape.size
    return max(
        elements, key=lambda name: (name not in scanned, elements[name]), default=""
    )


def stored_as_asked(
    group: list[Structure], storages: Collection[str]
) -> list[Structure]:
    """Returns those structures of one kind whose variables are stored as the user asks; if that
    is not possible for these axes, as they can be.
    """
    asked = [structure for structure in group if structure.storage in storages]
    return asked or group[:1]
