"""Names of the axes of attention's kernels in a function without its layers, such as a SavedModel.

The layers' names are known by the variables' paths. The order of the axes is not: kernels of
queries are [d_model, heads, d_head] in most models, and [heads, d_model, d_head] in others. So
what the product sums over tells which axis is which.
"""

from __future__ import annotations

from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Atom, Axes, flat
from meshtf.tensorflow_import.dimensions.hints import (
    ROLE,
    factor_names,
    is_projection,
    joins_heads,
)
from meshtf.tensorflow_import.dimensions.structure import variables_by_value
from meshtf.tensorflow_import.graph.program import Value


def hint_projections(analysis: Analysis) -> None:
    """Proposes names for the axes of kernels that make queries, keys and values, and of those
    that join the heads again.
    """
    variables = variables_by_value(analysis)
    for node, (first, second, result) in analysis.products:
        for value in node.inputs:
            variable = variables.get(id(value))
            if variable is None or not is_projection(variable):
                continue
            summed = {
                atom
                for letter in first
                if letter in second and letter not in result
                for atom in flat(first[letter])
            }
            _hint_kernel(analysis, variable, summed)


def _hint_kernel(analysis: Analysis, variable: Value, summed: set[Atom]) -> None:
    """Proposes names for the axes of one kernel.

    Args:
        analysis: The dimensions.
        variable: The kernel.
        summed: What the product with the kernel sums over.
    """
    d_model: Axes = []
    head_axes: Axes = []
    for axis in analysis.of(variable):
        is_summed = bool(summed.intersection(axis))
        # An axis of size 1 has no atoms: it is one of heads, as in multi-query attention.
        if axis and is_summed != joins_heads(variable):
            d_model.append(axis)
        else:
            head_axes.append(axis)
    if len(d_model) == 1 and len(head_axes) == 2:
        _hint(d_model, ("d_model",))
        _hint(head_axes, ("heads", "d_head"))


def _hint(axes: Axes, names: tuple[str, ...]) -> None:
    for axis, name in zip(axes, names):
        factors = [name] if len(axis) == 1 else factor_names(name, len(axis))
        for atom, factor in zip(axis, factors):
            atom.hint(ROLE, factor)
