"""A program with its dimensions and their names: what a mesh runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.function.function import Function
from meshtf.graph import Tensor
from meshtf.mesh import Layout, Mesh
from meshtf.names import Shape
from meshtf.ops.control.seeds import seed
from meshtf.ops.variables.fill import zeros
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.check_names import check_renames
from meshtf.tensorflow_import.dimensions.hints import Hints
from meshtf.tensorflow_import.dimensions.names import clashing_names, name_dimensions
from meshtf.tensorflow_import.dimensions.projections import hint_projections
from meshtf.tensorflow_import.dimensions.search import fewest_renames
from meshtf.tensorflow_import.graph.program import Node, Program, Value
from meshtf.tensorflow_import.lowering import Lowering, renamed_to
from meshtf.tensorflow_import.repeats.plan import Repeats
from meshtf.tensorflow_import.repeats.run import RepeatedLowering
from meshtf.tensorflow_import.repeats.stacks import LAYERS, Repeated, Stack
from meshtf.tensorflow_import.row_updates import RowUpdates
from meshtf.tensorflow_import.rules.all_rules import all_rules
from meshtf.tensorflow_import.rules.replicated import run_replicated


class NamedProgram:
    """A program whose dimensions have names.

    Attributes:
        program: The program.
        analysis: Its dimensions.
        names: By atom, its name.
        repeats: The layers that it repeats; None: there are none.
        lowering: The last run; None before the first one.
    """

    def __init__(
        self,
        program: Program,
        renames: Mapping[str, str] | None = None,
        known: Mapping[int, Sequence[str]] | None = None,
        hints: Hints | None = None,
        repeated: Sequence[Repeated] = (),
    ) -> None:
        """Analyses a program.

        Args:
            program: The program.
            renames: New names of dimensions, by those that they would get.
            known: By identity of a variable, names that its dimensions have already.
            hints: Names for arguments and variables; None: by types and paths.
            repeated: Groups of layers that it repeats: each runs as a loop.

        Raises:
            ArgumentError: A name in `renames` is none of a dimension, or two dimensions of an
                operation would have one name; or the layers are no loop.
        """
        self.program = program
        self.lowering: Lowering | None = None
        hints = hints or Hints()
        rules = {kind: rule.dimensions for kind, rule in all_rules().items()}
        hints_of = functools.partial(hints.of, inputs=program.inputs)
        self.analysis = fewest_renames(
            lambda flipped: Analysis(program, rules, hints_of, flipped)
        )
        for key, names in (known or {}).items():
            if key in program.on_entry:
                self.analysis.hint_all(program.on_entry[key], names)
        if hints.variables is None:
            hint_projections(self.analysis)
        renames = renames or {}
        old = name_dimensions(self.analysis)
        self.names = {atom: renames.get(name, name) for atom, name in old.items()}
        clashes = clashing_names(self.analysis, self.names) if renames else ()
        check_renames(renames, set(old.values()), set(self.names.values()), clashes)
        self.repeats: Repeats | None = None
        if repeated:
            self.repeats = Repeats(program, repeated, self._is_uniform)

    def shape_of(self, value: Value) -> str:
        """Returns the named shape of a value, such as "batch:8; length:16"."""
        atoms = self.analysis.atoms_of(value)
        return "; ".join(f"{self.names[a]}:{a.size}" for a in atoms)

    def names_of(self, value: Value) -> list[str]:
        """Returns the names of a value's atoms."""
        return [self.names[atom] for atom in self.analysis.atoms_of(value)]

    def sizes_of(self, value: Value) -> list[int]:
        """Returns the sizes of a value's atoms: its axes, the merged ones apart."""
        return [atom.size for atom in self.analysis.atoms_of(value)]

    def stack_of(self, entry: Value) -> Stack | None:
        """Returns the variables of repeated layers that one variable of the mesh stores, by a
        value on entry; None: it has one of its own.
        """
        return None if self.repeats is None else self.repeats.stack_of(entry)

    def variable_shape_of(self, entry: Value) -> str:
        """Returns the named shape of the mesh's variable for a value on entry."""
        stack = self.stack_of(entry)
        if stack is None:
            return self.shape_of(entry)
        # Other layers may have more dimensions: the first one reads what was flattened before.
        return f"{LAYERS}:{len(stack.values)}; {self.shape_of(stack.first)}"

    def replicated(self) -> dict[int, str]:
        """Returns, by the node's identity, why operations run replicated: all of them only
        after a run was recorded.
        """
        reasons = self.lowering.reasons if self.lowering is not None else {}
        return self.analysis.replicated | reasons

    def variable(
        self,
        mesh: Mesh,
        entry: Value,
        name: str,
        read: Callable[[], Any] | None = None,
        layout: Layout | None = None,
    ) -> Variable:
        """Returns a variable on a mesh for one of the function's, or for those of all repeated
        layers.

        Args:
            mesh: The mesh.
            entry: The variable's value on entry.
            name: What it is called.
            read: Returns its initial value, an array, of repeated layers [layers, ...]; None: it
                begins with zeros.
            layout: Its layout; None: that of the mesh.
        """

        def initial(mesh: Mesh, shape: Any, name: str) -> Tensor:
            if read is None:
                return zeros(mesh, shape, entry.dtype.name)
            return asarray(mesh, np.asarray(read()).reshape(Shape(shape).sizes), shape)

        return Variable(
            mesh,
            self.variable_shape_of(entry),
            initial,
            name=name,
            dtype=entry.dtype.name,
            trainable=bool(getattr(entry.variable, "trainable", True)),
            layout=layout,
        )

    def function(
        self, name: str, mesh: Mesh, variables: Mapping[int, Variable]
    ) -> Function[..., Any]:
        """Returns the program as a `mtf.function` of a seed and its inputs.

        Args:
            name: What forecasts call it.
            mesh: Where it runs.
            variables: By identity of the program's variable, the mesh's.
        """

        def run(step_seed: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            with seed(step_seed):
                return tuple(self.run(mesh, variables, inputs))

        run.__name__ = name
        shapes = ["; ".join(self.names_of(value)) for value in self.program.inputs]
        names: Any = {"step_seed": "", "inputs": shapes}
        return Function(run, mesh=mesh, names=names)

    def specs(self) -> list[Any]:
        """Returns what `function` may take in place of a seed and inputs, if nothing runs."""
        specs = [
            tf.TensorSpec(self.sizes_of(value), value.dtype)
            for value in self.program.inputs
        ]
        return [np.int32(0), *specs]

    def run(
        self,
        mesh: Mesh,
        variables: Mapping[int, Variable],
        inputs: Sequence[Tensor],
    ) -> list[Tensor]:
        """Runs the program in named operations, updates its variables, and returns its outputs."""
        lowering = self.lower(mesh, variables)
        outputs, updates = lowering.evaluate(inputs)
        rows = RowUpdates(self.program)
        for key, x in updates.items():
            variable = variables[key]
            if not rows.apply(lowering, variable, key):
                variable.assign(renamed_to(x, variable.shape.names))
        return outputs

    def lower(self, mesh: Mesh, variables: Mapping[int, Variable]) -> Lowering:
        """Returns a run of the program in named operations.

        Args:
            mesh: Where it runs.
            variables: By identity of the program's variable, the mesh's.
        """
        rules = {kind: rule.lower for kind, rule in all_rules().items()}
        rules["replicated"] = run_replicated
        args = (self.program, self.analysis, self.names, mesh, rules, variables)
        if self.repeats is None:
            self.lowering = Lowering(*args)
        else:
            self.lowering = RepeatedLowering(*args, repeats=self.repeats)
        return self.lowering

    def _is_uniform(self, node: Node) -> bool:
        """Whether a node computes the same of an entry of a stack as of the stack."""
        rule = all_rules().get(node.kind)
        is_sharded = id(node) not in self.analysis.replicated
        return rule is not None and rule.is_uniform and is_sharded
