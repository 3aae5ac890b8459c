"""A named program as a function of an abstract mesh: for forecasts, and searches of layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.function.function import Function, function
from meshtf.graph import Tensor
from meshtf.mesh import Layout, Mesh
from meshtf.ops.control.seeds import seed
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.named_program import NamedProgram

_SEED = "seed"


def abstract_mesh(mesh: Mesh) -> Mesh:
    """Returns a mesh of the same axes and layouts without devices."""
    if mesh.abstract:
        return mesh
    return Mesh(
        mesh.axes,
        mesh.layout,
        variable_layout=f"*:; {mesh.variable_layout}",
        optimizer_layout=f"*:; {mesh.optimizer_layout}",
        keep_gathered=mesh.keep_gathered,
        devices="abstract",
        stages=mesh.stages,
        strict=mesh.strict,
        bucket_bytes=mesh.bucket_bytes,
        optional_axes=mesh.optional_axes,
    )


def builder(
    named: NamedProgram,
    name: str,
    layout_of: Callable[[Mesh, int], Layout | None] = lambda mesh, key: None,
) -> Callable[[Mesh], Function[..., Any]]:
    """Returns a function of an abstract mesh that returns the program as a `mtf.function` of
    `arguments_of(named)`.

    Args:
        named: The program.
        name: What forecasts call it.
        layout_of: The layout of a variable, by its identity; None: that of the mesh.
    """
    program = named.program
    texts = {_SEED: ""}
    texts |= {f"argument_{k}": _names(named, v) for k, v in enumerate(program.inputs)}

    def build(mesh: Mesh) -> Function[..., Any]:
        variables: dict[int, Variable] = {}
        for key, value in program.on_entry.items():
            variables[key] = Variable(
                mesh,
                named.shape_of(value),
                "zeros",
                name=f"{path_of(value.variable).replace('/', '.')}.{len(variables)}",
                dtype=value.dtype.name,
                trainable=bool(getattr(value.variable, "trainable", True)),
                layout=layout_of(mesh, key),
            )

        def step(batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            with seed(batch[_SEED]):
                inputs = [batch[text] for text in list(texts)[1:]]
                return tuple(named.run(mesh, variables, inputs))

        step.__name__ = name
        return function(step, mesh=mesh, batch=texts)

    return build


def arguments_of(named: NamedProgram) -> dict[str, Any]:
    """Returns the argument of the function that `builder` returns: only shapes and types."""
    specs: dict[str, Any] = {_SEED: np.int32(0)}
    for k, value in enumerate(named.program.inputs):
        specs[f"argument_{k}"] = tf.TensorSpec(named.sizes_of(value), value.dtype)
    return specs


def _names(named: NamedProgram, value: Any) -> str:
    return "; ".join(named.names_of(value))
