"""Finds which dimensions of a program's tensors are the same, operation by operation.

Each kind of operation has a rule (`meshtf/tensorflow_import/rules`) that says which axes of its
operands and results are one dimension. Where two that must agree are foes, one operand is
renamed for this operation; reshapes only regroup atoms, and split them where the groups do not
fit.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.tensorflow_import.dimensions.atoms import (
    Atom,
    Axes,
    Axis,
    flat,
    join,
    make_foes,
    split,
)
from meshtf.tensorflow_import.dimensions.hints import KNOWN
from meshtf.tensorflow_import.graph.program import Node, Program, Value

# What a rule of dimensions is.
Rule = Callable[["Analysis", Node], None]


class NoRule(Exception):
    """An operation, or this form of it, has no rule: it runs replicated."""


class Analysis:
    """The dimensions of a program.

    Attributes:
        program: The program.
        renames: For each operand that an operation sees with another name: the node and the
            two atoms.
        replicated: By the node's identity, why an operation runs replicated, on gathered
            operands.
        products: For each product of two operands: the node, and the axes of each letter of
            the operands and of the result.
        sites: Kinds of places where an operation's result would have a name twice.
    """

    def __init__(
        self,
        program: Program,
        rules: Mapping[str, Rule],
        hints: Callable[[Value], Sequence[Sequence[tuple[int, str]]]],
        flipped: Iterable[Any] = (),
    ) -> None:
        """Analyses a program.

        Args:
            program: The program.
            rules: By kind, the rule of dimensions.
            hints: Returns for an input or a variable, for each axis, names with their trust.
            flipped: Sites where the first of two clashing operands is renamed, not the second.
        """
        self.program = program
        self.renames: list[tuple[Node, Atom, Atom]] = []
        self.replicated: dict[int, str] = {}
        self.products: list[tuple[Node, list[dict[str, Axis]]]] = []
        self.sites: set[Any] = set()
        self.outer_factors: dict[Axis, Axis] = {}
        self.values: list[Value] = []
        self._axes: dict[int, Axes] = {}
        self._rules = rules
        self._hints = hints
        self._flipped = frozenset(flipped)
        self._node: Any = None
        for value in program.inputs:
            self.of(value)
        self.run(program.nodes)
        # Some that no node has: an output may be an input, a variable unused.
        last = (*program.outputs, *program.updates.values(), *program.on_entry.values())
        for value in last:
            if value.is_tensor:
                self.of(value)
        self._join_copies()

    def run(self, nodes: Sequence[Node]) -> None:
        """Applies the rules of nodes in their order."""
        for node in nodes:
            self._node = node
            try:
                rule = self._rules.get(node.kind)
                if rule is None:
                    raise NoRule(f"{node.kind} has no rule")
                rule(self, node)
            except NoRule as error:
                self.replicated[id(node)] = str(error)
                for value in node.outputs:
                    self.of(value)

    def of(self, value: Value) -> Axes:
        """Returns the axes of a value; new dimensions, if it is met first."""
        if id(value) not in self._axes:
            axes = [self.new(size) for size in value.shape or ()]
            self._axes[id(value)] = axes
            self._note(value, axes)
            if value.kind in ("input", "variable"):
                self._name(value, axes)
        return [tuple(flat(axis)) for axis in self._axes[id(value)]]

    def atoms_of(self, value: Value) -> list[Atom]:
        """Returns all atoms of a value, in the order of its axes."""
        return [atom for axis in self.of(value) for atom in axis]

    def has_hints(self, value: Value) -> bool:
        """Whether a variable's axes have names of their own."""
        return any(self._hints(value))

    def hint_all(self, value: Value, names: Sequence[str]) -> None:
        """Says that the dimensions of a variable have some names, if they are as many."""
        atoms = self.atoms_of(value)
        for atom, name in zip(atoms, names if len(names) == len(atoms) else ()):
            atom.hint(KNOWN, name)

    def is_met(self, value: Value) -> bool:
        """Whether a value has dimensions already."""
        return id(value) in self._axes

    def new(self, size: int, like: Axis = ()) -> Axis:
        """Returns the axis of a new dimension. `like`: one whose name it may take, with a
        number.
        """
        if size == 1:
            return ()
        atom = Atom(size)
        if like:
            atom.relative = flat(like)[0]
        return (atom,)

    def resized(self, axis: Axis, size: int) -> Axis:
        """Returns the axis if it has this size, else a new one with a similar name."""
        return axis if axis_size(axis) == size else self.new(size, axis)

    def set(self, value: Value, axes: Sequence[Axis]) -> None:
        """Gives a value its axes. Where one atom would occur twice, the later one (the earlier
        one at flipped sites) gets a second name.
        """
        wrong = [
            (axis_size(axis), size)
            for axis, size in zip(axes, value.shape)
            if axis_size(axis) != size
        ]
        if wrong or len(axes) != len(value.shape):
            raise AssertionError(f"{self._node.kind} at {self._node.path}: {wrong}")
        axes = self._without_doubles(axes)
        self._axes[id(value)] = axes
        self._note(value, axes)

    def set_list(self, value: Value, axes: Sequence[Axis]) -> None:
        """Gives a list of tensors the axes of its items, after one for their number."""
        self._axes[id(value)] = list(axes)

    def unify(self, first: Sequence[Atom], second: Sequence[Atom]) -> bool:
        """Makes two axes of one size the same dimensions.

        Returns whether that went well; if not, the operation sees the second one renamed, or
        in other factors.
        """
        xs, ys, equal = flat(first), flat(second), True
        while xs and ys:
            a, b = xs[0].now, ys[0].now
            if a.size == b.size:
                if not join(a, b):
                    equal = False
                    self.renames.append((self._node, a, b))
                    if a.copy_of is None and (
                        b.copy_of is None or b.copy_of.now is not a
                    ):
                        a.copy_of = b
                del xs[0], ys[0]
            elif a.size % b.size == 0:
                xs[:1] = split(a, (b.size, a.size // b.size))
            elif b.size % a.size == 0:
                ys[:1] = split(b, (a.size, b.size // a.size))
            else:
                self.renames.append((self._node, a, b))
                return False
        return equal

    def unify_all(self, first: Axes, second: Axes) -> None:
        """Unifies axes one by one, but for those of size 1 in either."""
        for a, b in zip(first, second):
            if a and b:
                self.unify(a, b)

    def broadcast(self, values: Sequence[Value], output: Value) -> None:
        """The rule of operations element by element: axes that broadcast are the same."""
        rank = len(output.shape)
        operands = []
        for value in values:
            if value.constant is None or np.size(value.constant) > 1:
                axes = self.of(value)
                operands.append([()] * (rank - len(axes)) + axes)
        # The operand with most dimensions gives the names.
        operands.sort(key=lambda axes: -sum(map(bool, axes)))
        result = []
        for k in range(rank):
            full = [axes[k] for axes in operands if axes[k]]
            result.append(full[0] if full else self.new(output.shape[k]))
        self.set(output, result)
        for axes in operands:
            self.unify_all(self.of(output), axes)

    def regroup(self, value: Value, output: Value) -> None:
        """The rule of reshapes. Where new groups share factors in no order of atoms, as when
        `[2, 3]` becomes `[3, 2]`, they are new dimensions; those before and after remain.
        """
        atoms, sizes = self.atoms_of(value), list(output.shape)
        before, after = [], []
        while sizes and (group := take(atoms, sizes[0])) is not None:
            before.append(group)
            del sizes[0]
        while sizes and (group := take(atoms, sizes[-1], last=True)) is not None:
            after.append(group)
            del sizes[-1]
        middle = [self.new(size) for size in sizes]
        self.set(output, [*before, *middle, *after[::-1]])

    def all_atoms(self) -> list[Atom]:
        """Returns each atom of the program's values once."""
        atoms: dict[int, Atom] = {}
        for value in self.values:
            for axis in self._axes[id(value)]:
                atoms |= {id(atom): atom for atom in flat(axis)}
        return list(atoms.values())

    def _without_doubles(self, axes: Sequence[Axis]) -> Axes:
        axes = [tuple(flat(axis)) for axis in axes]
        atoms = [atom for axis in axes for atom in axis]
        if len(set(atoms)) == len(atoms):
            return axes
        site = (self._node.kind, "".join(c for c in self._node.path if not c.isdigit()))
        self.sites.add(site)
        backwards = site in self._flipped
        seen, renamed = set(), []
        for axis in axes[::-1] if backwards else axes:
            new = []
            for atom in axis:
                if atom in seen:
                    copy = Atom(atom.size)
                    copy.copy_of = atom
                    self.renames.append((self._node, copy, atom))
                    atom = copy
                seen.add(atom)
                new.append(atom)
            renamed.append(tuple(new))
        return renamed[::-1] if backwards else renamed

    def _note(self, value: Value, axes: Axes) -> None:
        self.values.append(value)
        make_foes([atom for axis in axes for atom in flat(axis)])

    def _name(self, value: Value, axes: Axes) -> None:
        for axis, hints in zip(axes, self._hints(value)):
            for atom in axis:
                for trust, name in hints:
                    atom.hint(trust, name)

    def _join_copies(self) -> None:
        """All second names of a dimension become one, where nothing forbids it."""
        by_original = collections.defaultdict(list)
        for atom in self.all_atoms():
            if atom.copy_of is not None:
                by_original[id(atom.copy_of.now)].append(atom)
        for copies in by_original.values():
            for atom in copies[1:]:
                if atom.now.size == copies[0].now.size:
                    join(copies[0], atom)


def take(atoms: list[Atom], size: int, last: bool = False) -> Axis | None:
    """Takes atoms of a size in all from the front of a list, or from its end: one may have to
    be split. Returns None, and takes nothing, if no atoms have this size.
    """
    left, group, have = flat(atoms), [], 1
    while have < size and left:
        atom = left[-1 if last else 0]
        if size % (have * atom.size) == 0:
            group.append(left.pop(-1 if last else 0))
            have *= atom.size
        elif size % have == 0 and atom.size % (size // have) == 0:
            near = size // have
            far = atom.size // near
            if last:
                left[-1:] = split(atom, (far, near))
            else:
                left[:1] = split(atom, (near, far))
        else:
            break
    if have != size:
        return None
    atoms[:] = left
    return tuple(group[::-1] if last else group)


def axis_size(axis: Axis) -> int:
    """Returns the size of an axis."""
    return math.prod(atom.size for atom in flat(axis))
