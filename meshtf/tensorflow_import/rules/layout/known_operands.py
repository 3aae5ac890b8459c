"""Operands that must be known before the function runs, and entries at known indices."""

from __future__ import annotations

import numpy as np

from meshtf.graph import Tensor
from meshtf.ops.indexing.gather import gather
from meshtf.ops.shapes.reshape import rename
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering

_INDICES = ".indices"  # a name for the time of a gather: no layout has a rule for it


def known(node: Node, k: int) -> np.ndarray:
    """Returns an operand that must be known before the function runs.

    Raises:
        NoRule: It is computed from the arguments.
    """
    value = node.inputs[k].constant
    if value is None:
        raise NoRule(f"an operand of {node.kind} that is computed")
    return value


def entries_at(lowering: Lowering, x: Tensor, name: str, indices: np.ndarray) -> Tensor:
    """Returns the entries of a dimension at known indices."""
    shape = [(_INDICES, len(indices))]
    ids = constant(lowering.mesh, np.asarray(indices, "int32"), shape)
    return rename(gather(x, ids, name), {_INDICES: name})
