"""Atoms of dimensions: which axes of which tensors are one dimension.

An axis of a tensor is a product of atoms: one for a plain dimension, several for a merged one
(heads x d_head), none for size 1. Two atoms become one if an operation says that they are the
same ("union-find"). Atoms of one tensor are foes: a named tensor has each name once, so foes
never become one.

This is register coalescing: atoms are live ranges, tensors say which interfere, and a refused
union is a copy (`mtf.rename`). G. J. Chaitin, Register Allocation & Spilling via Graph Coloring,
1982.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from meshtf.tensorflow_import.dimensions.hints import factor_names


class Atom:
    """A factor of a dimension.

    Attributes:
        size: How many elements.
        hints: Names that it may get: how often each was proposed, by (trust, name); a
            smaller number is trusted more.
        relative: An atom that it is like, though not the same: the dimension that it is a part
            of or was padded from. Its name is taken where there is no hint.
        copy_of: The atom that it is a second name of.
    """

    __slots__ = ("size", "hints", "relative", "copy_of", "_up", "_factors", "_foes")

    def __init__(self, size: int) -> None:
        self.size = size
        self.hints: collections.Counter[tuple[int, str]] = collections.Counter()
        self.relative: Atom | None = None
        self.copy_of: Atom | None = None
        self._up: Atom | None = None
        self._factors: list[Atom] | None = None
        self._foes: set[Atom] = set()

    @property
    def now(self) -> Atom:
        """The atom that it has become part of by unions."""
        atom = self
        while atom._up is not None:
            if atom._up._up is not None:
                atom._up = atom._up._up
            atom = atom._up
        return atom

    def hint(self, trust: int, name: str, count: int = 1) -> None:
        """Proposes a name."""
        self.hints[trust, name] += count

    def is_foe_of(self, other: Atom) -> bool:
        """Whether some tensor has both."""
        return other.now in self.now._foes


# The atoms of an axis, and the axes of a tensor.
Axis = tuple[Atom, ...]
Axes = list[Axis]


def flat(atoms: Iterable[Atom]) -> list[Atom]:
    """Returns what atoms have become: unions and parts are followed."""
    results = []
    for atom in atoms:
        atom = atom.now
        if atom._factors is None:
            results.append(atom)
        else:
            results += flat(atom._factors)
    return results


def make_foes(atoms: Sequence[Atom]) -> None:
    """Notes that one tensor has all of these atoms."""
    for k, a in enumerate(atoms):
        for b in atoms[:k]:
            if a is not b:
                a._foes.add(b)
                b._foes.add(a)


def join(a: Atom, b: Atom) -> bool:
    """Makes two atoms of one size the same. Returns False, and does nothing, if they are foes."""
    a, b = a.now, b.now
    if a is b:
        return True
    if b in a._foes:
        return False
    b._up = a
    for foe in b._foes:
        foe._foes.discard(b)
        foe._foes.add(a)
    a._foes |= b._foes
    b._foes = set()
    a.hints += b.hints
    _join_relatives(a, b)
    a.copy_of = a.copy_of or b.copy_of
    return True


def root(atom: Atom) -> Atom:
    """Returns the dimension that an atom was sliced, padded or resized from; itself, if it is
    like no other.
    """
    atom, seen = atom.now, set()
    while atom.relative is not None and atom not in seen:
        seen.add(atom)
        atom = flat([atom.relative])[0]
    return atom


def _join_relatives(a: Atom, b: Atom) -> None:
    """What `a` and `b`, which has become `a`, are like, is alike."""
    sources = [x for x in (a.relative, b.relative) if x is not None]
    a.relative = None
    sources = [x for x in sources if root(x) is not a]
    if len(sources) == 2 and root(sources[0]) is not root(sources[1]):
        root(sources[1]).relative = root(sources[0])
    if sources:
        a.relative = sources[0]


def split(atom: Atom, sizes: Sequence[int]) -> list[Atom]:
    """Splits an atom into factors, the outer one first."""
    atom = atom.now
    factors = [Atom(size) for size in sizes]
    atom._factors = factors
    for (trust, name), count in atom.hints.items():
        for factor, factor_name in zip(factors, factor_names(name, len(sizes))):
            factor.hint(trust, factor_name, count)
    for factor in factors:
        for foe in atom._foes:
            foe._foes.add(factor)
            factor._foes.add(foe)
    for foe in atom._foes:
        foe._foes.discard(atom)
    make_foes(factors)
    return factors
