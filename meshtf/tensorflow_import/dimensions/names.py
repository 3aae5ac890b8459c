"""Names of dimensions: one for each role, shared by all layers where no operation has both."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping

from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Atom, flat


def name_dimensions(analysis: Analysis) -> dict[Atom, str]:
    """Returns a name for each atom of a program."""
    atoms = analysis.all_atoms()
    foes = _foes(analysis)
    base = _bases(atoms)
    names: dict[Atom, str] = {}
    users: dict[str, list[Atom]] = collections.defaultdict(list)
    for atom in sorted(atoms, key=_trust):
        stem = base.get(atom, f"n{atom.size}")
        index, name = 1, stem
        while _clashes(atom, users[name], foes):
            index += 1
            name = f"{stem}_{index}"
        users[name].append(atom)
        names[atom] = name
    return names


def _foes(analysis: Analysis) -> dict[Atom, set[Atom]]:
    """Returns for each atom those that some operation has as well."""
    foes: dict[Atom, set[Atom]] = collections.defaultdict(set)
    for node in analysis.program.all_nodes():
        if node.bodies:
            continue
        neighbours = {
            atom
            for value in [*node.inputs, *node.outputs]
            if analysis.is_met(value)
            for atom in analysis.atoms_of(value)
        }
        for atom in neighbours:
            foes[atom] |= neighbours
    return foes


def _bases(atoms: list[Atom]) -> dict[Atom, str]:
    """Returns the name that each atom should have, before numbers."""
    base = {}
    for atom in atoms:
        if atom.hints:
            (_, name), _ = min(
                atom.hints.items(), key=lambda item: (item[0][0], -item[1], item[0][1])
            )
            base[atom] = re.sub(r"\W", "_", name)
    for _ in range(8):
        for atom in atoms:
            if atom in base:
                continue
            source, prefix = atom.copy_of or atom.relative, ""
            if atom.copy_of is not None:
                prefix = "memory_"
            if source is not None:
                atoms_now = flat([source])
                if len(atoms_now) == 1 and atoms_now[0] in base:
                    base[atom] = prefix + base[atoms_now[0]]
    return base


def _trust(atom: Atom) -> tuple[int, int]:
    """Returns a key for sorting: dimensions whose names are trusted most come first."""
    return min(
        ((trust, -count) for (trust, _), count in atom.hints.items()), default=(9, 0)
    )


def _clashes(atom: Atom, users: list[Atom], foes: Mapping[Atom, set[Atom]]) -> bool:
    """Whether an atom may not have the name of others."""
    return any(
        other in foes[atom]
        or (
            other.size != atom.size and atom.relative is None and other.relative is None
        )
        for other in users
    )
