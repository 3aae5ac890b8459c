"""Runs an analysed program as named operations: reshapes and transposes vanish."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Tensor, context, current
from meshtf.graph.recorder import RecomputeGroup
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape, Source
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.ops.shapes.reshape import flatten, rename, transpose, unflatten
from meshtf.ops.variables.fill import full
from meshtf.runtime.storage.asarray import constant
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Atom, Axes, Axis, flat
from meshtf.tensorflow_import.graph.program import Node, Program, Section, Value

# What a rule of lowering is: it returns the outputs' tensors.
Rule = Callable[["Lowering", Node], Any]


class Lowering:
    """One run of a program on a mesh.

    Attributes:
        program: The program.
        analysis: Its dimensions.
        mesh: Where it runs.
        replicated: By kind, how many operations run replicated.
        reasons: By the node's identity, why an operation runs replicated, although the
            analysis has a rule for it.
        sizes: Those of dimensions in a part of the program that runs with other ones, by their
            names and sizes in the program.
    """

    def __init__(
        self,
        program: Program,
        analysis: Analysis,
        names: Mapping[Atom, str],
        mesh: Mesh,
        rules: Mapping[str, Rule],
        variables: Mapping[int, Variable],
    ) -> None:
        """Prepares a run.

        Args:
            program: The program.
            analysis: Its dimensions.
            names: Those of atoms.
            mesh: Where it runs.
            rules: By kind, the rule of lowering.
            variables: By identity of the program's variable, the mesh's.
        """
        self.program = program
        self.analysis = analysis
        self.mesh = mesh
        self.replicated: collections.Counter[str] = collections.Counter()
        self.sizes: dict[tuple[str, int], int] = {}
        self._extra_names = 0
        self._used: set[int] | None = None
        self.reasons: dict[int, str] = {}
        self._names = names
        self._rules = rules
        self._variables = variables
        self._tensors: dict[int, Any] = {}
        # What is computed again, of the node that runs: nodes of its bodies are so anyway.
        self._recomputed: object = None

    def evaluate(
        self, inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Returns the program's outputs, whose dimensions are the atoms of their axes, in order;
        and the new values of the variables that it updates, by identity. Nothing is assigned.
        """
        program = self.program
        self._tensors = {id(v): x for v, x in zip(program.inputs, inputs)}
        self.read_variables()
        self.run_program()
        updates = self.updates()
        outputs = [
            self.full(value, value) for value in program.outputs if value.is_tensor
        ]
        # An output may be a variable, which is read before it is assigned to.
        return [x.tensor() if isinstance(x, Variable) else x for x in outputs], updates

    def read_variables(self) -> None:
        """Says what the values on entry are."""
        for key, value in self.program.on_entry.items():
            self.set([value], [self.named_as(self._variables[key], value)])

    def run_program(self) -> None:
        """Runs all nodes."""
        self.run_nodes(self.program.nodes)

    def updates(self) -> dict[int, Tensor]:
        """Returns the new values of variables, by identity."""
        program = self.program
        return {
            key: self.full(value, program.on_entry[key])
            for key, value in program.updates.items()
        }

    def run_nodes(self, nodes: Sequence[Node]) -> None:
        """Runs nodes in their order."""
        groups: dict[object, RecomputeGroup] = {}
        for node in nodes:
            if node.kind == "Assign":
                continue
            with self.within(node.section, groups):
                results = self._run_node(node)
            if not isinstance(results, (list, tuple)):
                results = [results]
            self.set(node.outputs, results)

    def set(self, values: Sequence[Value], tensors: Sequence[Any]) -> None:
        """Says what values are."""
        for value, tensor in zip(values, tensors):
            self._tensors[id(value)] = tensor

    def value(self, value: Value) -> Any:
        """Returns a value: a named tensor, or a Python number if it is a constant of one
        element. (None for a resource.)
        """
        if value.dtype == tf.resource:
            return None
        if id(value) in self._tensors:
            return self._tensors[id(value)]
        if value.constant is None:
            raise AssertionError(f"{value.path} has no value")
        return self._constant(value, value.constant)

    def tensor(self, value: Value) -> Tensor:
        """Returns a value as a tensor, numbers as well."""
        x = self.value(value)
        if isinstance(x, (bool, int, float)):
            return constant(self.mesh, x, dtype=value.dtype.name)
        return x

    def set_constant(self, value: Value, array: Any) -> None:
        """Says what a value is: numbers that are known."""
        self._tensors[id(value)] = self._constant(value, array)

    def unused_name(self, stem: str) -> str:
        """Returns a name that no dimension has."""
        name = ""
        while not name or name in self._names.values():
            self._extra_names += 1
            name = f"{stem}_{self._extra_names}"
        return name

    def is_used(self, value: Value) -> bool:
        """Whether an operation or the program's caller reads a value."""
        if self._used is None:
            program = self.program
            used = [*program.outputs, *program.updates.values()]
            for node in program.all_nodes():
                used += node.inputs
                for body in node.bodies.values():
                    used += body.outputs
            self._used = {id(v) for v in used}
        return id(value) in self._used

    def variable_or_tensor(self, value: Value) -> Variable | Tensor:
        """Returns the variable that has a value on entry; else the value as a tensor."""
        if value.kind == "variable":
            return self._variables[id(value.variable)]
        return self.tensor(value)

    def axes(self, value: Value) -> Axes:
        """Returns the axes of a value."""
        return self.analysis.of(value)

    def names(self, atoms: Sequence[Atom]) -> list[str]:
        """Returns the names of atoms."""
        return [self._names[atom] for atom in flat(atoms)]

    def name(self, atoms: Sequence[Atom], label: str) -> str:
        """Returns the name of an axis that must be one dimension.

        Raises:
            NoRule: It is merged of several, or has size 1.
        """
        names = self.names(atoms)
        if len(names) != 1:
            raise NoRule(f"{label} of {' x '.join(names) or 'a dimension of size 1'}")
        return names[0]

    def names_of(self, value: Value) -> list[str]:
        """Returns the names of a value's dimensions, in the order of its axes."""
        return self.names(self.analysis.atoms_of(value))

    def shape(self, value: Value) -> str:
        """Returns a value's named shape, such as "batch:8; length:16"."""
        return self.shape_of(self.analysis.atoms_of(value))

    def shape_of(self, atoms: Sequence[Atom]) -> str:
        """Returns the named shape of atoms."""
        named = [(self._names[a], a.size) for a in flat(atoms)]
        return "; ".join(
            f"{name}:{self.sizes.get((name, size), size)}" for name, size in named
        )

    def aligned(self, value: Value, axes: Sequence[Any]) -> Tensor:
        """Returns a value with the names of other axes; None among them asks for nothing. Where
        these have other factors, the dimension is merged and split again.
        """
        x = self.operand(value, axes)
        return x if isinstance(x, Tensor) else self.tensor(value)

    def operand(self, value: Value, axes: Sequence[Any]) -> Any:
        """Returns what `aligned` does; a number, if the value is one."""
        x = self.value(value)
        pairs: dict[str, str] = {}
        resplit: list[Any] = []
        if isinstance(x, (bool, int, float)):
            return x
        for have, expected in zip(self.axes(value), axes):
            if have and expected is not None:
                old, new = flat(have), flat(expected)
                if [a.size for a in old] == [a.size for a in new]:
                    names = zip(self.names(old), self.names(new))
                    pairs |= {a: b for a, b in names if a != b}
                else:
                    resplit.append((old, new))
        for k, (old, _) in enumerate(resplit):
            x = flatten(x, self.names(old), f"merged_{k}")
        x = rename(x, pairs) if pairs else x
        for k, (_, new) in enumerate(resplit):
            x = unflatten(x, f"merged_{k}", self.shape_of(new))
        return x

    def merged(self, x: Tensor, axis: Axis, name: str) -> tuple[Tensor, str]:
        """Returns a tensor where an axis is one dimension, and that one's name: `name` if it is
        merged of several, or has size 1.
        """
        names = self.names(axis)
        if len(names) == 1:
            return x, names[0]
        if not names:
            return broadcast(x, f"{name}:1; {shape_text(x)}"), name
        return flatten(x, names, name), name

    def as_dimension(self, x: Tensor, axis: Axis, name: str) -> Tensor:
        """Returns a tensor where an axis is one dimension of a given name."""
        x, present = self.merged(x, axis, name)
        return x if present == name else rename(x, present, name)

    def single(self, axis: Axis, name: str) -> str:
        """Returns the name of an axis; `name` if it is merged, or has size 1."""
        names = self.names(axis)
        return names[0] if len(names) == 1 else name

    def split(self, x: Tensor, name: str, axis: Axis) -> Tensor:
        """Returns a tensor where a dimension is an axis again: undoes `merged`."""
        names = self.names(axis)
        if not names:
            return reduce_sum(x, [name])
        if len(names) > 1:
            return unflatten(x, name, self.shape_of(axis))
        return x if names[0] == name else rename(x, {name: names[0]})

    def along(
        self, x: Tensor, axis: Axis, function: Callable[[Tensor, str], Tensor]
    ) -> Tensor:
        """Returns a function of a tensor and of the name of one of its axes; what the function
        leaves of the axis has its names.
        """
        x, name = self.merged(x, axis, "along")
        y = function(x, name)
        return self.split(y, name, axis) if name in y.shape else y

    def last_axes(self, value: Value, like: Value) -> Axes:
        """Returns the axes of another value that those of a value broadcast along."""
        axes = self.axes(like)
        return axes[len(axes) - len(value.shape) :]

    def full(self, value: Value, like: Value, axes: Axes | None = None) -> Tensor:
        """Returns a value with all dimensions of another one, in their order: what broadcasts
        is broadcast. `axes`: whose names it has; None: those of the other one.
        """
        x = self.operand(value, self.last_axes(value, like) if axes is None else axes)
        if isinstance(x, (bool, int, float)):
            return full(self.mesh, self.shape(like), x, like.dtype.name)
        names = self.names_of(like)
        if set(x.shape.names) != set(names):
            x = broadcast(x, self.shape(like))
        return transpose(x, names) if list(x.shape.names) != names else x

    def named_as(self, x: Tensor, value: Value) -> Tensor:
        """Returns a tensor, whose dimensions are those of a value in order, with the value's
        names.
        """
        return renamed_to(x, self.names_of(value))

    def _constant(self, value: Value, array: Any) -> Any:
        array = np.asarray(array)
        if array.size == 1:
            return array.item()
        # A part of the program that runs with other sizes takes its part of it.
        atoms = self.analysis.atoms_of(value)
        shape = [Dimension(self._names[atom], atom.size) for atom in atoms]
        return constant(self.mesh, array.reshape([d.size for d in shape]), Shape(shape))

    @contextlib.contextmanager
    def within(
        self, section: Section | None, groups: dict[object, RecomputeGroup]
    ) -> Iterator[None]:
        """Applies operations with the settings of a section of the program.

        Args:
            section: The section; None: there are no settings.
            groups: What is computed again so far. A group may be entered several times: what
                lies between, and belongs to other layers, is kept as if it were outside.
        """
        if section is None:
            yield
            return
        before, group = self._recomputed, current().recompute_group
        if section.recomputed is not None and section.recomputed is not before:
            self._recomputed = section.recomputed
            group = groups.setdefault(section.recomputed, RecomputeGroup())
        changes: dict[str, Any] = {
            "region": current().region.then(section.layout),
            "recompute_group": group,
        }
        if section.layer:
            changes["source"] = Source(section.layer, "", 0)
            changes["path"] = tuple(section.layer.split("/"))
        elif section.source is not None:
            changes["source"] = section.source
        try:
            with context(**changes):
                yield
        finally:
            self._recomputed = before

    def _run_node(self, node: Node) -> Any:
        rule = self._rules.get(node.kind)
        if id(node) not in self.analysis.replicated and rule is not None:
            try:
                return rule(self, node)
            except NoRule as error:
                self.reasons[id(node)] = str(error)
        self.replicated[node.kind] += 1
        return self._rules["replicated"](self, node)


def shape_text(x: Tensor) -> str:
    """Returns a tensor's shape, such as "batch:8; length:16"."""
    return "; ".join(f"{d.name}:{d.size}" for d in x.shape)


def renamed_to(x: Tensor, names: Sequence[str]) -> Tensor:
    """Returns a tensor whose dimensions have other names, given in order."""
    pairs = zip(x.shape.names, names)
    changed = {a: b for a, b in pairs if a != b}
    return rename(x, changed) if changed else x
