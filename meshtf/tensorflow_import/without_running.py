"""A named program on an abstract mesh: for forecasts, and searches of layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.function.function import Function
from meshtf.mesh import Layout, Mesh
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.named_program import NamedProgram


def abstract_mesh(mesh: Mesh) -> Mesh:
    """Returns a mesh of the same axes and layouts without devices. Axes that it lacks were
    reported when the mesh was made.
    """
    if mesh.abstract:
        return mesh
    named: set[str] = set()
    for rules in (mesh.layout, mesh.variable_rules, mesh.optimizer_rules):
        named.update(axis for _, axes in rules.items() for axis in axes)
    return Mesh(
        mesh.axes,
        mesh.layout,
        variable_layout=mesh.variable_rules,
        optimizer_layout=mesh.optimizer_rules,
        keep_gathered=mesh.keep_gathered,
        devices="abstract",
        stages=mesh.stages,
        strict=mesh.strict,
        bucket_bytes=mesh.bucket_bytes,
        microbatches=mesh.microbatches,
        repeats=mesh.repeats,
        reduce_dtype=mesh.reduce_dtype,
        two_batch_overlap=mesh.two_batch_overlap,
        optional_axes=[*mesh.optional_axes, *sorted(named - set(mesh.axes))],
    )


def abstract_function(
    named: NamedProgram,
    name: str,
    mesh: Mesh,
    layout_of: Callable[[Mesh, Value], Layout | None] = lambda mesh, value: None,
) -> Function[..., Any]:
    """Returns a program as a `mtf.function` of `named.specs()`, with variables of its own.

    Args:
        named: The program.
        name: What forecasts call it.
        mesh: An abstract mesh.
        layout_of: The layout of a variable, by its value on entry; None: that of the mesh.
    """
    variables: dict[int, Variable] = {}
    for k, (key, value) in enumerate(named.program.on_entry.items()):
        if key in variables:
            continue  # another one of repeated layers, which have one for all of them
        path = path_of(value.variable).replace("/", ".")
        variable = named.variable(
            mesh, value, f"{path}.{k}", layout=layout_of(mesh, value)
        )
        stack = named.stack_of(value)
        for each in [value.variable] if stack is None else stack.variables:
            variables[id(each)] = variable
    return named.function(name, mesh, variables)
