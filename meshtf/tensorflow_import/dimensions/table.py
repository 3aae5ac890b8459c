"""The dimensions of a program as a table: sizes, how they are sharded, and where they are."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from meshtf.display import text_table
from meshtf.mesh import Layout, Mesh
from meshtf.tensorflow_import.dimensions.flops import flops_of
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.named_program import NamedProgram
from meshtf.tensorflow_import.repeats.stacks import LAYERS
from meshtf.tensorflow_import.without_running import abstract_function

_SHOWN = 2  # places of a dimension, and regions where it is sharded otherwise


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One row of the table.

    Attributes:
        name: The dimension's name.
        sizes: Its sizes: a name may stand for those of several layers.
        sharded: The mesh axes along which it is sharded: "data", or "variables: data", or
            "model in encoder" where regions have layouts of their own.
        variables: Paths of the variables that have it.
        inputs: Names of the program's arguments that have it.
    """

    name: str
    sizes: tuple[int, ...]
    sharded: str
    variables: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def locations(self) -> str:
        """Where it is, shortened: numbers of layers are "*"."""
        patterns = collections.Counter(
            re.sub(r"(?<=_)\d+(?=/|_|$)", "*", path) for path in self.variables
        )
        texts = [f"{p} ({n})" if n > 1 else p for p, n in patterns.most_common()]
        rest = len(texts) - _SHOWN
        rest_text = [f"{rest} more"] if rest > 0 else []
        inputs = [f"inputs {', '.join(self.inputs)}"] if self.inputs else []
        return "; ".join([*inputs, *texts[:_SHOWN], *rest_text])


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Operations of one kind that run replicated: each device computes all of them.

    Attributes:
        kind: For example "FFT2D".
        count: How many there are.
        share: Their share of the program's FLOPs.
        reason: Why.
        path: That of the first one.
    """

    kind: str
    count: int
    share: float
    reason: str
    path: str


@dataclasses.dataclass(frozen=True)
class DimensionTable:
    """The dimensions of a program: print it, or go through its rows.

    Attributes:
        rows: The dimensions of arguments and layers' variables.
        replicated: Operations that run replicated.
        other_rows: Dimensions that only other tensors have; layouts may shard them as well.
    """

    rows: tuple[Dimension, ...]
    replicated: tuple[Replicated, ...]
    other_rows: tuple[Dimension, ...] = ()

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Dimension:
        return {row.name: row for row in (*self.rows, *self.other_rows)}[name]

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in (*self.rows, *self.other_rows))

    def __str__(self) -> str:
        rows = [
            (r.name, _sizes_text(r.sizes), r.sharded or "-", r.locations)
            for r in self.rows
        ]
        rows += [
            (r.name, _sizes_text(r.sizes), r.sharded, "other tensors")
            for r in self.other_rows
            if r.sharded
        ]
        unsharded = [
            f"{r.name} {_sizes_text(r.sizes)}" for r in self.other_rows if not r.sharded
        ]
        columns = ("name", "size", "sharded by", "where")
        lines = [text_table(columns, rows, align="<<<<")]
        if unsharded:
            lines.append(f"other tensors: {'; '.join(unsharded)}")
        if self.replicated:
            share = sum(r.share for r in self.replicated)
            lines.append(f"replicated, {100 * share:.1f} % of the FLOPs:")
            lines += [
                f"  {r.kind} ({r.count}), {100 * r.share:.1f} %: {r.reason}; {r.path}"
                for r in self.replicated
            ]
        return "\n".join(lines)

    __repr__ = __str__


def dimension_table(
    named: NamedProgram, mesh: Mesh, own_layouts: Sequence[tuple[str, Layout]] = ()
) -> DimensionTable:
    """Returns the table of a program.

    Args:
        named: The program.
        mesh: The mesh, whose layout says what is sharded.
        own_layouts: Of regions and variables, other axes of dimensions.
    """
    if named.lowering is None:  # a run tells which operations are replicated
        function = abstract_function(named, "program", Mesh("", devices="abstract"))
        function.record_call(tuple(named.specs()), {})
    entries = named.program.on_entry.values()
    inputs = _paths(named, named.program.inputs)
    variables = _paths(named, filter(named.analysis.has_hints, entries))
    sizes: dict[str, set[int]] = collections.defaultdict(set)
    for atom, name in named.names.items():
        sizes[name].add(atom.size)
    for entry in filter(named.analysis.has_hints, entries):
        stack = named.stack_of(entry)
        if stack is not None:
            sizes[LAYERS].add(len(stack.values))
            variables.setdefault(LAYERS, []).append(entry.path)
    all_rows = [
        Dimension(
            name,
            tuple(sorted(sizes[name])),
            _sharded(mesh, name, own_layouts),
            tuple(variables.get(name, ())),
            tuple(inputs.get(name, ())),
        )
        for name in dict.fromkeys([*inputs, *variables, *sorted(sizes)])
    ]
    rows = tuple(row for row in all_rows if row.inputs or row.variables)
    return DimensionTable(rows, tuple(_replicated(named)), tuple(all_rows[len(rows) :]))


def _paths(named: NamedProgram, values: Iterable[Value]) -> dict[str, list[str]]:
    """Returns by name of a dimension what values have it."""
    paths: dict[str, list[str]] = {}
    for value in values:
        for name in named.names_of(value):
            paths.setdefault(name, []).append(value.path)
    return paths


def _sharded(mesh: Mesh, name: str, own_layouts: Iterable[tuple[str, Layout]]) -> str:
    """Returns the axes along which a dimension is sharded, those of variables and regions apart."""

    def axes_of(layout: Layout) -> str:
        return "+".join(axis for axis in layout.axes(name) if axis in mesh.axes)

    axes, of_variables = axes_of(mesh.layout), axes_of(mesh.variable_layout)
    texts = [axes] if axes else []
    if of_variables != axes:
        texts.append(f"variables: {of_variables or 'none'}")
    in_regions = [
        f"{axes_of(layout) or 'none'} in {label}"
        for label, layout in own_layouts
        if name in dict(layout.items())
    ]
    rest = len(in_regions) - _SHOWN
    rest_text = [f"other in {rest} more"] if rest > 0 else []
    return "; ".join([*texts, *in_regions[:_SHOWN], *rest_text])


def _replicated(named: NamedProgram) -> list[Replicated]:
    reasons = named.replicated()
    nodes: dict[str, list[Node]] = {}
    total = 0.0
    for node in named.program.all_nodes():
        total += flops_of(node)
        if id(node) in reasons:
            nodes.setdefault(node.kind, []).append(node)
    rows = [
        Replicated(
            kind,
            len(same_kind),
            sum(map(flops_of, same_kind)) / max(total, 1.0),
            reasons[id(same_kind[0])],
            same_kind[0].path,
        )
        for kind, same_kind in nodes.items()
    ]
    return sorted(rows, key=lambda row: -row.share)


def _sizes_text(sizes: Sequence[int]) -> str:
    if len(sizes) <= 4:
        return ", ".join(map(str, sizes))
    return f"{sizes[0]}, {sizes[1]}, ..., {sizes[-1]}"
