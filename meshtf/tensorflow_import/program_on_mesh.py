"""A program with its dimensions and their names: what a mesh runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Atom
from meshtf.tensorflow_import.dimensions.hints import hints_of
from meshtf.tensorflow_import.dimensions.names import name_dimensions
from meshtf.tensorflow_import.dimensions.search import fewest_renames
from meshtf.tensorflow_import.graph.program import Program, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules import all_rules
from meshtf.tensorflow_import.rules.whole import run_whole


class NamedProgram:
    """A program whose dimensions have names.

    Attributes:
        program: The program.
        analysis: Its dimensions.
        names: By atom, its name.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        rules = {kind: rule.dimensions for kind, rule in all_rules.RULES.items()}
        self.analysis = fewest_renames(
            lambda flipped: Analysis(program, rules, hints_of, flipped)
        )
        self.names = name_dimensions(self.analysis)

    def shape_of(self, value: Value) -> str:
        """Returns the named shape of a value, such as "batch:8; length:16"."""
        atoms = self.analysis.atoms_of(value)
        return "; ".join(f"{self.names[a]}:{a.size}" for a in atoms)

    def sizes_of(self, value: Value) -> list[int]:
        """Returns the sizes of a value's atoms: its axes, the merged ones apart."""
        return [atom.size for atom in self.analysis.atoms_of(value)]

    def run(
        self,
        mesh: mtf.Mesh,
        variables: Mapping[int, mtf.Variable],
        inputs: Sequence[mtf.Tensor],
    ) -> list[mtf.Tensor]:
        """Runs the program in named operations, and returns its outputs."""
        rules = {kind: rule.lower for kind, rule in all_rules.RULES.items()}
        rules["whole"] = run_whole
        lowering = Lowering(
            self.program, self.analysis, self.names, mesh, rules, variables
        )
        self.lowering = lowering
        return lowering.run(inputs)
