"""Updates of some rows of a variable, whose cost goes with these rows and not with the variable.

variable -= sums by id of entries       # the rows that the program has looked up: Keras' SGD
"""

from __future__ import annotations

import math
from collections.abc import Set

from meshtf.graph import apply_all
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.optimizer_updates import DescentUpdate
from meshtf.ops.variables.rows_update import RowsUpdate
from meshtf.optimizers.tables.touched_rows import MIN_ROWS_PER_LOOKUP
from meshtf.runtime.storage.asarray import constant
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.graph.program import Node, Program, Value
from meshtf.tensorflow_import.lowering import Lowering

# By kind, what the entries are multiplied by before they are subtracted.
_FACTORS = {"Sub": 1.0, "AddV2": -1.0}
# Operations whose outputs have the elements of their inputs, in the same order.
_VIEWS = frozenset(["Cast", "ConcatV2", "ExpandDims", "Identity", "Reshape", "Squeeze"])


class RowUpdates:
    """The updates of rows of a program.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._makers = {id(y): node for node in program.nodes for y in node.outputs}

    def apply(self, lowering: Lowering, variable: Variable, key: int) -> bool:
        """Updates the rows of a variable that change, if these are few. Returns whether it did.

        Args:
            lowering: The run, which has computed the entries.
            variable: The variable.
            key: The identity of the program's variable.
        """
        entry, value = self._program.on_entry[key], self._program.updates[key]
        update = DescentUpdate(variable)
        sums = self._sums(entry, value)
        if sums is None or not update.is_linear:
            return False
        entries, ids, _ = sums.inputs
        dim, *rest = variable.shape.names
        num_lookups = math.prod(ids.shape)
        has_rows = lowering.names_of(entry) == [dim, *rest]
        if not has_rows or num_lookups * MIN_ROWS_PER_LOOKUP > entry.shape[0]:
            return False
        index = lowering.aligned(ids, lowering.axes(entries))
        expected = lowering.axes(entry)[1:]
        leading = [None] * len(ids.shape)
        rows = lowering.aligned(entries, [*leading, *expected])
        if set(rows.shape.names) != {*index.shape.names, *rest}:
            return False
        rows = transpose(rows, [*index.shape.names, *rest])
        factor = _FACTORS[self._makers[id(value)].kind]
        with lowering.within(sums.section, {}):
            rate = constant(lowering.mesh, factor, dtype=rows.dtype)
            apply_all(RowsUpdate(update), rate, index, rows, mesh=variable.mesh)
        return True

    def _sums(self, entry: Value, value: Value) -> Node | None:
        """Returns the sums by id by which a new value differs from that on entry: their ids are
        known to be in range, since the program has looked them up. None: it is another value.
        """
        node = self._makers.get(id(value))
        if node is None or node.kind not in _FACTORS or node.inputs[0] is not entry:
            return None
        sums = self._makers.get(id(node.inputs[1]))
        if sums is None or sums.kind != "UnsortedSegmentSum":
            return None
        checked = {
            id(x.inputs[1])
            for x in self._program.nodes
            if x.kind == "GatherV2" and x.inputs[0] is entry and _reads_rows(x)
        }
        return sums if self._is_checked(sums.inputs[1], checked) else None

    def _is_checked(self, value: Value, checked: Set[int]) -> bool:
        """Returns whether all elements of a value are those of some values, by identity."""
        if id(value) in checked:
            return True
        node = self._makers.get(id(value))
        if node is None or node.kind not in _VIEWS:
            return False
        is_concat = node.kind == "ConcatV2"
        operands = node.inputs[:-1] if is_concat else node.inputs[:1]
        return all(self._is_checked(x, checked) for x in operands)


def _reads_rows(gather: Node) -> bool:
    """Returns whether the ids of a gather are indices of its first dimension."""
    axis = gather.inputs[2].constant
    return axis is not None and int(axis) == 0
