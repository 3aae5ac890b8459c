"""Names of dimensions: one for each role, shared by all layers where no operation has both.

Dimensions of one role that some operation has both get numbers ("channels", "channels_2").
That is a colouring of a graph: the first name goes to a set of dimensions that touches most
of the variables' elements. The order follows the rule GWMIN2 of S. Sakai, M. Togasaki and
K. Yamazaki, A note on greedy algorithms for the maximum weighted independent set problem,
2003: a dimension's weight over the weights of it and of those that it excludes.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Atom, flat, root
from meshtf.tensorflow_import.dimensions.hints import GIVEN, KNOWN, LAST, ROLE, TABLE
from meshtf.tensorflow_import.dimensions.structure import hint_structure
from meshtf.tensorflow_import.graph.effects import EFFECTS
from meshtf.tensorflow_import.graph.program import Node

# Roles that have one name for all sizes; others only if all sizes are multiples of _MULTIPLE,
# so that a mesh axis can divide all of them.
_ALL_SIZES = ("d_head", "heads", "height", "k_", "kv_", "position", "vocab", "width")
_MULTIPLE = 8
# Operations whose operands have dimensions that do not meet.
_APART = ("CustomGradient", "Gradients", *EFFECTS)


def unused_name(stem: str, is_used: Callable[[str], bool]) -> str:
    """Returns a name, with a number if it is in use: "heads", "heads_2", "heads_3"."""
    name, index = stem, 1
    while is_used(name):
        index += 1
        name = f"{stem}_{index}"
    return name


def name_dimensions(analysis: Analysis) -> dict[Atom, str]:
    """Returns a name for each atom of a program."""
    return _Naming(analysis).names


class _Naming:
    """The choice of names; `names` has them."""

    def __init__(self, analysis: Analysis) -> None:
        self.names: dict[Atom, str] = {}
        self._analysis = analysis
        queries, keys = hint_structure(analysis)
        self._queries = queries
        self._keys = keys
        atoms = analysis.all_atoms()
        self._foes = _foes(analysis)
        self._users: dict[str, list[Atom]] = collections.defaultdict(list)
        stems = _stems(analysis, atoms)
        for atom in sorted(atoms, key=self._order(atoms, stems)):
            name = self._name(atom, stems.get(atom, f"n{atom.size}"))
            self._users[name].append(atom)
            self.names[atom] = name

    def _order(self, atoms: list[Atom], stems: Mapping[Atom, str]) -> Any:
        """Returns a key of atoms for sorting: those that come first get shorter names."""
        weights = _weights(self._analysis)
        ranks = {}
        for index, atom in enumerate(atoms):
            stem = stems.get(atom)
            rivals = math.fsum(  # in any order the same
                weights[other]
                for other in self._foes[atom]
                if other is not atom and stems.get(other) == stem
            )
            known = any(trust == KNOWN for trust, _ in atom.hints)
            share = weights[atom] / (weights[atom] + rivals or 1)
            ranks[atom] = (not known, -share, index)
        return ranks.__getitem__

    def _name(self, atom: Atom, stem: str) -> str:
        """Returns the first free name of a role."""
        if not self._clashes(atom, stem):
            return stem
        if atom in self._keys and not stem.startswith("kv_"):
            return self._name(atom, "kv_length" if "length" in stem else f"kv_{stem}")
        if atom in self._queries and not stem.startswith("q_"):
            return self._name(atom, f"q_{stem}")
        return unused_name(stem, lambda name: self._clashes(atom, name))

    def _clashes(self, atom: Atom, name: str) -> bool:
        """Whether an atom may not have the name that others have."""
        users = self._users[name]
        for other in users:
            if atom.is_foe_of(other):
                return True
            if other in self._foes[atom] and root(other) is not root(atom):
                return True
        return not _sizes_fit(name, atom, users)


def clashing_names(analysis: Analysis, names: Mapping[Atom, str]) -> set[str]:
    """Returns names that two dimensions of one operation have."""
    return {
        names[atom]
        for atom, neighbours in _foes(analysis).items()
        for other in neighbours
        if other is not atom
        and names[other] == names[atom]
        and (atom.is_foe_of(other) or root(other) is not root(atom))
    }


def _sizes_fit(name: str, atom: Atom, users: list[Atom]) -> bool:
    """Whether atoms of these sizes may have one name."""
    if all(a.size == atom.size or root(a) is root(atom) for a in users):
        return True
    if name.startswith(_ALL_SIZES):
        return True
    return math.gcd(atom.size, *(a.size for a in users)) % _MULTIPLE == 0


def _foes(analysis: Analysis) -> dict[Atom, set[Atom]]:
    """Returns for each atom those that some operation has as well. (Gradients are of several
    variables, prints of several tensors, whose dimensions do not meet.)
    """
    foes: dict[Atom, set[Atom]] = collections.defaultdict(set)
    for node in analysis.program.all_nodes():
        if node.bodies or node.kind in _APART:
            continue
        neighbours = {
            atom
            for value in [*node.inputs, *node.outputs]
            if analysis.is_met(value)
            for atom in analysis.atoms_of(value)
        }
        joined = _joined(analysis, node)
        for atom in neighbours:
            foes[atom] |= neighbours - joined if atom in joined else neighbours
    return foes


def _joined(analysis: Analysis, node: Node) -> set[Atom]:
    """Returns the dimensions along which operands are concatenated: they may have one name."""
    if node.kind != "ConcatV2" or id(node) in analysis.replicated:
        return set()
    *values, axis_value = node.inputs
    axis = int(axis_value.constant)
    axes = [analysis.of(v)[axis] for v in (*values, *node.outputs)]
    return {atom for atoms in axes if len(atoms) == 1 for atom in atoms}


def _weights(analysis: Analysis) -> dict[Atom, float]:
    """Returns how many elements the variables have that have an atom; of those that have hints,
    since optimizers' variables have none. Where no variable decides, the number of values.
    """
    weights: dict[Atom, float] = collections.defaultdict(float)
    for value in analysis.values:
        for atom in analysis.atoms_of(value):
            weights[atom] += 1e-6
    for value in analysis.program.on_entry.values():
        if analysis.has_hints(value):
            for atom in analysis.atoms_of(value):
                weights[atom] += math.prod(value.shape)
    return weights


def _stems(analysis: Analysis, atoms: list[Atom]) -> dict[Atom, str]:
    """Returns the name that each atom should have, before numbers."""
    stems = {}
    in_floats = {
        atom
        for value in analysis.values
        if value.dtype.is_floating
        for atom in analysis.atoms_of(value)
    }
    roles = {name for atom in atoms for trust, name in atom.hints if trust <= ROLE}
    for atom in atoms:
        if atom.hints:
            trust, name = _best_hint(atom)
            if trust >= LAST:
                continue
            # With attention, d_model is what attention reads, and tables may be narrower.
            if trust == TABLE and name == "d_model" and name in roles:
                name = "d_embedding"
            # Integers that are no sequence, but taken one by one.
            if trust == GIVEN and name == "length" and atom not in in_floats:
                name = "columns"
            stems[atom] = name
    for _ in range(8):
        for atom in atoms:
            source = atom.copy_of or atom.relative
            if source is None or stems.get(atom, "length") != "length":
                continue
            first, *rest = flat([source])
            stem = stems.get(first, "")
            if stem and not rest and (atom not in stems or stem.endswith("length")):
                stems[atom] = stem
    for atom in atoms:
        if atom.hints:
            stems.setdefault(atom, _best_hint(atom)[1])
    return {atom: re.sub(r"\W", "_", stem) for atom, stem in stems.items()}


def _best_hint(atom: Atom) -> tuple[int, str]:
    """Returns the most trusted hint; of several, the most frequent one."""
    return min(atom.hints, key=lambda hint: (hint[0], -atom.hints[hint], hint[1]))
